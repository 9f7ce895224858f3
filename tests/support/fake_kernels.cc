// fake_kernels.so: what librueda_cuda.so exports, computed on the host in the fake driver's streams: the
// kernels' reference. Works item by item as thread blocks do.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "collectives/cuda/kernels/functions.h"
#include "collectives/kernels/kernels.h"
#include "tests/support/host_work.h"

namespace {

using namespace rueda::cuda::kernels;
using rueda::cuda::StreamHandle;

constexpr int kNotSupported = 801;
std::atomic<int64_t> copies{0};

size_t size_of(Format format) {
  switch (format) {
    case Format::kFloat32: return 4;
    case Format::kFloat16:
    case Format::kBFloat16: return 2;
    default: return 1;
  }
}

rueda::DType dtype_of(Format format) {
  return format == Format::kFloat32   ? rueda::DType::kFloat32
         : format == Format::kFloat16 ? rueda::DType::kFloat16
                                      : rueda::DType::kBFloat16;
}

void convert(Format from, const std::byte* in, Format to, std::byte* out, size_t count, float factor) {
  if (from == to && factor == 1.0f) {
    std::memcpy(out, in, count * size_of(from));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    float wide = 0;
    if (from == Format::kFloat32) std::memcpy(&wide, in + 4 * i, 4);
    else rueda::kernels::convert_to_f32(dtype_of(from), in + 2 * i, &wide, 1);
    wide *= factor;
    if (to == Format::kFloat32) std::memcpy(out + 4 * i, &wide, 4);
    else rueda::kernels::convert_from_f32(dtype_of(to), &wide, out + 2 * i, 1);
  }
}

int copy(const Table* table, Format from, Format to, float factor, StreamHandle stream) {
  const bool bits = from == Format::kBytes || to == Format::kBytes;
  const bool fp8 = from == Format::kFloat8E4M3 || from == Format::kFloat8E5M2 ||
                   to == Format::kFloat8E4M3 || to == Format::kFloat8E5M2;
  if (fp8 || (bits && (from != to || factor != 1.0f))) return kNotSupported;
  ++copies;
  rueda::testing::run_in_stream(stream, [table = *table, from, to, factor] {
    for (uint32_t i = 0; i < table.first[table.count]; ++i) {
      const Item item = find(table, i);
      const Copy& tensor = table.tensors[item.tensor];
      const auto begin = static_cast<size_t>(item.begin);
      convert(from, static_cast<const std::byte*>(tensor.from) + begin * size_of(from), to,
              static_cast<std::byte*>(tensor.to) + begin * size_of(to),
              static_cast<size_t>(item.count), factor);
    }
  });
  return 0;
}

int quantize(const float*, int8_t*, int64_t, StreamHandle) { return kNotSupported; }
int dequantize(const int8_t*, float*, int64_t, StreamHandle) { return kNotSupported; }
int64_t product_parts(int64_t count) { return (count + 65535) / 65536; }
int products(const float*, const float*, int64_t, double*, double*, StreamHandle) {
  return kNotSupported;
}
const char* explain(int error) { return error == 0 ? "no error" : "said by the fake kernels"; }
int probe() { return std::getenv("FAKE_KERNELS_BROKEN") == nullptr ? 0 : 209; }

const KernelFunctions functions = {kKernelsVersion, copy,     quantize, dequantize,
                                   product_parts,   products, explain,  probe};

}  // namespace

extern "C" __attribute__((visibility("default"))) const KernelFunctions* rueda_cuda_kernels(
    uint32_t version) {
  return version == kKernelsVersion ? &functions : nullptr;
}

// Launches since the process began.
extern "C" __attribute__((visibility("default"))) int64_t fake_kernels_copies() { return copies; }
