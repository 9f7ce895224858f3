// The custom call "rueda_collective" of XLA. One call has members, each an operation or a group of
// them: what a program can start at the same time. It starts them all and gives XLA a future that
// the end of the last one completes: whatever the order in which other ranks start theirs, none of
// them waits for another. No thread waits for longer than it takes to hand a small call to another.
#include <rueda/rueda.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "bindings/xla/collective.h"
#include "bindings/xla/frame.h"
#include "bindings/xla/joint.h"
#include "bindings/xla/python.h"

namespace rueda::xla {
namespace {

// For so long the starter of a call waits for its end: handing it to other threads costs about as
// much, so that small calls take a quarter of the time. XLA's thread is not missed for longer.
constexpr double kPatience = 200e-6;  // seconds

// For so long one of Python's waits before it leaves its call to other threads.
constexpr double kInline = 3600;  // seconds

constexpr const char* kNotUnderstood =
    "rueda: the attribute 'members' of this call is not what this librueda_xla.so expects";

// The rueda_dtype of a buffer; -1: there is none.
int32_t find_dtype(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_PRED: return RUEDA_BOOL;
    case XLA_FFI_DataType_S8: return RUEDA_INT8;
    case XLA_FFI_DataType_U8: return RUEDA_UINT8;
    case XLA_FFI_DataType_S16: return RUEDA_INT16;
    case XLA_FFI_DataType_U16: return RUEDA_UINT16;
    case XLA_FFI_DataType_S32: return RUEDA_INT32;
    case XLA_FFI_DataType_U32: return RUEDA_UINT32;
    case XLA_FFI_DataType_S64: return RUEDA_INT64;
    case XLA_FFI_DataType_U64: return RUEDA_UINT64;
    case XLA_FFI_DataType_F16: return RUEDA_FLOAT16;
    case XLA_FFI_DataType_BF16: return RUEDA_BFLOAT16;
    case XLA_FFI_DataType_F32: return RUEDA_FLOAT32;
    case XLA_FFI_DataType_F64: return RUEDA_FLOAT64;
    case XLA_FFI_DataType_C64: return RUEDA_COMPLEX64;
    case XLA_FFI_DataType_C128: return RUEDA_COMPLEX128;
    case XLA_FFI_DataType_F8E4M3FN: return RUEDA_FLOAT8_E4M3FN;
    case XLA_FFI_DataType_F8E5M2: return RUEDA_FLOAT8_E5M2;
    default: return -1;
  }
}

// The attribute "members": for each a line of numbers, the last of which is the length of the name
// that follows.
class MemberReader {
 public:
  explicit MemberReader(std::string text) : text_(std::move(text)) {}

  bool is_at_end() const { return at_ == text_.size(); }

  template <typename T>
  bool number(T* value) {
    const char* end = text_.data() + text_.size();
    const auto [after, error] = std::from_chars(text_.data() + at_, end, *value);
    if (error != std::errc() || after == end || *after != ' ') return false;
    at_ = static_cast<size_t>(after - text_.data()) + 1;
    return true;
  }

  // A float64 by its bits.
  bool real(double* value) {
    uint64_t bits;
    if (!number(&bits)) return false;
    std::memcpy(value, &bits, sizeof bits);
    return true;
  }

  bool name(std::string* value) {
    size_t size;
    if (!number(&size) || text_.size() - at_ <= size || text_[at_ + size] != '\n') return false;
    *value = text_.substr(at_, size);
    at_ += size + 1;
    return true;
  }

