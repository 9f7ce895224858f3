// What becomes of a score before the softmax: softcap * tanh(score / softcap), and after it ALiBi,
// -slope * |place of the query - place of the key|, as on CPUs (attention/cpu_scores-inl.h).
#pragma once

#include "attention/cuda/elements.h"

namespace rueda::attention::cuda {

// Of one head and entry of the batch.
struct Scores {
  float scale, softcap, slope;

  RUEDA_DEVICE Scores(const Call& call, int64_t batch, int64_t head)
      : scale(call.scale), softcap(call.softcap), slope(0) {
    if (call.slopes.data == nullptr) return;
    slope = static_cast<const float*>(
        call.slopes.data)[batch * call.slopes.batch + head * call.slopes.head];
  }

  // Of a product of rows; `apart`: the key's place less the query's.
  RUEDA_DEVICE float of(float product, int64_t apart) const {
    float score = product * scale;
    if (softcap != 0) score = softcap * tanhf(score / softcap);
    if (slope != 0) score = fmaf(-slope, fabsf(static_cast<float>(apart)), score);
    return score;
  }
  // By how much the score changes with the product. With e = exp(-2 |x|) the derivative of tanh is
  // 4 e / (1 + e)^2: no digits are lost where it is small.
  RUEDA_DEVICE float change(float product) const {
    if (softcap == 0) return scale;
    const float e = expf(-2 * fabsf(product * scale / softcap));
    const float below = 1 / (1 + e);
    return 4 * e * below * below * scale;
  }
};

}  // namespace rueda::attention::cuda
