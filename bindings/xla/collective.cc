// The custom call "rueda_collective" of XLA: one call starts one operation, or a group of them, and
// gives XLA a future that the end of the last one completes. No thread waits meanwhile.
#include <rueda/rueda.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/calls/calls.h"
#include "bindings/xla/vendor/xla_ffi_c_api.inc"

namespace rueda::xla {
namespace {

// The first version that has futures on the CPU.
constexpr int kMajor = 0;
constexpr int kMinor = 1;

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

XLA_FFI_Error* make_error(const XLA_FFI_Api* api, int32_t code, const char* message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message,
                                    static_cast<XLA_FFI_Error_Code>(code)};  // both are gRPC's
  return api->XLA_FFI_Error_Create(&args);
}

struct Call : calls::Call {
  const XLA_FFI_Api* api = nullptr;
  XLA_FFI_Future* future = nullptr;
  std::vector<std::string> names;  // of the operations
  std::vector<std::vector<int64_t>> shapes;

  void complete() override {
    if (code == RUEDA_OK) {
      XLA_FFI_Future_SetAvailable_Args args = {XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE,
                                               nullptr, future};
      api->XLA_FFI_Future_SetAvailable(&args);
    } else {
      XLA_FFI_Future_SetError_Args args = {XLA_FFI_Future_SetError_Args_STRUCT_SIZE, nullptr,
                                           future, make_error(api, code, error.message)};
      api->XLA_FFI_Future_SetError(&args);
    }
  }
};

// What the call asks for; an error's text if it cannot be.
const char* read(const XLA_FFI_CallFrame& frame, Call* call) {
  const Attributes attributes(frame.attrs);
  call->api = frame.api;
  call->queue = attributes.text("name");  // in flight once: the next call waits for its end
  const auto count = static_cast<size_t>(frame.args.size);
  call->names.resize(count);
  call->shapes.resize(count);
  call->ops.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const auto& input = *static_cast<const XLA_FFI_Buffer*>(frame.args.args[i]);
    const auto& output = *static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[i]);
    Form form;
    if (!find_form(input.dtype, &form)) return "rueda: this dtype is not supported";
    std::vector<int64_t>& shape = call->shapes[i];
    shape.assign(input.dims, input.dims + input.rank);
    if (form.parts > 1) shape.push_back(form.parts);
    call->names[i] = count == 1 ? call->queue : call->queue + "." + std::to_string(i);
    rueda_op op = RUEDA_OP_INIT;
    op.kind = attributes.number<int32_t>("kind", RUEDA_ALLREDUCE);
    op.dtype = form.dtype;
    op.reduce_op = attributes.number<int32_t>("op", RUEDA_SUM);
    op.root = attributes.number<int32_t>("root", 0);
    op.process_set = attributes.number<int32_t>("process_set", 0);
    op.prescale = attributes.number<double>("prescale", 1);
    op.postscale = attributes.number<double>("postscale", 1);
    op.name = call->names[i].c_str();
    op.input = input.data;
    op.output = output.data;
    op.shape = shape.data();
    op.ndim = static_cast<int32_t>(shape.size());
    if (op.kind == RUEDA_ALLGATHER || op.kind == RUEDA_ALLTOALL) op.output_rows = output.dims[0];
    call->ops[i] = op;
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
  auto call = std::make_unique<Call>();
  if (const char* problem = read(*frame, call.get()))
    return make_error(frame->api, RUEDA_UNIMPLEMENTED, problem);
  XLA_FFI_Future_Create_Args args = {XLA_FFI_Future_Create_Args_STRUCT_SIZE, nullptr, nullptr};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_Future_Create(&args)) return error;
  call->future = frame->future = args.future;
  calls::Calls::instance().submit(std::move(call));
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

RUEDA_API uint32_t rueda_xla_abi_version(void) { return RUEDA_ABI_VERSION; }
}
