// Agents: what the job's agents do for a rank. Each part may be missing: a rank alone has no agent,
// and one that another launcher has started has none either.
//
// Ownership: the runtime's, which outlives who borrows it. Threads: as told at each.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "runtime/observe/life/life_line.h"

namespace rueda::engine {

struct Agents {
  // Tells of this rank's end and hears of the others'.
  std::unique_ptr<life::LifeLine> life;
  // Why another rank gave up before all had met; ok: none has said it. May take a moment.
  std::function<Status()> init_verdict;
  // Told once, from the coordinator's thread, when something ends because of another rank, before
  // anybody hears of it: the launcher then knows that this rank is not the culprit.
  std::function<void(const std::string&)> blame;
  std::string nvtx_library;  // of a profiler that listens: NVTX_INJECTION64_PATH
  int flight_fd = -1;        // memory of the flight recorder; not owned
  // That are there from the beginning, the same on all ranks; empty ones and those that are there
  // already are left out.
  std::vector<std::vector<int32_t>> process_sets;
};

}  // namespace rueda::engine
