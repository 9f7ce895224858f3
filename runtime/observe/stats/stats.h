// Stats: counts what this rank does into its stats page. Always on: an operation costs a few
// additions, a batch two readings of the clock.
//
//   executor, ordered groups --batch_begun, batch_ended--> page --> hvd.stats(), in this process
//   waiting threads, marks --------------------------------^   \--> agent: /metrics, rueda top
//
// Overlap is seen from both ends: communication was under way, and none of the user's threads
// waited for it meanwhile.
//
// Ownership: borrows the page. Threads: as stats_page.h says.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

#include "collectives/base/types.h"
#include "collectives/host/monotonic.h"
#include "runtime/observe/stats/stats_page.h"

namespace rueda::stats {

class Stats {
 public:
  using Nanos = int64_t;  // of the monotonic clock

  explicit Stats(Page* page, std::string_view transport);
  Page& page() { return page_; }

  // ---- with the progress lock
  Nanos batch_begun() {
    const Nanos at = host::monotonic_ns();
    account(at);
    ++under_way_;
    return at;
  }
  void batch_dropped() {
    account(host::monotonic_ns());
    --under_way_;
  }
  void batch_ended(CollectiveKind kind, Nanos begun, size_t operations, int64_t bytes,
                   bool planned);
  // One that is in no batch.
  void message_ended(CollectiveKind kind, int64_t bytes);
  // A thread of this rank has slept so long until `rank` (of the job) came.
  void late(Rank rank, Nanos cost);
  // A round of a step plan begins: a step, where nobody tells of steps.
  void round_begins();

  // ---- any thread
  void step_begins();
  void data_wait_begins();
  void data_wait_ends();
  // Waits for data are shown there, too, from now on: nanoseconds. Borrowed; null: nowhere.
  void show_data(std::atomic<int64_t>* to);

 private:
  static void add(std::atomic<int64_t>* to, int64_t more) {  // one writer
    to->store(to->load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  static void add(Histogram<std::atomic<int64_t>>* to, Nanos time) {
    add(&to->nanoseconds, time);
    add(&to->buckets[Buckets::of(time)], 1);
  }
  Nanos waited(Nanos at) const;
  void account(Nanos at);
  void count_step(Nanos at);

  Page& page_;
  int under_way_ = 0;
  Nanos seen_ = 0, waited_seen_ = 0;  // as of the last account()
  std::mutex marks_;                  // steps and waits for data
  std::atomic<int64_t>* shown_data_ = nullptr;
};

}  // namespace rueda::stats
