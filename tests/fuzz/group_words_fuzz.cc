// What members of an ordered group tell each other: words, calls, entries. Whatever the others say,
// this member comes to sizes that can be, or to an error; and where all are honest, entries never
// accept what the whole calls refuse.
#include <array>
#include <optional>

#include "proto/negotiation_codec.h"
#include "runtime/negotiation/group_entry.h"
#include "tests/fuzz/group_request.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/round_trip.h"

namespace rueda::fuzz {
namespace {

using negotiation::GroupEntry;
using negotiation::SizesPtr;
using AllSizes = std::vector<SizesPtr>;

// All that this member allocates, reads and writes follows from these.
void expect_possible(const std::vector<wire::Request>& own, const AllSizes& sizes, Rank place,
                     Rank ranks) {
  expect(sizes.size() == own.size(), "sizes for each tensor");
  for (size_t i = 0; i < own.size(); ++i) {
    const wire::Request& r = own[i];
    const auto size = static_cast<size_t>(ranks);
    const bool matrix = r.kind == CollectiveKind::kAlltoall;
    const bool gathers = negotiation::has_sizes(r.kind);
    if (!gathers && r.kind != CollectiveKind::kScatter) {
      expect(sizes[i] == nullptr, "nothing to say of the other kinds");
      continue;
    }
    expect(sizes[i] != nullptr, "sizes where they may differ");
    const negotiation::Sizes& all = *sizes[i];
    expect(all.size() == (matrix ? size * size : size), "one number for each");
    int64_t total = 0;
    for (const int64_t rows : all)
      expect(rows >= 0 && !__builtin_add_overflow(total, rows, &total), "rows that can be");
    int64_t bytes = 0;
    expect(!__builtin_mul_overflow(
               total, elements_per_row(r.shape) * static_cast<int64_t>(size_of(r.dtype)), &bytes),
           "bytes that can be");
    // What this member sends is what it has, what it receives is what it has room for.
    const auto at = static_cast<size_t>(place);
    int64_t sent = 0;
    int64_t received = 0;
    for (size_t rank = 0; rank < size; ++rank) {
      const int64_t from = matrix ? all[rank * size + at] : all[rank];
      received += from;
      if (!r.output_splits.empty() && (r.kind != CollectiveKind::kGather || r.root == place))
        expect(r.output_splits[rank] == from, "rows that this member expects");
      if (matrix) sent += all[at * size + rank];
      if (matrix) expect(all[at * size + rank] == r.splits[rank], "as it is cut here");
    }
    if (r.kind == CollectiveKind::kScatter && r.root == place) {
      expect(total <= r.shape[0], "no more than the root has");
    } else if (r.kind == CollectiveKind::kScatter) {
      expect(all[at] == r.shape[0], "what this member has room for");
    } else {
      expect(matrix ? sent <= r.shape[0] : all[at] == r.shape[0], "what this member has");
      const bool receives = r.kind != CollectiveKind::kGather || r.root == place;
      if (receives && r.output_rows >= 0) expect(r.output_rows == received, "room for all");
    }
  }
}

bool equal(const AllSizes& a, const AllSizes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return (x == nullptr) == (y == nullptr) && (x == nullptr || *x == *y);
  });
}

void agreement(Input input) {
  const auto what = input.number<uint8_t>();
  const Rank ranks = 2 + what % 3;
  const Rank place = what / 4 % ranks;
  std::vector<Rank> numbers;
  std::vector<wire::GroupCall> calls;
  std::vector<GroupEntry> entries;
  bool honest = true;
  for (Rank member = 0; member < ranks; ++member) {
    numbers.push_back(member);
    wire::GroupCall& call = calls.emplace_back();
    const auto how = input.number<uint8_t>();
    const bool lies = member != place && how % 4 == 3;
    if (how % 4 == 2 && member > 0 && honest) {
      call = calls.front();  // so that members agree
      // What is one member's own cannot be another's.
      if (call.requests.front().kind == CollectiveKind::kScatter) {
        wire::Request& r = call.requests.front();
        const auto& splits = calls[0].requests.front().splits;
        if (member == r.root || splits.empty()) {
          call.requests = {group_request(&input, member, ranks)};
        } else {
          r.shape[0] = splits[static_cast<size_t>(member)];
          r.splits.clear();
        }
      }
    } else {
      const int tensors = 1 + how / 4 % 2;
      for (int i = 0; i < tensors; ++i) {
        const wire::Request* const first = i == 0 ? nullptr : call.requests.data();
        call.requests.push_back(group_request(&input, member, ranks, first));
      }
    }
    entries.push_back(negotiation::entry_of(call.requests, member, ranks));
    if (!lies) continue;
    honest = false;
    GroupEntry& entry = entries.back();
    if (how & 64) entry = entries.front();
    const std::string_view bytes = input.bytes(how & 128 ? sizeof(entry) : 0);
    if (bytes.size() == sizeof(entry)) std::memcpy(&entry, bytes.data(), sizeof(entry));
    entry.rows = how & 32 ? static_cast<int64_t>(input.number<uint64_t>()) : entry.rows;
    wire::GroupCall told;
    if (wire::decode(input.bytes(), &told).ok()) call = std::move(told);
  }
  const std::vector<wire::Request>& own = calls[static_cast<size_t>(place)].requests;
  const auto by_entries = negotiation::sizes_by_entries(own, own.front().root, entries);
  const auto told = negotiation::agree_on_call(calls, numbers, "g#0");
  if (by_entries) expect_possible(own, *by_entries, place, ranks);
  if (told.ok()) expect_possible(own, told.value(), place, ranks);
  if (!honest || !by_entries) return;
  expect(told.ok(), "entries accept no more than the calls themselves");
  expect(equal(*by_entries, told.value()), "and say the same sizes");
}

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  fuzz::Input input(data, size);
  switch (input.number<uint8_t>() % 4) {
    case 0: fuzz::round_trip<wire::GroupWord>(input.rest()); break;
    case 1: fuzz::round_trip<wire::GroupCall>(input.rest()); break;
    default: fuzz::agreement(input);
  }
  return 0;
}
