// The custom call "rueda_collective" of XLA. One call has members, each an operation or a group of
// them: what a program can start at the same time. It starts them all and gives XLA a future that
// the end of the last one completes: whatever the order in which other ranks start theirs, none of
// them waits for another. No thread waits meanwhile.
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

#include "bindings/xla/joint.h"

namespace rueda::xla {
namespace {

// The first version that has futures on the CPU.
constexpr int kMajor = 0;
constexpr int kMinor = 1;

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

// The attributes of one call, by name.
class Attributes {
 public:
  explicit Attributes(const XLA_FFI_Attrs& attrs) : attrs_(attrs) {}

  template <typename T>
  T number(std::string_view name, T otherwise) const {
    const void* found = find(name, XLA_FFI_AttrType_SCALAR);
    if (found == nullptr) return otherwise;
    T value;
    std::memcpy(&value, static_cast<const XLA_FFI_Scalar*>(found)->value, sizeof value);
    return value;
  }

  std::string text(std::string_view name) const {
    const void* found = find(name, XLA_FFI_AttrType_STRING);
    if (found == nullptr) return {};
    const auto* span = static_cast<const XLA_FFI_ByteSpan*>(found);
    return {span->ptr, span->len};
  }

 private:
  const void* find(std::string_view name, XLA_FFI_AttrType type) const {
    for (int64_t i = 0; i < attrs_.size; ++i) {
      const XLA_FFI_ByteSpan& each = *attrs_.names[i];
      if (attrs_.types[i] == type && std::string_view(each.ptr, each.len) == name)
        return attrs_.attrs[i];
    }
    return nullptr;
  }

  const XLA_FFI_Attrs& attrs_;
};

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

// Buffers of a call, one after the other; not the token that an ordered one begins with.
class Buffers {
 public:
  Buffers(int64_t size, void** buffers) : at_(buffers), end_(buffers + size) {
    if (size > 0 && static_cast<const XLA_FFI_Buffer*>(*at_)->dtype == XLA_FFI_DataType_TOKEN)
      ++at_;
  }

  size_t left() const { return static_cast<size_t>(end_ - at_); }
  const XLA_FFI_Buffer* next() { return static_cast<const XLA_FFI_Buffer*>(*at_++); }

 private:
  void** at_;
  void** end_;
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
  if (frame->extension_start != nullptr &&
      frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    auto* asked = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start);
    asked->metadata->api_version.major_version = kMajor;
    asked->metadata->api_version.minor_version = kMinor;
    return nullptr;
  }
  const Attributes attributes(frame->attrs);
  auto joint = std::make_shared<Joint>();
  joint->api = frame->api;
  joint->rank = attributes.number<int32_t>("rank", -1);
  joint->size = attributes.number<int32_t>("size", -1);
  MemberReader reader(attributes.text("members"));
  std::vector<std::unique_ptr<Member>> members;
  Buffers inputs(frame->args.size, frame->args.args);
  Buffers outputs(frame->rets.size, frame->rets.rets);
  while (!reader.is_at_end()) {
    members.push_back(std::make_unique<Member>());
    members.back()->joint = joint;
    if (const char* problem = read_member(&reader, &inputs, &outputs, members.back().get()))
      return make_error(frame->api, RUEDA_UNIMPLEMENTED, problem);
  }
  XLA_FFI_Future_Create_Args args = {XLA_FFI_Future_Create_Args_STRUCT_SIZE, nullptr, nullptr};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_Future_Create(&args)) return error;
  joint->future = frame->future = args.future;
  joint->left = members.size();
  for (auto& each : members) calls::Calls::instance().submit(std::move(each));
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
