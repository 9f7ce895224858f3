// What one member of an ordered group asks for, made of an input: as its runtime lets it pass.
#pragma once

#include <vector>

#include "proto/messages.h"
#include "tests/fuzz/input.h"

namespace rueda::fuzz {

inline constexpr CollectiveKind kGroupKinds[] = {
    CollectiveKind::kAllreduce,     CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
    CollectiveKind::kReducescatter, CollectiveKind::kAlltoall,  CollectiveKind::kBarrier,
    CollectiveKind::kReduce,        CollectiveKind::kGather,    CollectiveKind::kScatter};

// ranks: of the group, which is all of the job. first: of the same call, whose tensors are of one
// kind.
inline wire::Request group_request(Input* input, Rank place, Rank ranks,
                                   const wire::Request* first = nullptr) {
  wire::Request r;
  const auto what = input->number<uint8_t>();
  r.kind = first != nullptr ? first->kind : kGroupKinds[what % std::size(kGroupKinds)];
  const bool reduces = r.kind == CollectiveKind::kAllreduce || r.kind == CollectiveKind::kReduce ||
                       r.kind == CollectiveKind::kReducescatter;
  if (reduces) r.reduce_op = ReduceOp::kSum;
  if (what & 128) r.dtype = DType::kInt64;
  if (r.kind == CollectiveKind::kBarrier) return r;
  const auto size = input->number<uint8_t>();
  r.shape.push_back(size % 16);
  if (size & 64) r.shape.push_back(1 + size / 16 % 4);
  const bool rooted = r.kind == CollectiveKind::kBroadcast || r.kind >= CollectiveKind::kReduce;
  if (rooted) r.root = size / 128 % ranks;
  const auto splits_of = [&](int64_t rows) {
    std::vector<int64_t> splits(static_cast<size_t>(ranks), 0);
    for (int64_t& n : splits) {
      n = std::min<int64_t>(rows, input->number<uint8_t>() % 8);
      rows -= n;
    }
    splits.back() += rows;
    return splits;
  };
  const bool scatters = r.kind == CollectiveKind::kScatter && r.root == place;
  if (r.kind == CollectiveKind::kAlltoall || scatters ||
      (r.kind == CollectiveKind::kReducescatter && (what & 64) != 0))
    r.splits = splits_of(r.shape[0]);
  const bool gathers = r.kind == CollectiveKind::kAllgather ||
                       r.kind == CollectiveKind::kAlltoall || r.kind == CollectiveKind::kGather;
  if (!gathers) return r;
  const auto expects = input->number<uint8_t>();
  if (expects & 1) r.output_rows = expects / 4 % 48;
  if (expects & 2) r.output_splits = splits_of(expects / 4 % 48);
  return r;
}

}  // namespace rueda::fuzz
