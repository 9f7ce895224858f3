// The stats page: what a process has done since it first joined its job, in numbers that others
// read while it runs. It is the last part of a flight recorder's memory, which its agent has too,
// and outlives the epochs that the process is in: sums never fall.
//
// Every field is a single word with one writer at a time (named below), read at any time by
// anybody.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace rueda::stats {

// By CollectiveKind.
inline constexpr size_t kKinds = 16;
// Ranks that this one has waited for, by name; all others together are one more.
inline constexpr size_t kLateRanks = 63;
inline constexpr uint64_t kOtherRanks = 0xffffffff;

// Durations in buckets whose widths grow with them: four for each doubling, so that a quantile is
// known to an eighth. From a microsecond to four and a half minutes; what is less or more counts in
// the first or the last.
struct Buckets {
  static constexpr int kFirstDoubling = 10;  // 1.024 us
  static constexpr int kDoublings = 28;
  static constexpr size_t kPerDoubling = 4;
  static constexpr size_t kCount = kDoublings * kPerDoubling;

  static size_t of(int64_t nanoseconds) {
    const auto value = static_cast<uint64_t>(nanoseconds < 0 ? 0 : nanoseconds);
    const int doubling = static_cast<int>(std::bit_width(value)) - 1;
    if (doubling < kFirstDoubling) return 0;
    if (doubling >= kFirstDoubling + kDoublings) return kCount - 1;
    const size_t quarter = (value >> (doubling - 2)) & 3;
    return static_cast<size_t>(doubling - kFirstDoubling) * kPerDoubling + quarter;
  }
  // Where a bucket begins, in nanoseconds; of kCount: where the last one ends.
  static constexpr int64_t begin(size_t bucket) {
    const int64_t base = int64_t{1} << (kFirstDoubling + static_cast<int>(bucket / kPerDoubling));
    return base + base / 4 * static_cast<int64_t>(bucket % kPerDoubling);
  }
};

template <typename Word>
struct Histogram {
  Word nanoseconds = {};  // the sum
  std::array<Word, Buckets::kCount> buckets = {};
};

// Word: an atomic in the page, a plain number in a copy.
template <typename Word>
struct Fields {
  // ---- who has the progress lock
  std::array<Word, kKinds> operations = {}, bytes = {}, batches = {};  // that have ended
  Word planned_batches = {};
  Histogram<Word> collective;  // each batch, from its start until its end on this rank
  Word busy_ns = {};           // at least one batch was under way
  Word waited_busy_ns = {};    // of that, while a thread of the user's waited
  std::array<Word, kLateRanks + 1> late = {};     // nanoseconds this rank's threads slept until ...
  std::array<Word, kLateRanks + 1> late_of = {};  // ... that rank came, + 1; 0: no rank yet
  // ---- threads of the user's
  Word waiting_since = {};  // a thread waits for an operation since then; 0: none does
  Word waiting_ns = {};     // threads have waited before that
  Word data_since = {};     // likewise for data
  Word data_ns = {};
  Word steps = {};       // optimizer steps begun; where nobody tells of them: rounds of a step plan
  Histogram<Word> step;  // from the beginning of one to that of the next
  Word step_begun_ns = {};  // the last one
  Word steps_are_told = {};
  // ---- at init
  Word transport = {};  // eight characters of its name
};

using Page = Fields<std::atomic<int64_t>>;
using Numbers = Fields<int64_t>;
inline constexpr size_t kWords = sizeof(Numbers) / 8;
static_assert(sizeof(Page) == sizeof(Numbers) && sizeof(Page) % 8 == 0 && sizeof(Page) <= 4096);

// What has been waited before, and since `since` (0: nobody waits) until now. Nanoseconds.
inline int64_t waited_until(int64_t now, int64_t before, int64_t since) {
  return before + (since == 0 || now < since ? 0 : now - since);
}

// Each word whole; those of different moments may not add up exactly.
inline Numbers read(const Page& page) {
  std::array<int64_t, kWords> words;
  const auto* from = reinterpret_cast<const std::atomic<int64_t>*>(&page);
  for (size_t i = 0; i < kWords; ++i) words[i] = from[i].load(std::memory_order_relaxed);
  return std::bit_cast<Numbers>(words);
}

}  // namespace rueda::stats
