// Joining: what the steps of join() know of each other. Lives as long as join() runs.
//
//   exchange_places    who is where, and whether all agree         store
//   connect_mesh       sockets to all, proven to be of the job     mesh.h
//   compare_clocks     over those sockets                          clock_offset.h
//   open_fabric        memory shared over them, connections made of them
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/transport/tag_transport.h"
#include "proto/messages.h"
#include "runtime/membership/first_verdict.h"
#include "runtime/membership/join.h"
#include "runtime/membership/mesh.h"
#include "runtime/membership/sockets.h"

namespace rueda::membership {

struct Joining {
  const JoinOptions& options;
  rendezvous::Store* store;
  const rendezvous::JobKey* key;
  Deadline deadline;
  FirstVerdict verdict;
  std::vector<wire::PlaceInfo> places = {};  // by rank
  std::vector<bool> local = {};              // by rank: memory can be shared with it
  // Open until this rank has said why it gives up, if it does: others would blame it for their end.
  Listener unix_listener = {}, tcp_listener = {};
  MeshSockets sockets = {};
  std::vector<transport::TagTransport::Peer> peers = {};  // become the transport's

  static std::string prefix_of(uint64_t epoch) { return "e" + std::to_string(epoch) + "/"; }
  std::string key_of(const char* what, Rank rank) const {
    return prefix_of(options.epoch) + what + "/" + std::to_string(rank);
  }
  Patience patience(Rank rank) {
    return {deadline, [this, rank] { return verdict.look(rank); }};
  }
  std::chrono::nanoseconds left() const { return deadline - std::chrono::steady_clock::now(); }
};

// This rank as the others know it; asks the system.
Introduction own_introduction(const Config& config);
// Fills places and local.
Status exchange_places(Joining* joining);
// joined->membership is known. Fills memory and fabric; takes the sockets.
Status open_fabric(Joining* joining, Joined* joined);

// False: every rank is a host of its own to those who look for memory.
bool shares_inside_hosts(const Config& config);
host::ArenaLayout layout_of(const Config& config, Rank local_size, size_t hosts = 1);

}  // namespace rueda::membership
