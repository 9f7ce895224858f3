// Mesh: authenticated connections to every other rank: one, or between hosts as many as asked for.
//
// Of two ranks the higher connects and the lower accepts. Whoever connects must prove that it knows
// the job's key before another byte is read; foreign users' processes are closed at once, slow or
// silent ones after a few seconds, and neither delays the ranks of the job.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "collectives/base/types.h"
#include "runtime/membership/sockets.h"
#include "runtime/rendezvous/job_key.h"

namespace rueda::membership {

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
  // Asked now and then while waiting for a rank: an error when there is no use in it.
  std::function<Status(Rank)> alive;
  // A connection between hosts ends once nothing has come from there for so long, and one that
  // nobody answers is given up after twice that; zero: never before the deadline.
  std::chrono::nanoseconds silence{};
  std::vector<std::string> names;
};

// Connected, authenticated sockets by rank, in the same order at both ends; the own entry is empty.
using MeshSockets = std::vector<std::vector<UniqueFd>>;
// Whatever comes of it, what was connected is in `sockets`, in the own entry what was half-way: who
// fails closes them, and the listeners, when it has said why.
Status connect_mesh(const MeshTask& task, const rendezvous::JobKey& key, MeshSockets* sockets);

}  // namespace rueda::membership
