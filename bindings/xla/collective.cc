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

#include "bindings/xla/frame.h"
#include "bindings/xla/joint.h"

namespace rueda::xla {
namespace {

// For so long the starter of a call waits for its end: handing it to other threads costs about as
// much, so that small calls take a quarter of the time. XLA's thread is not missed for longer.
constexpr double kPatience = 200e-6;  // seconds

constexpr const char* kNotUnderstood =
    "rueda: the attribute 'members' of this call is not what this librueda_xla.so expects";

// How a buffer travels. What the runtime does not name goes as what has the same bytes: pairs of
// floats for complex numbers, signed integers for unsigned ones. Python lets only those operations
// through whose bits are the same.
struct Form {
  int32_t dtype;
  int parts;  // 2: of a complex number
};

bool find_form(XLA_FFI_DataType dtype, Form* form) {
  switch (dtype) {
    case XLA_FFI_DataType_PRED: *form = {RUEDA_BOOL, 1}; return true;
    case XLA_FFI_DataType_S8: *form = {RUEDA_INT8, 1}; return true;
    case XLA_FFI_DataType_U8: *form = {RUEDA_UINT8, 1}; return true;
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_U16: *form = {RUEDA_INT16, 1}; return true;
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_U32: *form = {RUEDA_INT32, 1}; return true;
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_U64: *form = {RUEDA_INT64, 1}; return true;
    case XLA_FFI_DataType_F16: *form = {RUEDA_FLOAT16, 1}; return true;
    case XLA_FFI_DataType_BF16: *form = {RUEDA_BFLOAT16, 1}; return true;
    case XLA_FFI_DataType_F32: *form = {RUEDA_FLOAT32, 1}; return true;
    case XLA_FFI_DataType_F64: *form = {RUEDA_FLOAT64, 1}; return true;
    case XLA_FFI_DataType_C64: *form = {RUEDA_FLOAT32, 2}; return true;
    case XLA_FFI_DataType_C128: *form = {RUEDA_FLOAT64, 2}; return true;
    case XLA_FFI_DataType_F8E4M3FN: *form = {RUEDA_FLOAT8_E4M3FN, 1}; return true;
    case XLA_FFI_DataType_F8E5M2: *form = {RUEDA_FLOAT8_E5M2, 1}; return true;
    default: return false;
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
    call->names[i] = count == 1 ? call->queue : call->queue + "." + std::to_string(i);
    op.name = call->names[i].c_str();
    const XLA_FFI_Buffer* input = has_input ? inputs->next() : nullptr;
    const XLA_FFI_Buffer* output = has_output ? outputs->next() : nullptr;
    if (const XLA_FFI_Buffer* of_shape = has_input ? input : output) {
      Form form;
      if (!find_form(of_shape->dtype, &form)) return "rueda: this dtype is not supported";
      std::vector<int64_t>& shape = call->shapes[i];
      shape.assign(of_shape->dims, of_shape->dims + of_shape->rank);
      if (form.parts > 1) shape.push_back(form.parts);
      op.dtype = form.dtype;
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

XLA_FFI_Error* collective(XLA_FFI_CallFrame* frame) {
  if (is_metadata_asked(frame)) return nullptr;
  const Attributes attributes(frame->attrs);
  auto joint = joint_of(frame, attributes);
  MemberReader reader(attributes.text("members"));
  std::vector<std::unique_ptr<calls::Call>> members;
  Buffers inputs(frame->args.size, frame->args.args);
  Buffers outputs(frame->rets.size, frame->rets.rets);
  while (!reader.is_at_end()) {
    auto member = std::make_unique<Member>();
    member->joint = joint;
    if (const char* problem = read_member(&reader, &inputs, &outputs, member.get()))
      return make_error(frame->api, RUEDA_UNIMPLEMENTED, problem);
    members.push_back(std::move(member));
  }
  joint->left = members.size();
  if (XLA_FFI_Error* error = make_future(frame, joint.get())) return error;
  calls::Calls::instance().submit(std::move(members), kPatience);
  return nullptr;
}

}  // namespace
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
