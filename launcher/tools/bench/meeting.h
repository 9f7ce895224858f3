// Where the ranks of a benchmark meet without help of the library that is measured: one file that
// all of them map. The same barrier, clock comparison and machine check serve every library, so
// that a difference between two rows is a difference between two libraries.
//
// Threads:  one per rank. Every call but slot access is collective: all ranks make it.
// Failure:  open() only. A rank that dies leaves the others waiting; whoever starts the ranks ends
//           them after a deadline.
// Waiting:  spins briefly, then yields; never sleeps, because waking takes longer than what is
//           measured.
#pragma once

#include <cstddef>
#include <string>

#include "collectives/base/status.h"

namespace rueda::bench {

inline constexpr int kMaxMeetingRanks = 64;
inline constexpr int kMaxSamples = 1024;

class Meeting {
 public:
  // `path` names a file of the ranks' own; it is made if it is not there. A fresh job needs a fresh
  // file: its bytes must be zero.
  static Result<Meeting> open(const std::string& path, int rank, int size);
  Meeting(Meeting&& other) noexcept;
  Meeting& operator=(Meeting&&) = delete;
  ~Meeting();

  int rank() const { return rank_; }
  int size() const { return size_; }

  void barrier();
  // Rank 0's `mine` on every rank; costs one barrier.
  bool agree(bool mine);
  // This rank's sample number `index` (< kMaxSamples), in any unit; read after a barrier.
  void put_sample(int index, double value);
  // The largest over all ranks.
  double slowest(int index) const;
  // The sum over all ranks.
  double total(int index) const;

  // Nanoseconds in which a cache line goes from rank 0's core to rank 1's: the median of 20 x 100
  // round trips, halved, or of as many as 100 ms allow; 0 with one rank. Ranks above 1 sleep
  // meanwhile.
  double one_way_ns();

 private:
  struct Page;
  Meeting(Page* page, int rank, int size) : page_(page), rank_(rank), size_(size) {}

  Page* page_;
  int rank_;
  int size_;
  unsigned round_ = 0;
  unsigned agreements_ = 0;
  unsigned checks_ = 0;
};

// Binds every thread of this process to one of the cores that it may use: number `rank` modulo
// their count. Call it after the library has started its threads and has counted its cores.
void pin_to_core(int rank);

}  // namespace rueda::bench
