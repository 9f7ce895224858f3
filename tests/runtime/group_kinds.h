// Every kind of call in an ordered group against what it must give, on the host or on fake GPUs.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/group_calls.h"

namespace rueda::testing {

// Makes a call and waits for its result.
using Caller = std::function<RequestPtr(engine::Runtime&, engine::Operation)>;

inline RequestPtr call_well(engine::Runtime& runtime, engine::Operation op) {
  RequestPtr request = start(runtime, std::move(op));
  must(end_of(request));
  return request;
}

// Values that are exact in every type: small whole numbers.
template <typename T>
std::vector<T> values(Rank rank, size_t count) {
  std::vector<T> made(count);
  for (size_t i = 0; i < count; ++i)
    made[i] = static_cast<T>(static_cast<int>((i * 7 + static_cast<size_t>(rank) * 3) % 5));
  return made;
}

template <typename T>
engine::Operation typed(uint32_t group, CollectiveKind kind, DType dtype, Shape shape,
                        const std::vector<T>& in, std::vector<T>* out) {
  engine::Operation op;
  op.process_set = group;
  op.kind = kind;
  op.dtype = dtype;
  op.reduce_op = ReduceOp::kSum;
  op.shape = std::move(shape);
  op.input = reinterpret_cast<const std::byte*>(in.data());
  op.output = out == nullptr ? nullptr : reinterpret_cast<std::byte*>(out->data());
  return op;
}

// "" if every kind is right in this group for `rows` rows of three elements.
template <typename T>
std::string trouble_of(engine::Runtime& r, uint32_t group, const Ranks& ranks, DType dtype,
                       size_t rows, const Caller& done) {
  using K = CollectiveKind;
  const Rank rank = r.membership().rank;
  const auto size = ranks.size();
  const auto me = static_cast<size_t>(place_in(ranks, rank));
  const size_t count = rows * 3;
  const auto n = static_cast<int64_t>(rows);
  // allreduce
  auto data = values<T>(rank, count);
  std::vector<T> sum(count);
  for (const Rank member : ranks) {
    const auto theirs = values<T>(member, count);
    for (size_t i = 0; i < count; ++i) sum[i] = static_cast<T>(sum[i] + theirs[i]);
  }
  done(r, typed(group, K::kAllreduce, dtype, {n, 3}, data, &data));
  if (data != sum) return "allreduce";
  // min, max
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    data = values<T>(rank, count);
    auto best = values<T>(ranks.front(), count);
    for (const Rank member : ranks) {
      const auto theirs = values<T>(member, count);
      for (size_t i = 0; i < count; ++i)
        best[i] =
            op == ReduceOp::kMin ? std::min(best[i], theirs[i]) : std::max(best[i], theirs[i]);
    }
    auto extreme = typed(group, K::kAllreduce, dtype, {n, 3}, data, &data);
    extreme.reduce_op = op;
    done(r, extreme);
    if (data != best) return "extreme";
  }
  // broadcast
  for (const Rank root : {ranks.front(), ranks.back()}) {
    data = values<T>(rank, count);
    auto cast = typed(group, K::kBroadcast, dtype, {n, 3}, data, &data);
    cast.root = root;
    done(r, cast);
    if (data != values<T>(root, count)) return "broadcast";
  }
  // allgather, uneven, into memory of the caller and of its own
  const auto mine = values<T>(rank, (rows + me) * 3);
  std::vector<T> gathered;
  std::vector<int64_t> rows_of;
  for (size_t p = 0; p < size; ++p) {
    const auto theirs = values<T>(ranks[p], (rows + p) * 3);
    gathered.insert(gathered.end(), theirs.begin(), theirs.end());
    rows_of.push_back(n + static_cast<int64_t>(p));
  }
  std::vector<T> out(gathered.size());
  auto gather = typed(group, K::kAllgather, dtype, {n + static_cast<int64_t>(me), 3}, mine, &out);
  gather.output_rows = static_cast<int64_t>(gathered.size() / 3);
  for (int round = 0; round < 2; ++round) {
    out.assign(out.size(), T{});
    done(r, gather);
    if (out != gathered) return "allgather into memory";
  }
  gather.output_splits = rows_of;
  done(r, gather);
  if (out != gathered) return "allgather of expected rows";
  gather.output = nullptr;
  gather.output_rows = -1;
  const RequestPtr own = done(r, gather);
  if (own->received_rows() != rows_of ||
      std::memcmp(own->output(), gathered.data(), gathered.size() * sizeof(T)) != 0)
    return "allgather of its own";
  // reducescatter, by split_rows and by rows that are given
  data = values<T>(rank, count);
  int64_t begin = split_begin(n, static_cast<Rank>(me), static_cast<Rank>(size));
  int64_t mine_rows = split_rows(n, static_cast<Rank>(me), static_cast<Rank>(size));
  const auto part = [&] {
    return std::vector<T>(sum.begin() + begin * 3, sum.begin() + (begin + mine_rows) * 3);
  };
  out.assign(static_cast<size_t>(mine_rows) * 3, T{});
  auto scatter = typed(group, K::kReducescatter, dtype, {n, 3}, data, &out);
  done(r, scatter);
  if (out != part()) return "reducescatter";
  scatter.output_splits.assign(size, 0);
  scatter.output_splits.back() = n;  // all to the last member
  begin = me + 1 == size ? 0 : n;
  mine_rows = me + 1 == size ? n : 0;
  out.assign(static_cast<size_t>(mine_rows) * 3, T{});
  scatter.output = reinterpret_cast<std::byte*>(out.data());
  done(r, scatter);
  if (out != part()) return "reducescatter of given rows";
  // alltoall, even and uneven
  for (const bool even : {true, false}) {
    std::vector<T> expected;
    std::vector<int64_t> splits;
    std::vector<int64_t> from;
    const auto rows_to = [&](size_t sender, size_t receiver) {
      return even ? n : static_cast<int64_t>((sender + 2 * receiver) % 3) * n;
    };
    for (size_t p = 0; p < size; ++p) {
      splits.push_back(rows_to(me, p));
      from.push_back(rows_to(p, me));
      int64_t skipped = 0;
      int64_t total = 0;
      for (size_t q = 0; q < size; ++q) {
        if (q < me) skipped += rows_to(p, q);
        total += rows_to(p, q);
      }
      const auto theirs = values<T>(ranks[p], static_cast<size_t>(total) * 3);
      expected.insert(expected.end(), theirs.begin() + skipped * 3,
                      theirs.begin() + (skipped + rows_to(p, me)) * 3);
    }
    int64_t total = 0;
    for (const int64_t s : splits) total += s;
    const auto sent = values<T>(rank, static_cast<size_t>(total) * 3);
    out.assign(expected.size(), T{});
    auto all = typed(group, K::kAlltoall, dtype, {total, 3}, sent, &out);
    all.output_rows = static_cast<int64_t>(expected.size() / 3);
    if (!even) all.splits = splits;
    done(r, all);
    if (out != expected) return even ? "alltoall" : "uneven alltoall";
    all.output_splits = from;
    out.assign(expected.size(), T{});
    done(r, all);
    if (out != expected) return "alltoall of expected rows";
  }
  engine::Operation barrier;
  barrier.kind = K::kBarrier;
  done(r, in_group(group, barrier));
  return "";
}

