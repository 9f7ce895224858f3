#include "tests/attention/oracle.h"

#include <cmath>
#include <limits>

namespace rueda::testing {
using namespace attention;
namespace {

int64_t dilated_multiplicity(const AttentionSpec& spec, int64_t kv_head, int64_t i, int64_t j) {
  const Mask& mask = spec.mask;
  const auto pairs = static_cast<int64_t>(mask.segment_lengths.size());
  int64_t count = 0;
  int64_t group_begin = 0;
  for (int64_t p = 0; p < pairs; ++p) {
    const int64_t w = mask.segment_lengths[static_cast<size_t>(p)];
    const int64_t r = mask.dilation_rates[static_cast<size_t>(p)];
    int64_t head = kv_head, heads = spec.kv_heads;
    if (mask.split_heads) {
      heads = spec.kv_heads / pairs + (p < spec.kv_heads % pairs ? 1 : 0);
      head = kv_head - group_begin;
      group_begin += heads;
      if (head < 0 || head >= heads) continue;
    }
    const int64_t offset = mask.head_offset == HeadOffset::kModulo ? head % r : head * r / heads;
    if (i / w == j / w && i % w % r == offset && j % w % r == offset) ++count;
  }
  return count;
}

struct Shape4 {
  int64_t tokens, heads, width;
  size_t at(int64_t b, int64_t t, int64_t h) const {
    return static_cast<size_t>(((b * tokens + t) * heads + h) * width);
  }
};

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

namespace {

// Of query i among the keys.
int64_t place_of(const AttentionSpec& spec, int64_t i) {
  for (size_t s = 1; s < spec.mask.cu_seqlens.size(); ++s) {
    const auto& ends =
        spec.mask.cu_seqlens_k.empty() ? spec.mask.cu_seqlens : spec.mask.cu_seqlens_k;
    if (i < spec.mask.cu_seqlens[s]) return i + ends[s] - spec.mask.cu_seqlens[s];
  }
  return i + spec.keys() - spec.length;
}

}  // namespace

int64_t multiplicity(const AttentionSpec& spec, int64_t kv_head, int64_t i, int64_t j) {
  const Mask& mask = spec.mask;
  for (size_t s = 1; s < mask.cu_seqlens.size(); ++s) {
    const auto& ends = mask.cu_seqlens_k.empty() ? mask.cu_seqlens : mask.cu_seqlens_k;
    if (i >= mask.cu_seqlens[s]) continue;
    if (j < ends[s - 1] || j >= ends[s]) return 0;
    break;
  }
  const int64_t place = place_of(spec, i);
  if (mask.causal && j > place) return 0;
  if (mask.left >= 0 && place - j > mask.left) return 0;
  if (mask.right >= 0 && j - place > mask.right) return 0;
  const int64_t selected =
      mask.segment_lengths.empty() ? 1 : dilated_multiplicity(spec, kv_head, i, j);
  if (mask.block > 0) {
    const int64_t rows = (spec.length + mask.block - 1) / mask.block;
    const int64_t head = mask.block_heads == 1 ? 0 : kv_head;
    const int64_t at = (head * rows + i / mask.block) * rows + j / mask.block;
    return mask.blocks[static_cast<size_t>(at)] != 0 ? selected : 0;
  }
  return selected;
}

namespace {

// A score as the softmax gets it, and by how much it grows with scale * q.k.
struct Score {
  double value, slope;
};
Score score_of(const AttentionSpec& spec, int64_t b, int64_t h, int64_t i, int64_t j, double s) {
  double slope = 1;
  if (spec.softcap != 0) {
    const double t = std::tanh(s / spec.softcap);
    s = spec.softcap * t;
    slope = 1 - t * t;
  }
  if (!spec.alibi_slopes.empty()) {
    const bool each = std::ssize(spec.alibi_slopes) > spec.heads;
    const auto at = static_cast<size_t>((each ? b * spec.heads : 0) + h);
    s -= static_cast<double>(spec.alibi_slopes[at]) *
         std::abs(static_cast<double>(place_of(spec, i) - j));
  }
  return {s, slope};
}

}  // namespace

OracleResult oracle_forward(const AttentionSpec& spec, const Doubles& q, const Doubles& k,
                            const Doubles& v) {
  const int64_t n = spec.length, d = spec.head_dim, group = spec.heads / spec.kv_heads;
  const Shape4 queries{n, spec.heads, d}, keys{spec.keys(), spec.kv_heads, d};
  OracleResult result;
  result.out.assign(q.size(), 0.0);
  result.lse.assign(static_cast<size_t>(spec.batch * spec.heads * n),
                    -std::numeric_limits<double>::infinity());
  Doubles scores(static_cast<size_t>(keys.tokens));
  const double scale = spec.softmax_scale();
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int64_t h = 0; h < spec.heads; ++h) {
      for (int64_t i = 0; i < n; ++i) {
        double largest = -std::numeric_limits<double>::infinity();
        for (int64_t j = 0; j < keys.tokens; ++j) {
          if (multiplicity(spec, h / group, i, j) == 0) continue;
          const double raw = scale * dot(&q[queries.at(b, i, h)], &k[keys.at(b, j, h / group)], d);
          const double s = score_of(spec, b, h, i, j, raw).value;
          scores[static_cast<size_t>(j)] = s;
          largest = std::max(largest, s);
        }
        double sum = 0;
        double* out = &result.out[queries.at(b, i, h)];
        for (int64_t j = 0; j < keys.tokens; ++j) {
          const int64_t times = multiplicity(spec, h / group, i, j);
          if (times == 0) continue;
          const double p =
              static_cast<double>(times) * std::exp(scores[static_cast<size_t>(j)] - largest);
          sum += p;
          for (int64_t x = 0; x < d; ++x)
            out[x] += p * v[keys.at(b, j, h / group) + static_cast<size_t>(x)];
        }
        if (sum == 0) continue;
        for (int64_t x = 0; x < d; ++x) out[x] /= sum;
        result.lse[static_cast<size_t>((b * spec.heads + h) * n + i)] = largest + std::log(sum);
      }
    }
  }
  return result;
}

