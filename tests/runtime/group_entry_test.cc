// What follows from the entries of a group's members, and from what they tell.
#include <catch2/catch.hpp>

#include "runtime/negotiation/group_entry.h"

namespace rueda::negotiation {
namespace {

using wire::Request;

Request of(CollectiveKind kind, Shape shape) {
  Request r;
  r.kind = kind;
  r.shape = std::move(shape);
  return r;
}

std::vector<GroupEntry> entries_of(const std::vector<std::vector<Request>>& calls) {
  std::vector<GroupEntry> entries;
  for (size_t place = 0; place < calls.size(); ++place) {
    entries.push_back(
        entry_of(calls[place], static_cast<Rank>(place), static_cast<Rank>(calls.size())));
  }
  return entries;
}

// Of the first tensor; empty: the members have to tell.
std::optional<Sizes> sizes_of(const std::vector<std::vector<Request>>& calls, Rank root = 0) {
  std::optional<Sizes> sizes;
  for (const auto& own : calls) {  // all come to the same
    const auto found = sizes_by_entries(own, root, entries_of(calls));
    const auto here =
        found ? std::optional<Sizes>(found->front() ? *found->front() : Sizes{}) : std::nullopt;
    if (&own != &calls.front() && here != sizes) return Sizes{-1};
    sizes = here;
  }
  return sizes;
}

constexpr auto kGather = CollectiveKind::kAllgather;
constexpr auto kAll = CollectiveKind::kAlltoall;

TEST_CASE("equal calls agree by their entries", "[group_entry]") {
  const auto sum = of(CollectiveKind::kAllreduce, {3, 4});
  CHECK(sizes_of({{sum}, {sum}}) == Sizes{});
  CHECK(sizes_of({{sum, sum}, {sum, sum}}) == Sizes{});
  CHECK_FALSE(sizes_of({{sum}, {sum, sum}}));
  for (const auto& change : std::vector<std::function<void(Request*)>>{
           [](Request* r) { r->kind = CollectiveKind::kReduce; },
           [](Request* r) { r->dtype = DType::kInt32; },
           [](Request* r) { r->reduce_op = ReduceOp::kMax; }, [](Request* r) { r->shape = {4, 3}; },
           [](Request* r) { r->shape = {12}; }, [](Request* r) { r->root = 1; },
           [](Request* r) { r->prescale = 2; }, [](Request* r) { r->postscale = 2; }}) {
    auto other = sum;
    change(&other);
    CHECK_FALSE(sizes_of({{sum}, {other}}));
  }
}

TEST_CASE("rows of one tensor are in the entries", "[group_entry]") {
  CHECK(sizes_of({{of(kGather, {3, 2})}, {of(kGather, {5, 2})}}) == Sizes{3, 5});
  CHECK_FALSE(sizes_of({{of(kGather, {3, 2})}, {of(kGather, {5, 3})}}));
  auto a = of(kGather, {3});
  auto b = of(kGather, {5});
  a.output_rows = 8;
  b.output_splits = {3, 5};
  CHECK(sizes_of({{a}, {b}}) == Sizes{3, 5});
  a.output_rows = 7;
  CHECK_FALSE(sizes_of({{a}, {b}}));
  a.output_rows = -1;
  b.output_splits = {5, 3};
  CHECK_FALSE(sizes_of({{a}, {b}}));
  a = of(kAll, {4});
  b = of(kAll, {2});
  a.splits = {2, 2};
  b.splits = {1, 1};
  b.output_splits = {2, 1};
  CHECK(sizes_of({{a}, {b}}) == Sizes{2, 2, 1, 1});
  b.splits = {2, 0};
  CHECK_FALSE(sizes_of({{a}, {b}}));
  // Uneven ones that are the same everywhere need no word.
  a.splits = b.splits = {3, 1};
  a.output_splits = {3, 3};
  b.output_splits = {1, 1};
  a.shape = b.shape = {4};
  CHECK(sizes_of({{a}, {b}}) == Sizes{3, 1, 3, 1});
}

TEST_CASE("what is scattered follows from the root's rows", "[group_entry]") {
  auto root = of(CollectiveKind::kScatter, {6});
  root.splits = {2, 2, 2};
  const auto other = of(CollectiveKind::kScatter, {2});
  CHECK(sizes_of({{root}, {other}, {other}}) == Sizes{2, 2, 2});
  CHECK_FALSE(sizes_of({{root}, {other}, {of(CollectiveKind::kScatter, {3})}}));
  root.splits = {1, 2, 3};
  CHECK_FALSE(sizes_of({{root}, {other}, {of(CollectiveKind::kScatter, {3})}}));
  std::vector<wire::GroupCall> calls{
      {{root}, ""}, {{other}, ""}, {{of(CollectiveKind::kScatter, {3})}, "train.py:1"}};
  const auto agreed = agree_on_call(calls, {0, 5, 7}, "k#1");
  REQUIRE(agreed.ok());
  CHECK(*agreed.value().front() == Sizes{1, 2, 3});
  calls[1].requests[0].shape = {1};
  CHECK(agree_on_call(calls, {0, 5, 7}, "k#1").status().message() ==
        "Mismatched SCATTER rows: scatter 'k#1': rank 5 expects 1 rows, rank 0 has 2 for it; make "
        "all ranks submit the same");
}

TEST_CASE("a member's call that is damaged is an error", "[group_entry]") {
  const auto rows = of(kGather, {3, 2});
  for (const int64_t wrong : {int64_t{-1}, int64_t{1} << 60}) {
    auto entries = entries_of({{rows}, {rows}});
    entries[1].rows = wrong;
    entries[1].sizes = 1;
    CHECK_FALSE(sizes_by_entries(std::vector<Request>{rows}, 0, entries));
    const auto bad = of(kGather, {wrong, 2});
    CHECK(agree_on_call({{{rows}, ""}, {{bad}, ""}}, {0, 1}, "k#1").status().code() ==
          Code::kDataLoss);
  }
  const auto whole = of(kAll, {4});
  CHECK(agree_on_call({{{whole}, ""}, {{}, ""}}, {0, 1}, "k#1").status().code() == Code::kDataLoss);
  CHECK(agree_on_call({{{whole}, ""}, {{whole}, ""}}, {0, 1}, "k#1").status().code() ==
        Code::kDataLoss);
}

}  // namespace
}  // namespace rueda::negotiation