inline std::string trouble_in_group(engine::Runtime& r, uint32_t group, const Ranks& ranks,
                                    const Caller& done = call_well) {
  for (const size_t rows : {size_t{1}, size_t{50}, size_t{9000}}) {
    std::string trouble = trouble_of<float>(r, group, ranks, DType::kFloat32, rows, done);
    if (trouble.empty()) trouble = trouble_of<int32_t>(r, group, ranks, DType::kInt32, rows, done);
    if (trouble.empty() && rows < 100)
      trouble = trouble_of<uint8_t>(r, group, ranks, DType::kUInt8, rows, done);
    if (trouble.empty() && rows < 100)
      trouble = trouble_of<double>(r, group, ranks, DType::kFloat64, rows, done);
    if (!trouble.empty()) return trouble + " of " + std::to_string(rows);
  }
  return "";
}

// "" if reduce, gather and scatter are right in this group, to and from its first and last member.
inline std::string trouble_with_roots(engine::Runtime& r, uint32_t group, const Ranks& ranks,
                                      const Caller& done = call_well) {
  using K = CollectiveKind;
  const Rank rank = r.membership().rank;
  const auto me = static_cast<size_t>(place_in(ranks, rank));
  const auto size = ranks.size();
  for (const Rank root : {ranks.front(), ranks.back()}) {
    for (const size_t n : {size_t{1}, size_t{40}, size_t{50000}}) {
      const std::string tag = " of " + std::to_string(n) + " to " + std::to_string(root);
      const bool is_root = rank == root;
      float total = 0;
      for (const Rank member : ranks) total += static_cast<float>(member + 1);
      // reduce, also in place; what others have given is left alone
      const Floats mine(n, static_cast<float>(rank + 1));
      for (const bool in_place : {false, true}) {
        Floats out = in_place ? mine : Floats(n, -1);
        auto op = call_of(group, K::kReduce, in_place ? out : mine, &out);
        op.root = root;
        done(r, op);
        const Floats expected = is_root ? Floats(n, total) : in_place ? mine : Floats(n, -1);
        if (out != expected) return "reduce" + tag;
      }
      auto no_output = call_of(group, K::kReduce, mine, nullptr);
      Floats out(n);
      no_output.root = root;
      if (is_root) no_output.output = reinterpret_cast<std::byte*>(out.data());
      done(r, no_output);
      // gather, uneven
      const Floats rows(n + me, static_cast<float>(rank + 1));
      Floats all;
      for (size_t p = 0; p < size; ++p)
        all.insert(all.end(), n + p, static_cast<float>(ranks[p] + 1));
      Floats gathered(all.size(), -1);
      auto gather = call_of(group, K::kGather, rows, &gathered);
      gather.root = root;
      gather.output_rows = static_cast<int64_t>(all.size());
      done(r, gather);
      if (gathered != (is_root ? all : Floats(all.size(), -1))) return "gather" + tag;
      // scatter, even and uneven
      for (const bool even : {true, false}) {
        std::vector<int64_t> splits;
        Floats whole;
        for (size_t p = 0; p < size; ++p) {
          splits.push_back(static_cast<int64_t>(even ? n : n + 2 * p));
          whole.insert(whole.end(), static_cast<size_t>(splits[p]), static_cast<float>(p));
        }
        Floats part(static_cast<size_t>(splits[me]), -1);
        auto scatter = call_of(group, K::kScatter, is_root ? whole : part, &part);
        if (is_root && !even) scatter.splits = splits;
        if (!is_root) scatter.input = nullptr;
        scatter.root = root;
        done(r, scatter);
        if (part != Floats(part.size(), static_cast<float>(me))) return "scatter" + tag;
      }
    }
  }
  return "";
}

}  // namespace rueda::testing