OracleGradients oracle_backward(const AttentionSpec& spec, const Doubles& q, const Doubles& k,
                                const Doubles& v, const OracleResult& result, const Doubles& dout,
                                const Doubles& dlse) {
  const int64_t n = spec.length, d = spec.head_dim, group = spec.heads / spec.kv_heads;
  const Shape4 queries{n, spec.heads, d}, keys{spec.keys(), spec.kv_heads, d};
  OracleGradients gradients;
  gradients.dq.assign(q.size(), 0.0);
  gradients.dk.assign(k.size(), 0.0);
  gradients.dv.assign(v.size(), 0.0);
  const double scale = spec.softmax_scale();
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int64_t h = 0; h < spec.heads; ++h) {
      for (int64_t i = 0; i < n; ++i) {
        const size_t qi = queries.at(b, i, h);
        const auto li = static_cast<size_t>((b * spec.heads + h) * n + i);
        double delta = dot(&dout[qi], &result.out[qi], d);
        if (!dlse.empty()) delta -= dlse[li];
        for (int64_t j = 0; j < keys.tokens; ++j) {
          const int64_t times = multiplicity(spec, h / group, i, j);
          if (times == 0) continue;
          const size_t kj = keys.at(b, j, h / group);
          const Score s = score_of(spec, b, h, i, j, scale * dot(&q[qi], &k[kj], d));
          const double p = static_cast<double>(times) * std::exp(s.value - result.lse[li]);
          const double ds = p * (dot(&dout[qi], &v[kj], d) - delta) * s.slope * scale;
          for (size_t x = 0; x < static_cast<size_t>(d); ++x) {
            gradients.dq[qi + x] += ds * k[kj + x];
            gradients.dk[kj + x] += ds * q[qi + x];
            gradients.dv[kj + x] += p * dout[qi + x];
          }
        }
      }
    }
  }
  return gradients;
}

}  // namespace rueda::testing