 private:
  std::string text_;
  size_t at_ = 0;
};

// Operations of one member, from the next buffers; an error's text if they cannot be.
const char* read_member(MemberReader* reader, Buffers* inputs, Buffers* outputs, Member* call) {
  rueda_op like = RUEDA_OP_INIT;
  size_t count;
  if (!reader->number(&count) || !reader->number(&like.kind) || !reader->number(&like.reduce_op) ||
      !reader->number(&like.root) || !reader->number(&like.peer) || !reader->number(&like.tag) ||
      !reader->number(&like.process_set) || !reader->real(&like.prescale) ||
      !reader->real(&like.postscale) || !reader->name(&call->queue)) {
    return kNotUnderstood;
  }
  const bool has_input = like.kind != RUEDA_RECV && like.kind != RUEDA_BARRIER;
  const bool has_output = like.kind != RUEDA_SEND && like.kind != RUEDA_BARRIER;
  if ((has_input && count > inputs->left()) || (has_output && count > outputs->left()))
    return kNotUnderstood;
  call->names.resize(count);
  call->shapes.resize(count);
  for (size_t i = 0; i < count; ++i) {
    rueda_op op = like;
    call->names[i] = rueda::calls::member_name(call->queue, i);
    op.name = call->names[i].c_str();
    const XLA_FFI_Buffer* input = has_input ? inputs->next() : nullptr;
    const XLA_FFI_Buffer* output = has_output ? outputs->next() : nullptr;
    if (const XLA_FFI_Buffer* of_shape = has_input ? input : output) {
      op.dtype = find_dtype(of_shape->dtype);
      if (op.dtype < 0) return "rueda: this dtype is not supported";
      std::vector<int64_t>& shape = call->shapes[i];
      shape.assign(of_shape->dims, of_shape->dims + of_shape->rank);
      op.shape = shape.data();
      op.ndim = static_cast<int32_t>(shape.size());
    }
    if (has_input) op.input = input->data;
    if (has_output) op.output = output->data;
    if (op.kind == RUEDA_ALLGATHER || op.kind == RUEDA_ALLTOALL) op.output_rows = output->dims[0];
    call->ops.push_back(op);
  }
  return nullptr;
}

XLA_FFI_Error* collective_of_python(XLA_FFI_CallFrame* frame, const Attributes& attributes) {
  if (python::has_failed()) return nullptr;  // a part of the same program
  const auto joint = joint_of<WaitedJoint>(frame, attributes);
  std::vector<std::unique_ptr<calls::Call>> members;
  if (XLA_FFI_Error* error = read_members(frame, attributes, joint, &members)) return error;
  if (members.empty()) return nullptr;
  calls::Calls::instance().submit(std::move(members), kInline);
  const int32_t code = joint->wait();
  if (code == RUEDA_OK || python::raises(code, joint->error.message)) return nullptr;
  return make_error(frame->api, code, joint->error.message);
}

XLA_FFI_Error* collective(XLA_FFI_CallFrame* frame) {
  if (is_metadata_asked(frame)) return nullptr;
  const Attributes attributes(frame->attrs);
  const bool is_ordered = Buffers::begin_with_token(frame->args.size, frame->args.args);
  if (!is_ordered && python::is_caller()) return collective_of_python(frame, attributes);
  const auto joint = joint_of<FutureJoint>(frame, attributes);
  std::vector<std::unique_ptr<calls::Call>> members;
  if (XLA_FFI_Error* error = read_members(frame, attributes, joint, &members)) return error;
  if (XLA_FFI_Error* error = make_future(frame, joint.get())) return error;
  calls::Calls::instance().submit(std::move(members), kPatience);
  return nullptr;
}

}  // namespace

XLA_FFI_Error* read_members(const XLA_FFI_CallFrame* frame, const Attributes& attributes,
                            const std::shared_ptr<Joint>& joint,
                            std::vector<std::unique_ptr<calls::Call>>* members) {
  MemberReader reader(attributes.text("members"));
  Buffers inputs(frame->args.size, frame->args.args);
  Buffers outputs(frame->rets.size, frame->rets.rets);
  while (!reader.is_at_end()) {
    auto member = std::make_unique<Member>();
    member->joint = joint;
    if (const char* problem = read_member(&reader, &inputs, &outputs, member.get()))
      return make_error(frame->api, RUEDA_UNIMPLEMENTED, problem);
    members->push_back(std::move(member));
  }
  joint->left = members->size();
  return nullptr;
}

}  // namespace rueda::xla

extern "C" {

RUEDA_API XLA_FFI_Error* rueda_xla_collective(XLA_FFI_CallFrame* frame) {
  return rueda::xla::collective(frame);
}

// The context that calls use from now on; NULL: none.
RUEDA_API void rueda_xla_use(rueda_context* context) {
  rueda::calls::Calls::instance().use(context);
}

// 1 while calls have not ended.
RUEDA_API int32_t rueda_xla_under_way(void) {
  return rueda::calls::Calls::instance().is_any_under_way() ? 1 : 0;
}

RUEDA_API uint32_t rueda_xla_abi_version(void) { return RUEDA_ABI_VERSION; }
}
