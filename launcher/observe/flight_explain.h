// What flight recorders say about a job that hangs or has ended: who waits for whom, what each
// absentee did last, where the ranks' ways part. Pure: takes what was gathered, from this host or
// from many.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/observe/flight/flight_reader.h"

namespace rueda::launcher {

// What is known of one rank.
struct RankRecord {
  enum class Life { kRunning, kSilent, kDead, kLeft };

  Rank rank = 0;
  int pid = 0;                             // of the process that was started; 0: unknown
  std::optional<flight::Snapshot> flight;  // empty: it has not begun to record
  Life life = Life::kRunning;
  // "sleeping in nanosleep", "stopped by a signal", "killed by signal 9"; "": unknown.
  std::string state;
  std::string stacks;  // lines; "": none
};

// One operation that some ranks wait in. Of the messages between two ranks, the one of a rank to
// or from the other that has waited longest; a receive from anybody is none.
struct Wait {
  flight::Operation operation;  // of the first rank that waits
  std::vector<Rank> in, out;    // of its process set; of a message: the rank, its peer
  int64_t since_ns = 0;
  double seconds(int64_t now_ns) const {
    return static_cast<double>(flight::elapsed_ns(since_ns, now_ns)) * 1e-9;
  }
};

// The oldest first. now_ns: on the recorders' clock.
std::vector<Wait> find_waits(const std::vector<RankRecord>& ranks);
// How much of the absentees' stacks: kPlace, where Python's main thread is.
enum class Stacks { kNone, kPlace, kAll };
// The explanation of those that are at least so old, some lines each. only: those in which this
// rank waits.
std::vector<std::string> explain_waits(const std::vector<RankRecord>& ranks, int64_t now_ns,
                                       double at_least_seconds, Stacks stacks,
                                       std::optional<Rank> only = std::nullopt);
// Where the ranks' orders of submission part, by process set; a line each. Empty: nowhere.
std::vector<std::string> find_divergence(const std::vector<RankRecord>& ranks);
// Everything, for `rueda explain`.
std::vector<std::string> explain(const std::vector<RankRecord>& ranks, int64_t now_ns);

// "allreduce 'x' float32[3] at train.py:12 in step"
std::string describe(const flight::Operation& operation);

}  // namespace rueda::launcher
