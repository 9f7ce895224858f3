#include "collectives/nccl/device_packing.h"

#include "collectives/base/rounding.h"

namespace rueda::nccl {
namespace {

using cuda::kernels::Copy;
using cuda::kernels::Format;

constexpr size_t kFewest = 2;                            // tensors
constexpr int64_t kLargestOnAverage = int64_t{4} << 20;  // bytes: larger ones stay where they lie
constexpr int64_t kAlignment = 16;                       // bytes, of the kernels' accesses

// Bits are moved whatever they mean: only the size of an element counts.
Format format_of(int64_t element) {
  return element == 4 ? Format::kFloat32 : element == 2 ? Format::kBFloat16 : Format::kBytes;
}

}  // namespace

std::optional<Packing> plan_packing(std::span<const Part> parts, DType dtype, std::byte* buffer) {
  if (parts.size() < kFewest) return std::nullopt;
  const auto element = static_cast<int64_t>(size_of(dtype));
  Packing packing;
  packing.format = format_of(element);
  const auto unit = packing.format == Format::kBytes ? element : 1;
  std::vector<Copy> in;
  std::vector<Copy> out;
  int64_t bytes = 0;
  for (const Part& part : parts) {
    const int64_t length = part.count * element;
    if (length > static_cast<int64_t>(kPackBytes) - bytes) return std::nullopt;
    in.push_back({part.in, buffer + bytes, part.count * unit});
    out.push_back({buffer + bytes, part.out, part.count * unit});
    bytes += round_up(length, kAlignment);
  }
  if (bytes > static_cast<int64_t>(kPackBytes) ||
      bytes > kLargestOnAverage * static_cast<int64_t>(parts.size())) {
    return std::nullopt;
  }
  packing.count = bytes / element;
  const auto size = static_cast<size_t>(packing.format == Format::kBytes ? 1 : element);
  packing.in = cuda::kernels::plan(in, size, size);
  packing.out = cuda::kernels::plan(out, size, size);
  return packing;
}

}  // namespace rueda::nccl
