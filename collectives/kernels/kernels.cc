#include "collectives/kernels/kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "collectives/base/check.h"
#include "collectives/kernels/complex_product.h"
#include "collectives/kernels/dispatch.h"
#include "collectives/kernels/integer_finish.h"

namespace rueda::kernels {
namespace {

// Results that need a second pass are made in blocks of this many bytes: they stay in the
// first-level cache between the passes.
constexpr size_t kBlockBytes = 8192;

Combine combine_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum: return kCombineSum;
    case ReduceOp::kProduct: return kCombineProduct;
    case ReduceOp::kMin: return kCombineMin;
    case ReduceOp::kMax: return kCombineMax;
    case ReduceOp::kBitwiseAnd: return kCombineAnd;
    case ReduceOp::kBitwiseOr: return kCombineOr;
    case ReduceOp::kBitwiseXor: return kCombineXor;
    case ReduceOp::kAdasum: break;  // not element by element
  }
  RUEDA_CHECK(false, "unknown reduction");
}

ReduceFunction function_for(DType dtype, Combine combine) {
  RUEDA_CHECK(is_valid(dtype) && !is_float8(dtype) && !is_complex(dtype), "no such loop");
  return target_in_use().table->reduce[static_cast<size_t>(dtype)][combine];
}

void copy(DType dtype, const std::byte* in, std::byte* out, size_t count) {
  if (in != out && count != 0) std::memcpy(out, in, count * size_of(dtype));
}

// out = in * factor for floats: the reduction of one input.
void scale_floats(DType dtype, const std::byte* in, std::byte* out, size_t count, double factor) {
  function_for(dtype, kCombineSum)(&in, 1, out, 0, count, factor);
}

// Reduces block by block; finish_block(out of the block, elements) then works in place.
template <typename FinishBlock>
void reduce_in_blocks(DType dtype, Combine combine, std::span<const std::byte* const> inputs,
                      std::byte* out, size_t count, FinishBlock finish_block) {
  const ReduceFunction function = function_for(dtype, combine);
  const size_t size = size_of(dtype);
  const size_t block = kBlockBytes / size;
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t n = std::min(block, count - begin);
    function(inputs.data(), inputs.size(), out, begin, n, 1.0);
    finish_block(out + begin * size, n);
  }
}

}  // namespace

void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs, std::byte* out,
            size_t count, const Finish& finish) {
  RUEDA_CHECK(!inputs.empty(), "a reduction has at least one input");
  RUEDA_CHECK(finish.divisor == 1 || is_integer(dtype), "only integers have a divisor");
  const bool plain = finish.factor == 1.0 && finish.divisor == 1;
  RUEDA_CHECK(plain || dtype != DType::kBool, "bool has no factor");
  const Combine combine = combine_of(op);
  if (count == 0) return;
  if (is_complex(dtype)) {
    RUEDA_CHECK(has_reduction(dtype, op), "complex numbers have no such reduction");
    if (op == ReduceOp::kProduct && inputs.size() > 1)
      return multiply_complex(dtype, inputs, out, count, finish.factor);
    count *= 2;
    dtype = component_of(dtype);
  }
  if (is_bitwise(op) && dtype != DType::kBool) {
    RUEDA_CHECK(plain && is_integer(dtype), "bits are those of integers, unscaled");
    count *= size_of(dtype);
    dtype = DType::kUInt8;
  }
  if (plain && inputs.size() == 1 && dtype != DType::kBool) {
    copy(dtype, inputs[0], out, count);
  } else if (!plain && is_integer(dtype)) {
    reduce_in_blocks(dtype, combine, inputs, out, count, [&](std::byte* block, size_t n) {
      finish_integers(dtype, block, block, n, finish.divisor, finish.factor);
    });
  } else if (!plain && finish.round_first && size_of(dtype) == 2) {
    reduce_in_blocks(dtype, combine, inputs, out, count, [&](std::byte* block, size_t n) {
      scale_floats(dtype, block, block, n, finish.factor);
    });
  } else {
    function_for(dtype, combine)(inputs.data(), inputs.size(), out, 0, count, finish.factor);
  }
}

void scaled_copy(DType dtype, const std::byte* in, std::byte* out, size_t count, double factor) {
  if (factor == 1.0) return copy(dtype, in, out, count);
  RUEDA_CHECK(dtype != DType::kBool, "bool has no factor");
  if (count == 0) return;
  if (is_complex(dtype)) {
    scale_floats(component_of(dtype), in, out, count * 2, factor);
  } else if (is_integer(dtype)) {
    finish_integers(dtype, in, out, count, 1, factor);
  } else {
    scale_floats(dtype, in, out, count, factor);
  }
}

void copy_streaming(const std::byte* in, std::byte* out, size_t bytes) {
#if defined(__SSE2__)
  const size_t head = std::min(bytes, (64 - reinterpret_cast<uintptr_t>(out) % 64) % 64);
  std::memcpy(out, in, head);
  size_t at = head;
  for (; bytes - at >= 64; at += 64) {  // whole lines
    const auto* from = reinterpret_cast<const __m128i*>(in + at);
    auto* to = reinterpret_cast<__m128i*>(out + at);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();  // such stores are not ordered by a release store
  std::memcpy(out + at, in + at, bytes - at);
#else
  if (bytes != 0) std::memcpy(out, in, bytes);
#endif
}

void convert_to_f32(DType from, const std::byte* in, float* out, size_t count) {
  const TargetTable& table = *target_in_use().table;
  auto* bytes = reinterpret_cast<std::byte*>(out);
  switch (from) {
    case DType::kFloat16: return table.f16_to_f32(in, bytes, count);
    case DType::kBFloat16: return table.bf16_to_f32(in, bytes, count);
    default: RUEDA_CHECK(false, "conversions are between f32 and 16-bit floats");
  }
}

void convert_from_f32(DType to, const float* in, std::byte* out, size_t count) {
  const TargetTable& table = *target_in_use().table;
  const auto* bytes = reinterpret_cast<const std::byte*>(in);
  switch (to) {
    case DType::kFloat16: return table.f32_to_f16(bytes, out, count);
    case DType::kBFloat16: return table.f32_to_bf16(bytes, out, count);
    default: RUEDA_CHECK(false, "conversions are between f32 and 16-bit floats");
  }
}

}  // namespace rueda::kernels
