// fake_kernels.so: what librueda_cuda.so exports, computed on the host in the fake driver's
// streams: the kernels' reference. Works item by item as thread blocks do.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "collectives/cuda/kernels/functions.h"
#include "collectives/kernels/adasum.h"
#include "collectives/kernels/kernels.h"
#include "tests/support/host_work.h"

namespace {

using namespace rueda::cuda::kernels;
using rueda::cuda::StreamHandle;

constexpr int kNotSupported = 801;
std::atomic<int64_t> copies{0};
std::atomic<int64_t> conversions{0};
std::atomic<int64_t> combined{0};

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

void convert(Format from, const std::byte* in, Format to, std::byte* out, size_t count,
             float factor) {
  if (from == to && factor == 1.0f) {
    std::memcpy(out, in, count * size_of(from));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    float wide = 0;
    if (from == Format::kFloat32)
      std::memcpy(&wide, in + 4 * i, 4);
    else
      rueda::kernels::convert_to_f32(dtype_of(from), in + 2 * i, &wide, 1);
    wide *= factor;
    if (to == Format::kFloat32)
      std::memcpy(out + 4 * i, &wide, 4);
    else
      rueda::kernels::convert_from_f32(dtype_of(to), &wide, out + 2 * i, 1);
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

constexpr int64_t kBlock = 256;
constexpr int64_t kWireBlock = kBlock + 4;

// A block whose largest number is not finite is NaN.
int quantize(const float* from, int8_t* to, int64_t blocks, StreamHandle stream) {
  ++conversions;
  rueda::testing::run_in_stream(stream, [=] {
    for (int64_t block = 0; block < blocks; ++block) {
      const float* const in = from + block * kBlock;
      int8_t* const out = to + block * kWireBlock;
      float scale = 0;
      for (int64_t i = 0; i < kBlock; ++i) scale = std::max(scale, std::fabs(in[i]) / 127.0f);
      if (!std::all_of(in, in + kBlock, [](float x) { return std::isfinite(x); })) scale = NAN;
      for (int64_t i = 0; i < kBlock; ++i)
        out[i] =
            scale > 0
                ? static_cast<int8_t>(std::clamp(std::nearbyint(in[i] / scale), -127.0f, 127.0f))
                : int8_t{0};
      std::memcpy(out + kBlock, &scale, sizeof(scale));
    }
  });
  return 0;
}
int dequantize(const int8_t* from, float* to, int64_t blocks, StreamHandle stream) {
  ++conversions;
  rueda::testing::run_in_stream(stream, [=] {
    for (int64_t block = 0; block < blocks; ++block) {
      float scale = 0;
      std::memcpy(&scale, from + block * kWireBlock + kBlock, sizeof(scale));
      for (int64_t i = 0; i < kBlock; ++i)
        to[block * kBlock + i] = static_cast<float>(from[block * kWireBlock + i]) * scale;
    }
  });
  return 0;
}
int64_t product_parts(int64_t count) { return (count + 65535) / 65536; }
int products(const float* a, const float* b, int64_t count, double*, double* result,
             StreamHandle stream) {
  rueda::testing::run_in_stream(stream, [=] {
    const auto sums = rueda::kernels::products(a, b, static_cast<size_t>(count));
    result[0] = sums.dot;
    result[1] = sums.aa;
    result[2] = sums.bb;
  });
  return 0;
}
int weighted_sum(float* a, const float* b, int64_t count, const double* products, int32_t a_ranks,
                 int32_t b_ranks, StreamHandle stream) {
  rueda::testing::run_in_stream(stream, [=] {
    const auto weights =
        rueda::kernels::adasum_weights({products[0], products[1], products[2]}, a_ranks, b_ranks);
    rueda::kernels::weighted_sum(a, b, static_cast<size_t>(count), weights);
  });
  return 0;
}
int combine(const Combination* combination, StreamHandle stream) {
  ++combined;
  return with_format(combination->element,
                     [&](auto format) {
                       rueda::testing::run_in_stream(stream, [c = *combination] {
                         for (int64_t i = 0; i < c.count; ++i) combine_one<decltype(format)>(c, i);
                       });
                     })
             ? 0
             : kNotSupported;
}
const char* explain(int error) { return error == 0 ? "no error" : "said by the fake kernels"; }
int probe() { return std::getenv("FAKE_KERNELS_BROKEN") == nullptr ? 0 : 209; }

const KernelFunctions functions = {kKernelsVersion, copy,     quantize,     dequantize,
                                   product_parts,   products, weighted_sum, combine,
                                   explain,         probe};

}  // namespace

extern "C" __attribute__((visibility("default"))) const KernelFunctions* rueda_cuda_kernels(
    uint32_t version) {
  return version == kKernelsVersion ? &functions : nullptr;
}

// Launches since the process began.
extern "C" __attribute__((visibility("default"))) int64_t fake_kernels_copies() { return copies; }
extern "C" __attribute__((visibility("default"))) int64_t fake_kernels_combined() {
  return combined;
}
extern "C" __attribute__((visibility("default"))) int64_t fake_kernels_conversions() {
  return conversions;
}
