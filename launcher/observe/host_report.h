// What a controller asks the agents of its hosts about their ranks, and what they answer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/job/member.h"
#include "launcher/job/process_use.h"
#include "launcher/observe/flight_explain.h"
#include "launcher/observe/flight_pieces.h"
#include "runtime/observe/counters/counters.h"

namespace rueda::launcher {

struct HostQuestion {
  uint64_t round = 0;  // comes back with the answer
  Detail detail = Detail::kRecent;
  std::vector<Rank> stacks_of;  // of these; the others are not disturbed
};

// One rank. `record.flight` is empty: it is in the pieces.
struct RankView {
  MemberId member = 0;
  RankRecord record;
  pid_t pid = -1;
  std::vector<FlightPiece> pieces;
  ProcessUse use = {};   // of detail kVitals alone, as `stalled` is
  uint64_t stalled = 0;  // operations that wait for longer than a stall's warning
};

struct HostReport {
  uint64_t round = 0;
  int64_t now_ns = 0;  // CLOCK_MONOTONIC of that host
  std::vector<RankView> ranks;
};

// How far a rank is, for every second.
struct RankCounters {
  Rank rank = 0;
  counters::Progress progress = {};
  MemberId member = 0;
  // What is told of it if its host is lost, as of this count. Of the job's LostRank.
  std::string operation = {};
  uint64_t operations = 0, step = 0;
  // How long its threads have waited for operations until then, and when that was, CLOCK_MONOTONIC
  // of its host.
  int64_t waited_ns = 0, at_ns = 0;
  bool operator==(const RankCounters&) const = default;
};

}  // namespace rueda::launcher
