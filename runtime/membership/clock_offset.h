// What to add to a rank's monotonic clock to get rank 0's.
//
// Ranks of one host share the clock. The first rank of every other host asks rank 0 for the time, a
// few times over their connection, and believes the quickest answer (Cristian's way): rank 0's
// clock was read somewhere within the round trip, so half of it bounds the error. The clocks' rates
// differ by a few parts in a million afterwards, which is not measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "runtime/membership/mesh.h"
#include "runtime/rendezvous/store.h"

namespace rueda::membership {

struct ClockOffset {
  int64_t offset = 0;  // nanoseconds
  int64_t error = 0;   // at most, when it was measured
};

struct ClockTask {
  Rank rank = 0;
  std::vector<std::string> hosts;          // identity of each rank's host
  const std::vector<std::string>* names;   // of ranks, for errors
  const MeshSockets* sockets;              // nothing else is under way on them
  rendezvous::Store* store = nullptr;      // the first rank of a host tells its others here
  std::string key;                         // of rank 0; the last part is replaced
  std::function<Patience(Rank)> patience;  // while waiting for that rank
};

// Called by all ranks at the same point. Borrows everything for the call.
Result<ClockOffset> compare_clocks(const ClockTask& task);

}  // namespace rueda::membership
