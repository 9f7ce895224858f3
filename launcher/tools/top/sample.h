// What `rueda top` hears of a job, each second. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::top {

struct RankSample {
  Rank rank = 0;
  int pid = 0;
  std::string host, life, state, transport;
  bool has_joined = false;
  // As launcher/observe/vitals_json.h has them: sums since the process began, in seconds and bytes.
  double now = 0;
  double steps = 0, timed_steps = 0, step_seconds = 0;
  double waiting_seconds = 0, late_seconds = 0, data_wait_seconds = 0;
  double bytes = 0, batches = 0, planned_batches = 0;
  double cpu_seconds = 0, delayed_seconds = 0;
  double host_cpu_seconds = 0;  // of all processes of its host
  double resident_bytes = 0, shared_memory_bytes = 0;
  double pending = 0, stalled = 0;
};

struct Sample {
  std::string job, command, health;  // health: "" well
  Rank size = 0;
  double ranks_lost = 0;
  std::vector<RankSample> ranks;  // in order
};

// The job's answer; kDataLoss: it is none.
Result<Sample> parse_sample(const std::string& answer);

}  // namespace rueda::top
