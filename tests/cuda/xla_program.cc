// One rank of a job that calls librueda_xla.so's CUDA handler as XLA does: `ruedarun -np N
// xla_program` with the fake driver and the stub of NCCL. The XLA is this program's.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bindings/c/include/rueda/rueda.h"
#include "bindings/xla/vendor/xla_ffi_c_api.inc"

struct XLA_FFI_Error {
  std::string text;
};

extern "C" {
XLA_FFI_Error* rueda_xla_collective_cuda(XLA_FFI_CallFrame* frame);
void rueda_xla_use(rueda_context* context);
}

namespace {

int32_t device = 0;

XLA_FFI_Error* make_error(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->message};
}
XLA_FFI_Error* get_stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = nullptr;  // the default one
  return nullptr;
}
XLA_FFI_Error* get_device(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = device;
  return nullptr;
}

// Sums, in place, of the vectors; the first alone, the others as a group. How it went wrong, or "".
std::string call(const std::vector<std::vector<float>*>& vectors, int32_t rank, int32_t size) {
  XLA_FFI_Api api{};
  api.XLA_FFI_Error_Create = make_error;
  api.XLA_FFI_Stream_Get = get_stream;
  api.XLA_FFI_DeviceOrdinal_Get = get_device;
  std::vector<XLA_FFI_Buffer> buffers(vectors.size());
  std::vector<int64_t> extents(vectors.size());
  std::vector<void*> pointers;
  for (size_t i = 0; i < vectors.size(); ++i) {
    extents[i] = static_cast<int64_t>(vectors[i]->size());
    buffers[i].dtype = XLA_FFI_DataType_F32;
    buffers[i].data = vectors[i]->data();
    buffers[i].dims = &extents[i];
    buffers[i].rank = 1;
    pointers.push_back(&buffers[i]);
  }
  const std::string scales = " 0 1 0 0 0 0 4607182418800017408 4607182418800017408 ";
  const std::string members =
      "1" + scales + "5 alone\n" + std::to_string(vectors.size() - 1) + scales + "5 group\n";
  const XLA_FFI_ByteSpan text{members.data(), members.size()};
  XLA_FFI_Scalar numbers[2] = {{XLA_FFI_DataType_S32, &rank}, {XLA_FFI_DataType_S32, &size}};
  XLA_FFI_ByteSpan spans[3] = {{"members", 7}, {"rank", 4}, {"size", 4}};
  XLA_FFI_ByteSpan* names[3] = {&spans[0], &spans[1], &spans[2]};
  XLA_FFI_AttrType types[3] = {XLA_FFI_AttrType_STRING, XLA_FFI_AttrType_SCALAR,
                               XLA_FFI_AttrType_SCALAR};
  XLA_FFI_ByteSpan copy = text;
  void* values[3] = {&copy, &numbers[0], &numbers[1]};
  XLA_FFI_CallFrame frame{};
  frame.api = &api;
  frame.args.size = frame.rets.size = static_cast<int64_t>(pointers.size());
  frame.args.args = frame.rets.rets = pointers.data();
  frame.attrs.size = 3;
  frame.attrs.names = names;
  frame.attrs.types = types;
  frame.attrs.attrs = values;
  const std::unique_ptr<XLA_FFI_Error> error(rueda_xla_collective_cuda(&frame));
  if (frame.future != nullptr) return "a future, which XLA does not wait for on a GPU";
  return error == nullptr ? "" : error->text;
}

int fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  return 1;
}

}  // namespace

int main() {
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_context* context = nullptr;
  if (rueda_init(nullptr, &context, &error) != RUEDA_OK) return fail(error.message);
  const int32_t rank = rueda_rank(context), size = rueda_size(context);
  device = rank;
  rueda_xla_use(context);
  constexpr int kSteps = 20;
  const size_t counts[3] = {100000, 7, 5000};
  // XLA does not wait for the GPU, so every step has memory of its own.
  std::vector<std::vector<float>> all;
  for (int step = 0; step < kSteps; ++step) {
    for (const size_t count : counts) all.emplace_back(count, static_cast<float>(rank + step));
  }
  for (size_t step = 0; step < kSteps; ++step) {
    const std::string wrong =
        call({&all[3 * step], &all[3 * step + 1], &all[3 * step + 2]}, rank, size);
    if (!wrong.empty()) return fail(wrong);
  }
  if (call({&all[0], &all[1], &all[2]}, rank, size + 1).find("lower it again") == std::string::npos)
    return fail("a program of another job has been run");
  rueda_xla_use(nullptr);
  rueda_shutdown(context);  // waits for the GPU
  rueda_context_release(context);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto step = static_cast<int>(i / 3);
    const auto expected = static_cast<float>(size * step + size * (size - 1) / 2);
    for (const float value : all[i]) {
      if (value != expected) return fail("wrong sum in step " + std::to_string(step));
    }
  }
  std::printf("rank %d of %d: right\n", rank, size);
  return 0;
}
