// The element-wise operations: prepare(input), combine(so far, next prepared input), result().
//
// min and max of floats give NaN when any input is NaN, and order -0 below +0: the result does not
// depend on the order of the inputs. Integers wrap around: sums and products work on unsigned
// lanes.
#if defined(RUEDA_KERNELS_COMBINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_KERNELS_COMBINE_INL_H_
#undef RUEDA_KERNELS_COMBINE_INL_H_
#else
#define RUEDA_KERNELS_COMBINE_INL_H_
#endif

#include "collectives/kernels/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::kernels::HWY_NAMESPACE {

struct AsIs {
  template <class D>
  static HWY_INLINE hn::Vec<D> prepare(D, hn::Vec<D> x) {
    return x;
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> result(D, hn::Vec<D> x) {
    return x;
  }
};

struct Sum : AsIs {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Add(a, b);
  }
};

struct Product : AsIs {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D d, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (sizeof(hn::TFromD<D>) == 1) {
      return multiply_bytes(d, a, b);
    } else {
      return hn::Mul(a, b);
    }
  }

 private:
  // There is no 8-bit multiplication: odd and even bytes are multiplied as 16-bit lanes.
  template <class D>
  static HWY_INLINE hn::Vec<D> multiply_bytes(D d, hn::Vec<D> a, hn::Vec<D> b) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<uint8_t>(hn::GetLane(a) * hn::GetLane(b)));
#else
    const hn::Repartition<uint16_t, D> d16;
    const auto a16 = hn::BitCast(d16, a);
    const auto b16 = hn::BitCast(d16, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, uint16_t{0x00ff}));
    const auto odd = hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16));
    return hn::BitCast(d, hn::Or(even, hn::ShiftLeft<8>(odd)));
#endif
  }
};

struct IntegerMin : AsIs {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Min(a, b);
  }
};

struct IntegerMax : AsIs {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Max(a, b);
  }
};

// Both orders of "a < b ? a : b" differ only where a and b are zeros of different sign or one is
// NaN; there the union of their bits is -0, or a NaN.
struct FloatMin : AsIs {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Or(hn::IfThenElse(hn::Lt(a, b), a, b), hn::IfThenElse(hn::Lt(b, a), b, a));
  }
};

// max(x) is -min(-x).
struct FloatMax : FloatMin {
  template <class D>
  static HWY_INLINE hn::Vec<D> prepare(D, hn::Vec<D> x) {
    return hn::Neg(x);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> result(D, hn::Vec<D> x) {
    return hn::Neg(x);
  }
};

struct BitAnd : AsIs {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::And(a, b);
  }
};

struct BitOr : AsIs {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Or(a, b);
  }
};

struct BitXor : AsIs {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Xor(a, b);
  }
};

// bool: any byte but 0 is true, results are 0 and 1.
struct LogicalOr : BitOr {
  template <class D>
  static HWY_INLINE hn::Vec<D> result(D d, hn::Vec<D> x) {
    return hn::Min(x, hn::Set(d, uint8_t{1}));
  }
};

// Of inputs made 0 and 1 first.
template <class Bitwise>
struct Logical : Bitwise {
  template <class D>
  static HWY_INLINE hn::Vec<D> prepare(D d, hn::Vec<D> x) {
    return hn::Min(x, hn::Set(d, uint8_t{1}));
  }
};
using LogicalAnd = Logical<BitAnd>;
using LogicalXor = Logical<BitXor>;

}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_KERNELS_COMBINE_INL_H_
