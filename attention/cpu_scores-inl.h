// What becomes of scores before the softmax: softcap, cap * tanh(score / cap), and after it ALiBi,
// -slope * |place of the query - place of the key|; flash-attention's order.
#if defined(RUEDA_ATTENTION_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_ATTENTION_CPU_SCORES_INL_H_
#undef RUEDA_ATTENTION_CPU_SCORES_INL_H_
#else
#define RUEDA_ATTENTION_CPU_SCORES_INL_H_
#endif

#include "attention/cpu_blocks-inl.h"
#include "hwy/highway.h"

RUEDA_ATTENTION_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

HWY_INLINE bool changes_scores(const KernelTile& tile) {
  return tile.softcap != 0 || tile.slopes != nullptr;
}

struct Tanh {
  V value, slope;
};
// With e = exp(-2 |x|): (1 - e) / (1 + e), and 4 e / (1 + e)^2, which is 0 beyond |x| = 43. Near 0,
// where 1 - e has lost digits, the polynomial of Cephes' tanhf. NaN stays NaN.
HWY_INLINE Tanh tanh_of(V x) {
  const F d;
  const V one = hn::Set(d, 1.0f);
  const V size = hn::Abs(x);
  const V e = exp_of(hn::Mul(size, hn::Set(d, -2.0f)));
  const V below = hn::Div(one, hn::Add(one, e));
  const V square = hn::Mul(x, x);
  V p = hn::Set(d, -5.70498872745e-3f);
  p = hn::MulAdd(p, square, hn::Set(d, 2.06390887954e-2f));
  p = hn::MulAdd(p, square, hn::Set(d, -5.37397155531e-2f));
  p = hn::MulAdd(p, square, hn::Set(d, 1.33314422036e-1f));
  p = hn::MulAdd(p, square, hn::Set(d, -3.33332819422e-1f));
  const V small = hn::MulAdd(hn::Mul(p, square), x, x);
  const V large = hn::CopySign(hn::Mul(hn::Sub(one, e), below), x);
  const V slope = hn::Mul(hn::Set(d, 4.0f), hn::Mul(e, hn::Mul(below, below)));
  return {hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.625f)), small, large), slope};
}

// `factor` times s[begin, end), the scores of the query `query` of the tile; whole vectors. s[0] is
// of the key `first`.
// slopes, where not null: gets by how much each grows with the score that it was.
HWY_INLINE void change_row(const KernelTile& tile, int64_t head, int64_t query, int64_t first,
                           int64_t begin, int64_t end, float factor, float* s, float* slopes) {
  const F d;
  const float cap = tile.softcap, alibi = tile.slopes == nullptr ? 0.0f : tile.slopes[head];
  const V inverse = hn::Set(d, cap == 0 ? 0.0f : 1.0f / cap);
  const V steps = hn::Mul(hn::Iota(d, 0.0f), hn::Set(d, static_cast<float>(tile.k_step)));
  // Of s[0].
  const int64_t apart = tile.k_pos + first * tile.k_step - (tile.q_pos + query * tile.q_step);
  for (int64_t j = begin; j < end; j += kLanes) {
    V score = hn::Mul(load(s + j), hn::Set(d, factor));
    V slope = hn::Set(d, 1.0f);
    if (cap != 0) {
      const Tanh capped = tanh_of(hn::Mul(score, inverse));
      score = hn::Mul(capped.value, hn::Set(d, cap));
      slope = capped.slope;
    }
    if (alibi != 0) {
      const V distance = hn::Add(hn::Set(d, static_cast<float>(apart + j * tile.k_step)), steps);
      score = hn::NegMulAdd(hn::Abs(distance), hn::Set(d, alibi), score);
    }
    store(score, s + j);
    if (slopes != nullptr) store(slope, slopes + j);
  }
}

}  // namespace rueda::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_ATTENTION_CPU_SCORES_INL_H_
