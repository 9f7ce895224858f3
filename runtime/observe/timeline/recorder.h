// Recorder: where a rank's runtime leaves what it does, for timeline, summary and profilers.
//
//   coordinator, user's threads --events--> ring --> Writer's thread --> file     (timeline)
//                               --sums----> Totals                                (summary)
//                               --calls---> NvtxRanges                            (a profiler)
//
// While none is wanted, on() is false and nobody calls anything else: one branch for each place
// that would record. The hot path allocates nothing, formats nothing and takes no lock for the
// timeline (a mutex nobody contends for the summary).
// Threads: start, stop, mark, totals from any; what is recorded about batches from who has the
// progress lock.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "collectives/base/status.h"
#include "runtime/engine/request.h"
#include "runtime/observe/timeline/event_ring.h"
#include "runtime/observe/timeline/labels.h"
#include "runtime/observe/timeline/layout.h"
#include "runtime/observe/timeline/nvtx_ranges.h"
#include "runtime/observe/timeline/totals.h"
#include "runtime/observe/timeline/writer.h"

namespace rueda::timeline {

inline Nanos nanos(std::chrono::steady_clock::time_point time) {
  return time.time_since_epoch().count();
}

class Recorder {
 public:
  // origin: who this is, and its clock; times are filled in by each start. summary: Totals are
  // kept. nvtx_library: as NvtxRanges.
  Recorder(Origin origin, bool summary, const std::string& nvtx_library = "");
  ~Recorder();

  // Writes from here on; another file that is open is ended first, the same one goes on. path: as
  // RUEDA_TIMELINE; seconds: as RUEDA_TIMELINE_SECONDS. The error names the file; then nothing is
  // written.
  Status start(const std::string& path, bool all_ranks, bool mark_cycles, double seconds = 0);
  // The file is complete when it returns. Nothing happens if none is open.
  void stop();

  bool on() const { return on_.load(std::memory_order_relaxed); }
  bool writing() const { return writing_.load(std::memory_order_relaxed); }

  // ---- about batches
  // Somebody wants to know a batch's members when it begins.
  bool names_batches() const { return nvtx_.on(); }
  // One is handed to the communicator. members: of a batch that names_batches(). Returns the
  // profiler's range, for its end; 0: none.
  nvtx::RangeId batch_begun(Nanos now, std::span<engine::Request* const> members);
  // It does not run after all.
  void batch_dropped(Nanos now, nvtx::RangeId range);
  // It has run: then its members, one by one.
  void batch_ended(const BatchRun& run, size_t members, nvtx::RangeId range);
  void member(engine::Request* request, const BatchRun& run);
  // A process set's root: this rank (of the job) has this tensor ready. set: its id.
  void arrival(const wire::Request& request, uint32_t set, Rank rank, Nanos now);
  // The root's cycle mark: a round in which something begins.
  void cycle(Nanos now);

  // From any thread; "backward" and "optimizer step" have tracks of their own.
  void mark(const std::string& name, Mark mark);

  // Empty unless asked for.
  std::optional<wire::RankSummary> totals() const;

 private:
  void update() {
    on_.store(writing() || totals_ != nullptr || nvtx_.on(), std::memory_order_relaxed);
  }
  void push(const Event& event) {
    if (EventRing* const ring = ring_.load(std::memory_order_acquire)) ring->push(event);
  }

  const Origin origin_;
  const std::unique_ptr<Totals> totals_;
  NvtxRanges nvtx_;
  Labels labels_;
  std::atomic<bool> on_{false};
  std::atomic<bool> writing_{false};
  std::atomic<bool> mark_cycles_{false};
  std::atomic<bool> arrivals_{false};      // the layout shows them
  std::atomic<EventRing*> ring_{nullptr};  // of owned_ring_, which stays once it is made
  std::unique_ptr<EventRing> owned_ring_;

  std::mutex control_;  // start and stop
  std::string path_;    // of the open file
  std::unique_ptr<Writer> writer_;
};

}  // namespace rueda::timeline
