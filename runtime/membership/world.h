// World: what init builds: the ranks' places, the connections between them, the memory they share.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/algorithms/native_communicator.h"
#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "collectives/host/arena.h"
#include "collectives/host/doorbell.h"
#include "collectives/host/event_loop.h"
#include "collectives/host/heap.h"
#include "collectives/nccl/machine.h"
#include "collectives/transport/mpi/engine.h"
#include "collectives/transport/tag_transport.h"
#include "runtime/membership/clock_offset.h"
#include "runtime/membership/place.h"
#include "runtime/observe/life/life_line.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/store.h"
#include "runtime/rendezvous/store_client.h"

namespace rueda::membership {

// Owned by the runtime. Members are destroyed from last to first: the transport before what it
// borrows.
struct World {
  Rank rank = 0;
  Rank size = 1;
  Rank local_rank = 0;
  Rank local_size = 1;
  Rank cross_rank = 0;
  Rank cross_size = 1;
  bool homogeneous = true;
  uint64_t epoch = 0;
  int flight_fd = -1;              // Place::flight_fd
  ClockOffset clock;               // to rank 0's
  std::vector<int> local_pids;     // of the processes on this host, where known
  std::vector<std::string> names;  // "rank 1 (pid 4711 on node2)"
  // By rank, a number of its host: equal where ranks share memory.
  std::vector<int> memory_host;
  std::optional<DType> host_wire;                     // see algorithms::NativeGroup::wire
  std::optional<algorithms::Exchange> host_exchange;  // see algorithms::NativeGroup::exchange
  std::vector<std::shared_ptr<host::Arena>> arenas;   // by rank; null where memory is not shared
  // By rank, the own one included; null where memory is not shared.
  std::vector<std::shared_ptr<host::PeerHeap>> heaps;
  std::unique_ptr<host::SleepWord> private_word;  // the doorbell's word when there is no own arena
  std::unique_ptr<host::Doorbell> doorbell;
  std::vector<host::Ringer> ringers;  // by rank
  std::shared_ptr<void> keep_alive;   // inproc: the memory of rings and words, shared by all
  std::shared_ptr<mpi::Engine> mpi;   // null: no connection goes over MPI
  std::unique_ptr<host::EventLoop> loop;
  std::unique_ptr<rueda::life::LifeLine> life;  // null: no agent looks after this rank
  std::unique_ptr<transport::TagTransport> transport;
  std::shared_ptr<nccl::Machine> machine;  // this rank's GPUs; the runtime's, opened when needed
  // Why another rank gave up before all had met, if one has; empty: nobody can be asked.
  std::function<std::optional<std::string>()> init_verdict;

  // Every rank can map every other's memory.
  bool shares_memory() const;
  // Every of these can map every other's. This rank is one of them.
  bool shares_memory(const std::vector<Rank>& members) const;
  // This rank shares memory with another of these.
  bool shares_some_memory(const std::vector<Rank>& members) const;
  // The group of these ranks, this one among them.
  algorithms::NativeGroup group(std::vector<Rank> members) const;
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
  // blamed. Empty: there are no agents.
  std::function<std::optional<std::string>()> agents_verdict;
};

// Meets the other ranks over the store, connects to each (shared memory where both are on one host,
// tcp else), checks versions and agreed settings. Blocks until all are there or
// config.start_timeout_seconds have passed, or the network to a host has been silent for
// config.dead_seconds; errors name the ranks that are missing, dead or different, alike on all
// ranks (first_verdict.h). A job of one rank needs neither store nor key (both may be null).
Result<std::unique_ptr<World>> join_world(const JoinOptions& options, rendezvous::Store* store,
                                          const rendezvous::JobKey* key);

// Why a rank gave up before all had met, if one has said it. A launcher that is stopped is asked
// for StoreClient::kMoment.
std::optional<std::string> said_at_init(rendezvous::StoreClient* store, uint64_t epoch);

// n ranks as threads of this process, linked by rings in heap memory: the smallest world, for
// tests.
Result<std::vector<std::unique_ptr<World>>> make_inproc_worlds(Rank size, uint64_t epoch);

}  // namespace rueda::membership
