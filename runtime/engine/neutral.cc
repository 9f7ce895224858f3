#include "runtime/engine/neutral.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <new>

#include "runtime/negotiation/agreement.h"

namespace rueda::engine {
namespace {

std::shared_ptr<std::byte[]> allocate(size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  auto* memory = static_cast<std::byte*>(::operator new[](std::max<size_t>(bytes, 1), kAlignment));
  return {memory, [](std::byte* gone) { ::operator delete[](gone, std::align_val_t(64)); }};
}

template <typename T>
void repeat(T value, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i) std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
T extreme(bool largest) {
  if constexpr (std::numeric_limits<T>::has_infinity) {
    return largest ? std::numeric_limits<T>::infinity() : -std::numeric_limits<T>::infinity();
  } else {
    return largest ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest();
  }
}

template <typename T>
void fill_with(ReduceOp op, bool largest, size_t count, std::byte* to) {
  repeat(op == ReduceOp::kProduct ? T{1} : extreme<T>(largest), count, to);
}

// By their bits. float8_e4m3fn has no infinity, its largest number stands for it.
template <typename Bits>
void fill_bits(ReduceOp op, bool largest, Bits one, Bits infinity, size_t count, std::byte* to) {
  constexpr int kSign = 1 << (8 * sizeof(Bits) - 1);
  const auto extreme = static_cast<Bits>(largest ? infinity : infinity | kSign);
  repeat(op == ReduceOp::kProduct ? one : extreme, count, to);
}

}  // namespace

void fill_neutral(DType dtype, ReduceOp op, double prescale, size_t count, std::byte* to) {
  const bool zero = op != ReduceOp::kMin && op != ReduceOp::kMax && op != ReduceOp::kProduct &&
                    op != ReduceOp::kBitwiseAnd;
  if (op == ReduceOp::kBitwiseAnd) {  // all bits; any byte but 0 is a true bool
    std::memset(to, 0xff, count * size_of(dtype));
    return;
  }
  // Times zero everything is zero; infinity would be no number.
  if (zero || prescale == 0) {
    std::memset(to, 0, count * size_of(dtype));
    return;
  }
  const bool largest = (op == ReduceOp::kMin) == (prescale > 0);
  switch (dtype) {
    case DType::kBool: return repeat<uint8_t>(op == ReduceOp::kMax ? 0 : 1, count, to);
    case DType::kUInt8: return fill_with<uint8_t>(op, largest, count, to);
    case DType::kUInt16: return fill_with<uint16_t>(op, largest, count, to);
    case DType::kUInt32: return fill_with<uint32_t>(op, largest, count, to);
    case DType::kUInt64: return fill_with<uint64_t>(op, largest, count, to);
    case DType::kInt8: return fill_with<int8_t>(op, largest, count, to);
    case DType::kInt16: return fill_with<int16_t>(op, largest, count, to);
    case DType::kInt32: return fill_with<int32_t>(op, largest, count, to);
    case DType::kInt64: return fill_with<int64_t>(op, largest, count, to);
    case DType::kFloat16: return fill_bits<uint16_t>(op, largest, 0x3c00, 0x7c00, count, to);
    case DType::kBFloat16: return fill_bits<uint16_t>(op, largest, 0x3f80, 0x7f80, count, to);
    case DType::kFloat8E4M3: return fill_bits<uint8_t>(op, largest, 0x38, 0x7e, count, to);
    case DType::kFloat8E5M2: return fill_bits<uint8_t>(op, largest, 0x3c, 0x7c, count, to);
    case DType::kFloat32: return fill_with<float>(op, largest, count, to);
    case DType::kFloat64: return fill_with<double>(op, largest, count, to);
    case DType::kComplex64: return repeat<std::complex<float>>(1, count, to);  // a product's
    case DType::kComplex128: return repeat<std::complex<double>>(1, count, to);
  }
}

RequestPtr make_neutral(const wire::Request& announcement, std::shared_ptr<ProcessSet> set) {
  auto request = std::make_shared<Request>(negotiation::title_of(announcement));
  request->announcement = announcement;
  request->set = std::move(set);
  (void)request->claim();  // it has no name, so nobody else has it
  const bool reduces = announcement.kind == CollectiveKind::kAllreduce ||
                       announcement.kind == CollectiveKind::kReducescatter;
  if (!reduces) return request;  // nothing goes in; what comes out is the request's
  const auto count = static_cast<size_t>(element_count(announcement.shape));
  request->own = allocate(count * size_of(announcement.dtype));
  fill_neutral(announcement.dtype, announcement.reduce_op, announcement.prescale, count,
               request->own.get());
  request->in = request->own.get();
  if (announcement.kind == CollectiveKind::kAllreduce) request->out = request->own.get();
  return request;
}

}  // namespace rueda::engine
