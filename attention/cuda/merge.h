// A library's results added to what there is, and a result made of partial sums: memory's work, so
// what counts is how many loads are under way. A warp takes kAtOnce rows of a head together,
// and asks for everything that it reads before it uses any of it.
#pragma once

#include "attention/cuda/block.h"

namespace rueda::attention::cuda {

constexpr int kAtOnce = 4;

// So many elements in one access.
template <typename Element, int kWidth>
struct alignas(kWidth * sizeof(Element)) Group {
  Element of[kWidth];
};

// Up to kAtOnce rows of a head that follow one another, whose numbers lie side by side; behind the
// last comes the last again, which is read and not written.
struct Jobs {
  int64_t batch, head, row[kAtOnce];
  int count;
};
RUEDA_BOTH_SIDES inline int64_t groups_of(const MergeCall& call) {
  return (call.rows + kAtOnce - 1) / kAtOnce * call.heads;
}
// The group-th of groups_of(call) < 2^32: all heads of some rows, then those of the next ones.
RUEDA_DEVICE Jobs jobs_of(const MergeCall& call, int64_t batch, uint32_t group) {
  const auto heads = static_cast<uint32_t>(call.heads);
  const int64_t first = static_cast<int64_t>(group / heads) * kAtOnce, left = call.rows - first;
  Jobs jobs;
  jobs.batch = batch;
  jobs.head = group % heads;
  jobs.count = static_cast<int>(left < kAtOnce ? left : kAtOnce);
  for (int j = 0; j < kAtOnce; ++j) jobs.row[j] = first + (j < jobs.count ? j : jobs.count - 1);
  return jobs;
}

// A number of each job; `otherwise` where nothing is to be read.
struct Numbers {
  float of[kAtOnce];
};
RUEDA_DEVICE float* number_of(const Strided& tensor, const Jobs& jobs, int j) {
  return number(tensor, jobs.batch, jobs.head, {jobs.row[j], 1, 1}, 0);
}
RUEDA_DEVICE Numbers numbers(const Strided& tensor, const Jobs& jobs, bool read, float otherwise) {
  Numbers result;
  for (int j = 0; j < kAtOnce; ++j) result.of[j] = read ? *number_of(tensor, jobs, j) : otherwise;
  return result;
}
RUEDA_DEVICE void put(const Strided& tensor, const Jobs& jobs, const Numbers& values) {
  for (int j = 0; j < kAtOnce; ++j) {
    if (j < jobs.count) *number_of(tensor, jobs, j) = values.of[j];
  }
}

// Whether all rows can be read and written four elements at a time.
template <typename Element>
RUEDA_DEVICE bool in_fours(const MergeCall& call) {
  const auto fits = [](const Strided& tensor, uintptr_t size) {
    const int64_t steps = tensor.batch | tensor.row | tensor.head;
    return reinterpret_cast<uintptr_t>(tensor.data) % (4 * size) == 0 && steps % 4 == 0;
  };
  return call.head_dim % 4 == 0 && fits(call.acc, sizeof(float)) && fits(call.out, sizeof(Element));
}

template <typename Element>
RUEDA_DEVICE Element* out_of(const MergeCall& call, const Jobs& jobs, int j) {
  return static_cast<Element*>(call.out.data) + jobs.batch * call.out.batch +
         jobs.row[j] * call.out.row + jobs.head * call.out.head;
}

// sum = sum * keep + part * take, by `lanes` threads of which this is the lane-th, kWidth elements
// in one access. weigh(j) gives keep and take, when what they need has come.
struct Weights {
  float keep, take;
};
template <int kWidth, typename Element, typename Weigh>
RUEDA_DEVICE void add_groups(const MergeCall& call, const Jobs& jobs, int lane, int lanes,
                             const Weigh& weigh) {
  for (int i = lane; i < call.head_dim / kWidth; i += lanes) {
    Group<float, kWidth> now[kAtOnce] = {};
    Group<Element, kWidth> more[kAtOnce];
    if (call.fresh == 0) {
      for (int j = 0; j < kAtOnce; ++j)
        now[j] = reinterpret_cast<const Group<float, kWidth>*>(number_of(call.acc, jobs, j))[i];
    }
    for (int j = 0; j < kAtOnce; ++j)
      more[j] = reinterpret_cast<const Group<Element, kWidth>*>(out_of<Element>(call, jobs, j))[i];
    for (int j = 0; j < kAtOnce; ++j) {
      const Weights by = weigh(j);
      for (int x = 0; x < kWidth; ++x)
        now[j].of[x] = now[j].of[x] * by.keep + widen(more[j].of[x]) * by.take;
      if (j < jobs.count)
        reinterpret_cast<Group<float, kWidth>*>(number_of(call.acc, jobs, j))[i] = now[j];
    }
  }
}
template <typename Element, typename Weigh>
RUEDA_DEVICE void add_rows(const MergeCall& call, const Jobs& jobs, int lane, int lanes,
                           const Weigh& weigh) {
  if (in_fours<Element>(call))
    add_groups<4, Element>(call, jobs, lane, lanes, weigh);
  else
    add_groups<1, Element>(call, jobs, lane, lanes, weigh);
}

// A library's results added to partial sums: one read of out, one read and write of acc. Gives what
// m and sums are made of when all lanes are through.
struct Merged {
  Numbers before, lse, sums;
  RUEDA_DEVICE Weights weights(int j) const {
    const float now = fmaxf(before.of[j], lse.of[j]);
    return {exp_from(before.of[j], now), exp_from(lse.of[j], now)};
  }
};
template <typename Element>
RUEDA_DEVICE Merged merge_parts(const MergeCall& call, const Jobs& jobs, int lane, int lanes) {
  const bool old = call.fresh == 0;
  const Merged merged = {numbers(call.m, jobs, old, minus_infinity()),
                         numbers(call.lse, jobs, true, minus_infinity()),
                         numbers(call.sums, jobs, old, 0)};
  add_rows<Element>(call, jobs, lane, lanes, [&](int j) { return merged.weights(j); });
  return merged;
}
RUEDA_DEVICE void merge_end(const MergeCall& call, const Jobs& jobs, const Merged& merged) {
  Numbers m, sums;
  for (int j = 0; j < kAtOnce; ++j) {
    const Weights by = merged.weights(j);
    m.of[j] = fmaxf(merged.before.of[j], merged.lse.of[j]);
    sums.of[j] = merged.sums.of[j] * by.keep + by.take;
  }
  put(call.m, jobs, m);
  put(call.sums, jobs, sums);
}

// A library's gradients added to sums.
template <typename Element>
RUEDA_DEVICE void add_parts(const MergeCall& call, const Jobs& jobs, int lane, int lanes) {
  add_rows<Element>(call, jobs, lane, lanes, [](int) { return Weights{1, 1}; });
}

// The result of partial sums: out = acc / sums, 0 where there was no key. Gives the log-sum-exp to
// store when all lanes are through.
template <int kWidth, typename Element>
RUEDA_DEVICE void divide_groups(const MergeCall& call, const Jobs& jobs, const Numbers& sums,
                                int lane, int lanes) {
  for (int i = lane; i < call.head_dim / kWidth; i += lanes) {
    Group<float, kWidth> from[kAtOnce];
    for (int j = 0; j < kAtOnce; ++j)
      from[j] = reinterpret_cast<const Group<float, kWidth>*>(number_of(call.acc, jobs, j))[i];
    for (int j = 0; j < kAtOnce; ++j) {
      Group<Element, kWidth> to;
      const float sum = sums.of[j];
      for (int x = 0; x < kWidth; ++x) narrow(sum == 0 ? 0.0f : from[j].of[x] / sum, &to.of[x]);
      if (j < jobs.count)
        reinterpret_cast<Group<Element, kWidth>*>(out_of<Element>(call, jobs, j))[i] = to;
    }
  }
}
template <typename Element>
RUEDA_DEVICE Numbers finish_parts(const MergeCall& call, const Jobs& jobs, int lane, int lanes) {
  const Numbers m = numbers(call.m, jobs, true, minus_infinity());
  const Numbers sums = numbers(call.sums, jobs, true, 0);
  if (in_fours<Element>(call))
    divide_groups<4, Element>(call, jobs, sums, lane, lanes);
  else
    divide_groups<1, Element>(call, jobs, sums, lane, lanes);
  Numbers lse;
  for (int j = 0; j < kAtOnce; ++j)
    lse.of[j] = sums.of[j] == 0 ? minus_infinity() : m.of[j] + logf(sums.of[j]);
  return lse;
}
RUEDA_DEVICE void finish_end(const MergeCall& call, const Jobs& jobs, const Numbers& lse) {
  put(call.m, jobs, lse);
}

}  // namespace rueda::attention::cuda
