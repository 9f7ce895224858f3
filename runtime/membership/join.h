// Joining a job: from one rank's place to who the others are, the memory it shares with those of
// its host and the connections to all.
#pragma once

#include <functional>
#include <memory>

#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "collectives/transport/mpi/engine.h"
#include "runtime/membership/fabric.h"
#include "runtime/membership/host_memory.h"
#include "runtime/membership/membership.h"
#include "runtime/membership/place.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/store.h"
#include "runtime/rendezvous/store_client.h"

namespace rueda::membership {

// What a rank has of its job, each for those who need it. The fabric is destroyed before the memory
// that it rings in.
struct Joined {
  Membership membership;
  HostMemory memory;
  Fabric fabric;
};

struct JoinOptions {
  Place place;
  uint64_t epoch = 1;
  Config config;
  std::shared_ptr<mpi::Engine> mpi;  // needed when config.transport asks for MPI
  // Tests: what stands between this rank and a connection to another host. Empty: nothing.
  std::function<std::unique_ptr<transport::Connection>(
      Rank peer, std::unique_ptr<transport::Connection>, host::EventLoop*)>
      wrap_connection;
  // What the agents say of a rank that was lost, waited for a moment; asked before another rank is
  // blamed. Ok: nothing. Empty: there are no agents.
  std::function<Status()> agents_verdict;
};

// Meets the other ranks over the store, connects to each (shared memory where both are on one host,
// tcp else), checks versions and agreed settings. Blocks until all are there or
// config.start_timeout_seconds have passed, or the network to a host has been silent for
// config.dead_seconds; errors name the ranks that are missing, dead or different, alike on all
// ranks (first_verdict.h). A job of one rank needs neither store nor key (both may be null).
Result<std::unique_ptr<Joined>> join(const JoinOptions& options, rendezvous::Store* store,
                                     const rendezvous::JobKey* key);

// Why a rank gave up before all had met, if one has said it; ok else. A launcher that is stopped is
// asked for StoreClient::kMoment.
Status said_at_init(rendezvous::StoreClient* store, uint64_t epoch);

}  // namespace rueda::membership
