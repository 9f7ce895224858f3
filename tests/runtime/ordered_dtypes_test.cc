// Every reduction and every move of an ordered group in every dtype, against the plain way.
#include <catch2/catch.hpp>

#include <numeric>

#include "tests/runtime/group_calls.h"

namespace rueda::testing {
namespace {

using K = CollectiveKind;

constexpr int64_t kColumns = 3;

// All ranks of the job, not in their order.
Ranks mixed(Rank size) {
  Ranks ranks;
  for (Rank rank = 0; rank < size; ++rank) ranks.push_back((rank * 3 + 1) % size);
  if (size == 3) ranks = {1, 2, 0};  // 3 and 3 have a factor in common
  return ranks;
}

engine::Operation call_in(uint32_t group, K kind, DType dtype, int64_t rows, const Bytes& in,
                          Bytes* out) {
  engine::Operation op;
  op.process_set = group;
  op.kind = kind;
  op.dtype = dtype;
  op.shape = {rows, kColumns};
  op.input = in.data();
  op.output = out == nullptr ? nullptr : out->data();
  return op;
}

// Rows of the member at this place: few, none, many.
int64_t uneven_rows(size_t place, int64_t most) {
  return place % 3 == 1 ? 0 : most - static_cast<int64_t>(place);
}

std::string trouble_with_reduction(engine::Runtime& r, uint32_t group, const Ranks& list,
                                   DType dtype, ReduceOp reduce_op, int64_t most) {
  const Rank rank = r.membership().rank;
  const auto size = static_cast<Rank>(list.size());
  const auto me = static_cast<size_t>(place_in(list, rank));
  std::vector<int64_t> rows;
  for (size_t place = 0; place < list.size(); ++place) rows.push_back(uneven_rows(place, most));
  const int64_t n = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const int64_t count = n * kColumns;
  const Bytes mine = to_bytes(dtype, ramp_values(rank, count, reduce_op));
  const Bytes all = to_bytes(dtype, reduced_ramp(dtype, reduce_op, size, count));
  // allreduce, in place
  Bytes data = mine;
  auto op = call_in(group, K::kAllreduce, dtype, n, data, &data);
  op.reduce_op = reduce_op;
  must(call(r, op));
  if (data != all) return "allreduce";
  // reduce, beside its input
  Bytes out(all.size());
  op = call_in(group, K::kReduce, dtype, n, mine, &out);
  op.reduce_op = reduce_op;
  op.root = list.back();
  must(call(r, op));
  if (rank == op.root && out != all) return "reduce";
  // reducescatter of given rows
  const auto each = static_cast<int64_t>(kColumns * size_of(dtype));
  const int64_t begin =
      std::accumulate(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(me), int64_t{0}) * each;
  const Bytes part(all.begin() + begin, all.begin() + begin + rows[me] * each);
  out.assign(part.size(), std::byte{});
  op = call_in(group, K::kReducescatter, dtype, n, mine, &out);
  op.reduce_op = reduce_op;
  op.output_splits = rows;
  must(call(r, op));
  return out == part ? "" : "reducescatter";
}

// Any bits: what is moved is not looked at.
Bytes bits(Rank rank, size_t count) {
  Bytes made(count);
  for (size_t i = 0; i < count; ++i)
    made[i] = static_cast<std::byte>((i * 31 + static_cast<size_t>(rank) * 101 + i / 251) & 0xff);
  return made;
}

std::string trouble_with_moves(engine::Runtime& r, uint32_t group, const Ranks& list, DType dtype,
                               int64_t most) {
  const Rank rank = r.membership().rank;
  const auto size = list.size();
  const auto me = static_cast<size_t>(place_in(list, rank));
  const auto each = static_cast<size_t>(kColumns) * size_of(dtype);
  const Rank root = list.back();
  const auto rows_of = [&](size_t place) { return uneven_rows(place, most); };
  const auto bytes_of = [&](int64_t rows) { return static_cast<size_t>(rows) * each; };
  // broadcast
  Bytes data = bits(rank, bytes_of(most));
  auto op = call_in(group, K::kBroadcast, dtype, most, data, &data);
  op.root = root;
  must(call(r, op));
  if (data != bits(root, bytes_of(most))) return "broadcast";
  // allgather and gather, uneven
  const Bytes mine = bits(rank, bytes_of(rows_of(me)));
  Bytes all;
  for (size_t place = 0; place < size; ++place) {
    const Bytes theirs = bits(list[place], bytes_of(rows_of(place)));
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  for (const K kind : {K::kAllgather, K::kGather}) {
    Bytes out(all.size());
    op = call_in(group, kind, dtype, rows_of(me), mine, &out);
    op.output_rows = static_cast<int64_t>(all.size() / each);
    op.root = kind == K::kGather ? root : 0;
    must(call(r, op));
    if ((kind == K::kAllgather || rank == root) && out != all) return name_of(kind);
  }
  // scatter, uneven
  Bytes part(bytes_of(rows_of(me)));
  const bool is_root = rank == root;
  const Bytes whole = bits(root, all.size());
  op = call_in(group, K::kScatter, dtype,
               is_root ? static_cast<int64_t>(whole.size() / each) : rows_of(me), whole, &part);
  op.root = root;
  if (!is_root) op.input = nullptr;
  size_t begin = 0;
  for (size_t place = 0; place < size; ++place) {
    if (is_root) op.splits.push_back(rows_of(place));
    if (place < me) begin += bytes_of(rows_of(place));
  }
  must(call(r, op));
  if (!std::equal(part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(begin)))
    return "scatter";
  // alltoall, uneven: place p sends rows_of((p + q) % size) to place q
  const auto from_to = [&](size_t from, size_t to) { return rows_of((from + to) % size); };
  Bytes expected;
  std::vector<int64_t> splits;
  for (size_t from = 0; from < size; ++from) {
    splits.push_back(from_to(me, from));
    const Bytes theirs = bits(list[from], all.size());
    size_t skipped = 0;
    for (size_t to = 0; to < me; ++to) skipped += bytes_of(from_to(from, to));
    const auto at = theirs.begin() + static_cast<ptrdiff_t>(skipped);
    expected.insert(expected.end(), at, at + static_cast<ptrdiff_t>(bytes_of(from_to(from, me))));
  }
  const Bytes sent = bits(rank, all.size());
  Bytes out(expected.size());
  op = call_in(group, K::kAlltoall, dtype, static_cast<int64_t>(sent.size() / each), sent, &out);
  op.splits = splits;
  op.output_rows = static_cast<int64_t>(out.size() / each);
  must(call(r, op));
  return out == expected ? "" : "alltoall";
}

// In lines, in blocks, and through buffers.
constexpr int64_t kRows[] = {4, 90, 4000};

template <typename Trouble>
void check_all(Trouble trouble) {
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    for (const Rank size : is_short() ? std::vector<Rank>{3} : std::vector<Rank>{1, 2, 3, 4}) {
      INFO(name_of(kind) << ", " << size << " ranks");
      RuntimeWorld world(kind, size);
      const Ranks list = mixed(size);
      const auto errors = world.run([&](Rank, engine::Runtime& r) -> std::string {
        const uint32_t group = must(r.open_group("dtypes", list));
        for (const int64_t rows : kRows) {
          const std::string wrong = trouble(r, group, list, rows);
          if (!wrong.empty()) return wrong + " of " + std::to_string(rows);
        }
        return "";
      });
      for (const auto& error : errors) CHECK(error == "");
    }
  }
}

TEST_CASE("every reduction is right in groups of 1 to 4 ranks, in every dtype", "[ordered_group]") {
  check_all([](engine::Runtime& r, uint32_t group, const Ranks& list, int64_t rows) {
    for (const DType dtype : kHostReducedDTypes) {
      for (const ReduceOp op : ops_of(dtype)) {
        const std::string wrong = trouble_with_reduction(r, group, list, dtype, op, rows);
        if (!wrong.empty()) return wrong + " " + name_of(dtype) + " " + name_of(op);
      }
    }
    return std::string();
  });
}

TEST_CASE("every move is right in groups of 1 to 4 ranks, in every dtype", "[ordered_group]") {
  check_all([](engine::Runtime& r, uint32_t group, const Ranks& list, int64_t rows) {
    for (const DType dtype : kAllDTypes) {
      const std::string wrong = trouble_with_moves(r, group, list, dtype, rows);
      if (!wrong.empty()) return wrong + " " + name_of(dtype);
    }
    return std::string();
  });
}

}  // namespace
}  // namespace rueda::testing
