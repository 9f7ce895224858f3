#include "collectives/kernels/integer_finish.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "collectives/base/check.h"

namespace rueda::kernels {
namespace {

// n / d for 0 <= n <= 2^63 and 2 <= d < 2^63 as one multiplication and one shift.
//
// With 2^(l-1) < d <= 2^l and m = floor(2^(63+l) / d) + 1, m*d = 2^(63+l) + e with 0 < e <= d, so
// n*m / 2^(63+l) = n/d + (n / 2^63) * (e / 2^l) / d. The second term is below 1/d, except for
// d = 2^l and n = 2^63, where it is 1/d and n/d is whole: either way the floor is that of n/d.
// m < 2^64 because 2^(63+l) / d < 2^64. (Granlund and Montgomery, "Division by invariant integers
// using multiplication", 1994.)
class Reciprocal {
 public:
  explicit Reciprocal(uint64_t d) {
    while ((uint64_t{1} << shift_) < d) ++shift_;
    multiplier_ = static_cast<uint64_t>((static_cast<Wide>(1) << (63 + shift_)) / d) + 1;
    --shift_;  // 63 + l = 64 + (l - 1)
  }
  uint64_t divide(uint64_t n) const {
    return static_cast<uint64_t>((static_cast<Wide>(n) * multiplier_) >> 64) >> shift_;
  }

 private:
  __extension__ using Wide = unsigned __int128;
  uint64_t multiplier_ = 0;
  int shift_ = 0;
};

// Division by one divisor, truncating toward zero.
template <typename T>
class Division {
 public:
  explicit Division(uint64_t divisor) : reciprocal_(divisor) {}
  T of(T value) const {
    const int64_t wide = value;
    const uint64_t sign = wide < 0 ? ~uint64_t{0} : 0;
    const uint64_t magnitude = (static_cast<uint64_t>(wide) ^ sign) - sign;
    return static_cast<T>((reciprocal_.divide(magnitude) ^ sign) - sign);
  }

 private:
  Reciprocal reciprocal_;
};

// Beyond 2^63 the multiplier would need one bit more.
template <>
class Division<uint64_t> {
 public:
  explicit Division(uint64_t divisor) : divisor_(divisor) {}
  uint64_t of(uint64_t value) const { return value / divisor_; }

 private:
  uint64_t divisor_;
};

template <typename T>
T scale(T value, double factor) {
  // 2^bits, the first value that does not fit; max itself may not be representable in f64.
  constexpr double kAbove = 2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
  constexpr double kLowest = static_cast<double>(std::numeric_limits<T>::min());
  const double product = static_cast<double>(value) * factor;
  if (product >= kAbove) return std::numeric_limits<T>::max();
  if (product <= kLowest) return std::numeric_limits<T>::min();
  return std::isnan(product) ? T{0} : static_cast<T>(product);
}

template <typename T, typename Map>
void for_each(const std::byte* in, std::byte* out, size_t count, Map map) {
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, in + i * sizeof(T), sizeof(T));
    value = map(value);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename T>
void finish(const std::byte* in, std::byte* out, size_t count, int64_t divisor, double factor) {
  if (divisor != 1) {
    const Division<T> division(static_cast<uint64_t>(divisor));
    if (factor != 1.0) {
      for_each<T>(in, out, count, [&](T v) { return scale(division.of(v), factor); });
    } else {
      for_each<T>(in, out, count, [&](T v) { return division.of(v); });
    }
  } else if (factor != 1.0) {
    for_each<T>(in, out, count, [&](T v) { return scale(v, factor); });
  } else if (in != out) {
    std::memcpy(out, in, count * sizeof(T));
  }
}

}  // namespace

void finish_integers(DType dtype, const std::byte* in, std::byte* out, size_t count,
                     int64_t divisor, double factor) {
  RUEDA_CHECK(divisor >= 1, "the divisor of an average is at least 1");
  switch (dtype) {
    case DType::kUInt8: return finish<uint8_t>(in, out, count, divisor, factor);
    case DType::kUInt16: return finish<uint16_t>(in, out, count, divisor, factor);
    case DType::kUInt32: return finish<uint32_t>(in, out, count, divisor, factor);
    case DType::kUInt64: return finish<uint64_t>(in, out, count, divisor, factor);
    case DType::kInt8: return finish<int8_t>(in, out, count, divisor, factor);
    case DType::kInt16: return finish<int16_t>(in, out, count, divisor, factor);
    case DType::kInt32: return finish<int32_t>(in, out, count, divisor, factor);
    case DType::kInt64: return finish<int64_t>(in, out, count, divisor, factor);
    default: RUEDA_CHECK(false, "only integers are finished this way");
  }
}

}  // namespace rueda::kernels
