// A library's results added to what there is, row by row: partial sums of the softmax, gradients.
#pragma once

#include "attention/cuda/block.h"

namespace rueda::attention::cuda {

// Four elements in one access.
template <typename Element>
struct alignas(4 * sizeof(Element)) Four {
  Element of[4];
};

// sum = sum * keep + part * take, by `lanes` threads of which this is the lane-th. In fours where
// both are aligned to them: a row's loads are then all under way at once.
template <typename Element>
RUEDA_DEVICE void add_row(float* sum, const Element* part, int width, float keep, float take,
                          int lane, int lanes) {
  int begin = 0;
  if (reinterpret_cast<uintptr_t>(sum) % sizeof(Four<float>) == 0 &&
      reinterpret_cast<uintptr_t>(part) % sizeof(Four<Element>) == 0) {
    const int fours = width / 4;
    for (int i = lane; i < fours; i += lanes) {
      Four<float> now = reinterpret_cast<const Four<float>*>(sum)[i];
      const Four<Element> more = reinterpret_cast<const Four<Element>*>(part)[i];
      for (int j = 0; j < 4; ++j) now.of[j] = now.of[j] * keep + widen(more.of[j]) * take;
      reinterpret_cast<Four<float>*>(sum)[i] = now;
    }
    begin = 4 * fours;
  }
  for (int x = begin + lane; x < width; x += lanes) sum[x] = sum[x] * keep + widen(part[x]) * take;
}

template <typename Element>
RUEDA_DEVICE const Element* part_of(const MergeCall& call, int64_t batch, int64_t row,
                                    int64_t head) {
  return static_cast<const Element*>(call.out.data) + batch * call.out.batch + row * call.out.row +
         head * call.out.head;
}

// A library's result for one row and head added to its partial sums: one read of out, one read and
// write of acc. Gives (m, sum) to store when all lanes are through.
struct Merged {
  float m, sum;
};
template <typename Element>
RUEDA_DEVICE Merged merge_part(const MergeCall& call, int64_t batch, int64_t row, int64_t head,
                               int lane, int lanes) {
  const RowRun own = {row, 1, 1};
  const float before = *number(call.m, batch, head, own, 0),
              lse = *number(call.lse, batch, head, own, 0);
  const float now = fmaxf(before, lse);
  const float keep = exp_from(before, now), take = exp_from(lse, now);
  add_row(number(call.acc, batch, head, own, 0), part_of<Element>(call, batch, row, head),
          call.head_dim, keep, take, lane, lanes);
  return {now, *number(call.sums, batch, head, own, 0) * keep + take};
}
RUEDA_DEVICE void merge_end(const MergeCall& call, int64_t batch, int64_t row, int64_t head,
                            Merged merged) {
  const RowRun own = {row, 1, 1};
  *number(call.m, batch, head, own, 0) = merged.m;
  *number(call.sums, batch, head, own, 0) = merged.sum;
}

// A library's gradient for one row and head added to a sum.
template <typename Element>
RUEDA_DEVICE void add_part(const MergeCall& call, int64_t batch, int64_t row, int64_t head,
                           int lane, int lanes) {
  add_row(number(call.acc, batch, head, {row, 1, 1}, 0), part_of<Element>(call, batch, row, head),
          call.head_dim, 1, 1, lane, lanes);
}

}  // namespace rueda::attention::cuda
