// Mesh: authenticated connections to every other rank: one, or between hosts as many as asked for.
//
// Of two ranks the higher connects and the lower accepts. Whoever connects must prove that it knows
// the job's key before another byte is read; foreign users' processes are closed at once, slow or
// silent ones after a few seconds, and neither delays the ranks of the job.
#pragma once

#include <functional>
#include <vector>

#include "collectives/base/types.h"
#include "collectives/rendezvous/job_key.h"
#include "runtime/bootstrap/sockets.h"

namespace rueda::bootstrap {

struct MeshPeer {
  bool local = false;  // over the unix listener
  std::string address;
};

struct MeshTask {
  Rank rank = 0;
  uint64_t epoch = 0;
  std::string job_id;
  std::vector<MeshPeer> peers;  // by rank
  const Listener* unix_listener = nullptr;
  const Listener* tcp_listener = nullptr;  // null when no peer is remote
  size_t tcp_streams = 1;                  // connections to each remote peer
  Deadline deadline;
  // Asked now and then while waiting for a rank: an error when it is known to be dead.
  std::function<Status(Rank)> alive;
  std::vector<std::string> names;
};

// Connected, authenticated sockets by rank, in the same order at both ends; the own entry is empty.
using MeshSockets = std::vector<std::vector<UniqueFd>>;
Result<MeshSockets> connect_mesh(const MeshTask& task, const rendezvous::JobKey& key);

}  // namespace rueda::bootstrap
