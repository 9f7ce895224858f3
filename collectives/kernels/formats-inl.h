// How each dtype travels between memory and registers, two vectors of working lanes at a time.
//
// A format says: Lane (what is combined), kSize (bytes of an element in memory), kBytes (bytes in
// memory of one Pair), load and save. 16-bit floats are combined as f32.
#if defined(RUEDA_KERNELS_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_KERNELS_FORMATS_INL_H_
#undef RUEDA_KERNELS_FORMATS_INL_H_
#else
#define RUEDA_KERNELS_FORMATS_INL_H_
#endif

#include "collectives/kernels/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::kernels::HWY_NAMESPACE {

template <typename Lane>
using Tag = hn::ScalableTag<Lane>;

template <typename Lane>
inline constexpr size_t kVectorBytes = hn::MaxLanes(Tag<Lane>()) * sizeof(Lane);

template <typename LaneType>
struct Pair {
  using Lane = LaneType;
  hn::Vec<Tag<Lane>> a;
  hn::Vec<Tag<Lane>> b;
};

template <typename LaneType>
struct Plain {
  using Lane = LaneType;
  static constexpr size_t kSize = sizeof(Lane);
  static constexpr size_t kBytes = 2 * kVectorBytes<Lane>;

  static HWY_INLINE Pair<Lane> load_pair(const std::byte* from) {
    const Tag<Lane> d;
    return {load(d, from), load(d, from + kVectorBytes<Lane>)};
  }
  static HWY_INLINE void save_pair(Pair<Lane> p, std::byte* to) {
    const Tag<Lane> d;
    store(d, p.a, to);
    store(d, p.b, to + kVectorBytes<Lane>);
  }
};

struct Float16 {
  using Lane = float;
  static constexpr size_t kSize = 2;
  static constexpr size_t kBytes = kVectorBytes<float>;

  static HWY_INLINE Pair<float> load_pair(const std::byte* from) {
    const Tag<float> d;
    return {Float16Codec::widen(d, from), Float16Codec::widen(d, from + kBytes / 2)};
  }
  static HWY_INLINE void save_pair(Pair<float> p, std::byte* to) {
    const Tag<float> d;
    Float16Codec::narrow(d, p.a, to);
    Float16Codec::narrow(d, p.b, to + kBytes / 2);
  }
};

// Two bf16 share each 32-bit lane: `a` holds the lower ones, `b` the upper ones, so that neither
// way needs a shuffle. Elements do not meet each other, hence the order does not matter.
struct BFloat16 {
  using Lane = float;
  static constexpr size_t kSize = 2;
  static constexpr size_t kBytes = kVectorBytes<float>;

  static HWY_INLINE Pair<float> load_pair(const std::byte* from) {
    const Tag<float> d;
    const Tag<uint32_t> du;
    const auto both = load(du, from);
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)),
            hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)))};
  }
  static HWY_INLINE void save_pair(Pair<float> p, std::byte* to) {
    const Tag<float> d;
    const Tag<uint32_t> du;
    const auto lower = hn::ShiftRight<16>(BFloat16Codec::round_upper(d, p.a));
    const auto upper = hn::And(BFloat16Codec::round_upper(d, p.b), hn::Set(du, 0xffff0000u));
    store(du, hn::Or(lower, upper), to);
  }
};

}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_KERNELS_FORMATS_INL_H_
