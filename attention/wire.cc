#include "attention/wire.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "collectives/kernels/kernels.h"

namespace rueda::attention {
namespace {

constexpr float kLargest = 127;

void quantise(const float* from, int64_t count, std::byte* to, std::byte* scale_to) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(from[i]));
  const float scale = largest / kLargest;
  // The smallest denormals have no inverse; a block of them is zeros.
  const float inverse = largest > 1e-36f ? kLargest / largest : 0;
  for (int64_t i = 0; i < count; ++i) {
    const float x = std::clamp(std::nearbyint(from[i] * inverse), -kLargest, kLargest);
    to[i] = static_cast<std::byte>(static_cast<int8_t>(x));
  }
  std::memcpy(scale_to, &scale, sizeof scale);
}

void dequantise(const std::byte* from, int64_t count, const std::byte* scale_from, float* to) {
  float scale;
  std::memcpy(&scale, scale_from, sizeof scale);
  for (int64_t i = 0; i < count; ++i)
    to[i] = static_cast<float>(static_cast<int8_t>(from[i])) * scale;
}

// Copies `count` elements, whole blocks, of a tensor into the message.
struct Pack {
  const AttentionSpec& spec;
  const std::byte* from;
  std::byte* to;
  std::byte* scales;
  void operator()(int64_t at, int64_t into, int64_t count) const {
    const auto bytes = static_cast<int64_t>(size_of(spec.dtype));
    const std::byte* source = from + at * bytes;
    if (spec.kv_wire == spec.dtype) {
      std::memcpy(to + into * bytes, source, static_cast<size_t>(count * bytes));
      return;
    }
    if (spec.kv_wire != DType::kInt8) {
      kernels::convert_from_f32(spec.kv_wire, reinterpret_cast<const float*>(source), to + 2 * into,
                                static_cast<size_t>(count));
      return;
    }
    std::array<float, 256> wide;
    const int64_t d = spec.head_dim;
    for (int64_t i = 0; i < count; i += d, source += d * bytes) {
      const auto* block = reinterpret_cast<const float*>(source);
      if (bytes == 2) {
        kernels::convert_to_f32(spec.dtype, source, wide.data(), static_cast<size_t>(d));
        block = wide.data();
      }
      quantise(block, d, to + into + i, scales + (into + i) / d * 4);
    }
  }
};

}  // namespace

int64_t wire_bytes(const AttentionSpec& spec) {
  const int64_t elements = spec.head_dim * static_cast<int64_t>(size_of(spec.kv_wire));
  return 2 * (elements + (spec.kv_wire == DType::kInt8 ? 4 : 0));
}

DType computed_as(const AttentionSpec& spec) {
  return spec.kv_wire == DType::kInt8 ? DType::kFloat32 : spec.kv_wire;
}

void pack_keys(const AttentionSpec& spec, const Geometry& there, const Geometry& local,
               const std::byte* k, const std::byte* v, std::byte* message) {
  const int64_t elements = there.elements();
  const int64_t bytes = elements * static_cast<int64_t>(size_of(spec.kv_wire));
  std::byte* scales = message + 2 * bytes;
  there.each_row(local, Pack{spec, k, message, scales});
  there.each_row(local, Pack{spec, v, message + bytes, scales + elements / spec.head_dim * 4});
}

ReceivedKeys unpack_keys(const AttentionSpec& spec, int64_t elements, const std::byte* message,
                         float* scratch) {
  if (spec.kv_wire != DType::kInt8) {
    const int64_t bytes = elements * static_cast<int64_t>(size_of(spec.kv_wire));
    return {message, message + bytes, spec.kv_wire};
  }
  const int64_t d = spec.head_dim;
  for (int64_t i = 0; i < 2 * elements; i += d)
    dequantise(message + i, d, message + 2 * elements + i / d * 4, scratch + i);
  const auto* bytes = reinterpret_cast<const std::byte*>(scratch);
  return {bytes, bytes + elements * 4, DType::kFloat32};
}

}  // namespace rueda::attention
