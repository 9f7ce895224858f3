// FlightRecorder: leaves in the recorder's memory what this rank does
// (runtime/observe/flight/flight_layout.h).
//
// Costs a record and a clock reading per operation that is submitted one by one, two stores per
// batch of a step plan. The memory is the agent's (then it is readable after this process was
// killed), else this process's own.
//
// Ownership: the mapping, with who asks for it. Threads: submitted(), abandoned() and site() from
// any; the rest from who has the progress lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collectives/base/types.h"
#include "proto/messages.h"
#include "runtime/observe/flight/flight_layout.h"
#include "runtime/observe/stats/stats.h"

namespace rueda::flight {

struct Identity {
  Rank rank = 0;
  Rank size = 1;
  uint64_t epoch = 0;
  std::string host, job;
  std::string transport;  // "shm"; for the stats
};

// What is recorded of a name that is longer than kNameBytes: its beginning, its end and a hash of
// the whole, so that names which differ stay different.
std::string short_name(std::string_view name);

class FlightRecorder {
 public:
  // Of one operation; 0: none.
  using RecordNumber = uint64_t;

  // fd: memory of kTotalBytes that somebody else holds too (borrowed), or -1. Where it cannot be
  // used (wrong size, another process has it) the process gets memory of its own.
  static std::unique_ptr<FlightRecorder> open(int fd, const Identity& identity);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Keeps the memory mapped, also behind the recorder's end: threads that wait may look at its
  // stats page longer than that.
  std::shared_ptr<void> mapping() const { return mapping_; }
  bool is_shared() const { return shared_; }
  ByteView memory() const { return {base_, kTotalBytes}; }

  // The number of a place in the program; the same text has the same number. 0: no room.
  uint32_t site(const std::string& text);
  std::string site_text(uint32_t number) const;

  // peer: of a message, a rank of the job.
  RecordNumber submitted(const wire::Request& request, uint32_t process_set, uint32_t site,
                         Path path, Rank peer = -1);
  void cached(RecordNumber number);  // was asked for by its number
  void planned(RecordNumber number);
  void agreed(RecordNumber number, int64_t now);
  void started(RecordNumber number, uint64_t batch, int64_t now);
  void ended(RecordNumber number, int64_t now, bool well);
  // A message for which nobody waits any more, while it is under way: it is as one from anybody.
  // Any thread.
  void abandoned(RecordNumber number);
  // Members of a process set, once it is known.
  void members(uint32_t process_set, const std::vector<Rank>& ranks);

  // A step plan's tensors in its order; gives the number of the first one's template.
  uint64_t plan(const std::vector<const wire::Request*>& requests, uint32_t process_set,
                uint32_t generation);
  // Its members are templates [first, first + count). Gives the entry's number.
  // batch: from 0. since: as monotonic_ns(), may be a few milliseconds old.
  uint64_t entered(uint64_t first, size_t count, uint64_t batch, int64_t since) {
    const uint64_t number = entries_++;
    PlanEntry& entry = plan_entries()[number % kPlanEntries];
    put(&entry.members, first << 16 | count);
    put(&entry.number, batch + 1);
    put(&entry.when, static_cast<uint64_t>(since) << 1);
    put(&header().planned, entries_, std::memory_order_release);
    return number;
  }
  void finished(uint64_t number, size_t count) {
    PlanEntry& entry = plan_entries()[number % kPlanEntries];
    put(&entry.when, entry.when | 1);
    put(&header().planned_ended, ++entries_ended_);
    put(&header().planned_tensors, planned_tensors_ += count);
  }

  // The rank that this one's threads have waited for longest so far.
  void waited(const wire::Waited& longest) {
    const auto milliseconds = static_cast<uint64_t>(longest.seconds * 1e3);
    put(&header().waited, static_cast<uint64_t>(longest.rank) << kWaitedShift | milliseconds);
  }

  stats::Stats& stats() { return stats_; }
  const stats::Page& stats_page() const { return *page_of(base_); }

  void can_show_stacks(int signal, int fd);
  void leave();
  std::string mail() const;

 private:
  FlightRecorder(std::byte* base, bool shared, const Identity& identity)
      : base_(base),
        mapping_(base, unmap),
        shared_(shared),
        stats_(page_of(base), identity.transport) {}
  static void unmap(void* at);
  static stats::Page* page_of(std::byte* base) {
    return reinterpret_cast<stats::Page*>(base + kStatsOffset);
  }
  static void put(uint64_t* at, uint64_t value,
                  std::memory_order order = std::memory_order_relaxed) {
    std::atomic_ref<uint64_t>(*at).store(value, order);
  }
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  PlanEntry* plan_entries() const { return reinterpret_cast<PlanEntry*>(base_ + kPlanOffset); }
  Record* records() const { return reinterpret_cast<Record*>(base_ + kRecordsOffset); }
  Record* of(RecordNumber number) const;
  void begin(const Identity& identity);
  // Without a path it stays what it is. The slot may be another's by now: then that is what is
  // kept.
  static void set_state(Record* record, State state, std::optional<Path> path = std::nullopt);
  static State state_of(Record* record);
  static void write(Record* to, const Record& from, uint64_t number);
  static void fill(Record* record, const wire::Request& request);

  std::byte* base_;
  const std::shared_ptr<void> mapping_;
  const bool shared_;
  stats::Stats stats_;
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> ended_{0};
  uint64_t templates_ = 0;
  uint64_t entries_ = 0;
  uint64_t entries_ended_ = 0;
  uint64_t planned_tensors_ = 0;
  mutable std::mutex sites_mutex_;
  std::unordered_map<std::string, uint32_t> sites_;
};

}  // namespace rueda::flight
