#include "runtime/observe/stats/stats.h"

#include <algorithm>
#include <cstring>

#include "collectives/host/monotonic.h"

namespace rueda::stats {

Stats::Stats(Page* page, std::string_view transport) : page_(*page) {
  char name[8] = {};
  std::memcpy(name, transport.data(), std::min(transport.size(), sizeof(name)));
  int64_t word = 0;
  std::memcpy(&word, name, sizeof(word));
  page_.transport.store(word, std::memory_order_relaxed);
  // The last epoch's threads wait no more, and the time between two epochs is no step.
  page_.waiting_since.store(0, std::memory_order_relaxed);
  page_.data_since.store(0, std::memory_order_relaxed);
  page_.step_begun_ns.store(0, std::memory_order_relaxed);
}

Stats::Nanos Stats::waited(Nanos at) const {
  const Nanos since = page_.waiting_since.load(std::memory_order_relaxed);
  return waited_until(at, page_.waiting_ns.load(std::memory_order_relaxed), since);
}

// The time since the last call was busy if anything was under way.
void Stats::account(Nanos at) {
  const Nanos waited_now = waited(at);
  if (under_way_ > 0) {
    const Nanos passed = std::max<Nanos>(0, at - seen_);
    add(&page_.busy_ns, passed);
    add(&page_.waited_busy_ns, std::clamp<Nanos>(waited_now - waited_seen_, 0, passed));
  }
  seen_ = at;
  waited_seen_ = waited_now;
}

void Stats::batch_ended(CollectiveKind kind, Nanos begun, size_t operations, int64_t bytes,
                        bool planned) {
  const Nanos at = host::monotonic_ns();
  account(at);
  --under_way_;
  const size_t place = static_cast<size_t>(kind) % kKinds;
  add(&page_.operations[place], static_cast<int64_t>(operations));
  add(&page_.bytes[place], bytes);
  add(&page_.batches[place], 1);
  if (planned) add(&page_.planned_batches, 1);
  add(&page_.collective, at - begun);
}

void Stats::message_ended(CollectiveKind kind, int64_t bytes) {
  const size_t place = static_cast<size_t>(kind) % kKinds;
  add(&page_.operations[place], 1);
  add(&page_.bytes[place], bytes);
}

void Stats::late(Rank rank, Nanos cost) {
  size_t place = 0;
  for (; place < kLateRanks; ++place) {
    const int64_t of = page_.late_of[place].load(std::memory_order_relaxed);
    if (of == int64_t{rank} + 1) break;
    if (of != 0) continue;
    page_.late_of[place].store(int64_t{rank} + 1, std::memory_order_relaxed);
    break;
  }
  if (place == kLateRanks) page_.late_of[place].store(kOtherRanks, std::memory_order_relaxed);
  add(&page_.late[place], cost);
}

void Stats::count_step(Nanos at) {
  const Nanos last = page_.step_begun_ns.load(std::memory_order_relaxed);
  add(&page_.steps, 1);
  if (last != 0) add(&page_.step, std::max<Nanos>(0, at - last));
  page_.step_begun_ns.store(at, std::memory_order_relaxed);
}

void Stats::round_begins() {
  if (page_.steps_are_told.load(std::memory_order_relaxed) != 0) return;
  const std::lock_guard lock(marks_);
  if (page_.steps_are_told.load(std::memory_order_relaxed) == 0) count_step(host::monotonic_ns());
}

void Stats::step_begins() {
  const std::lock_guard lock(marks_);
  page_.steps_are_told.store(1, std::memory_order_relaxed);
  count_step(host::monotonic_ns());
}

void Stats::data_wait_begins() {
  const std::lock_guard lock(marks_);
  if (page_.data_since.load(std::memory_order_relaxed) == 0)
    page_.data_since.store(host::monotonic_ns(), std::memory_order_relaxed);
}

void Stats::data_wait_ends() {
  const std::lock_guard lock(marks_);
  const Nanos since = page_.data_since.exchange(0, std::memory_order_relaxed);
  if (since == 0) return;
  const Nanos waited = host::monotonic_ns() - since;
  add(&page_.data_ns, waited);
  if (shown_data_ != nullptr) add(shown_data_, waited);
}

void Stats::show_data(std::atomic<int64_t>* to) {
  const std::lock_guard lock(marks_);
  shown_data_ = to;
}

}  // namespace rueda::stats
