// How a job does at this moment, in numbers: what `/metrics` and `rueda top` are made of.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/observe/host_report.h"
#include "launcher/observe/status_report.h"
#include "runtime/observe/flight/flight_reader.h"

namespace rueda::launcher {

struct RankVitals {
  Rank rank = 0;
  std::string host;  // "": it has not begun to record, and was not told
  pid_t pid = -1;
  RankRecord::Life life = RankRecord::Life::kRunning;
  std::string state;                     // as RankRecord's
  std::optional<flight::Vitals> flight;  // empty: it has not begun to record
  ProcessUse use;
  uint64_t stalled = 0;  // operations that wait for longer than a stall's warning
  int64_t now_ns = 0;    // CLOCK_MONOTONIC of its host, when this was read

  // Seconds, what lasts still included.
  double waiting_seconds() const;
  double data_wait_seconds() const;
  uint64_t pending() const;  // operations and planned batches under way
};

struct JobVitals {
  std::string job_id, command;
  std::vector<RankVitals> ranks;  // in order
  std::vector<HostStatus> hosts;  // of a job over several
  uint64_t ranks_lost = 0;        // so far

  Rank size() const;  // ranks of the job, as they say themselves
  // Seconds for which these ranks' threads have slept until that one came.
  double late_seconds(Rank rank) const;
};

// Who is lost, or stalls, in one line; "": nobody.
std::string health_of(const JobVitals& job);

}  // namespace rueda::launcher
