// Meet: how ranks find each other that mpirun, torchrun, srun or the like started, without an
// agent: rank 0 keeps the store for as long as init takes, the others connect to it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "runtime/membership/launchers/hosted_store.h"
#include "runtime/membership/place.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/store_client.h"

namespace rueda::launchers {

struct MetPeers {
  std::unique_ptr<HostedStore> hosted;  // on rank 0
  std::unique_ptr<rendezvous::StoreClient> store;
  rendezvous::JobKey key;
  uint64_t epoch = 0;
  std::string job_id;
  std::string address;  // of this host as rank 0 sees it; empty on one host, and on rank 0

  // The numeric address of this host that the others reach; empty where nobody is elsewhere. Rank 0
  // learns it from the first who comes, for whom it waits.
  std::string reachable_address(membership::Deadline deadline) const;

  // To be called by all ranks when they need the store no more. Rank 0 waits for the others, who
  // do not wait. Errors name a rank that ended before.
  Status part(const membership::Place& place, membership::Deadline deadline);
};

// Blocks until rank 0 is found (on rank 0: not at all) or the start timeout has passed. `epoch`:
// how often this process has met before, plus one; ranks that count differently do not meet. key:
// where the program has it; else a file's is read, if they meet at an address.
Result<MetPeers> meet(const membership::Place& place, const Config& config, uint64_t epoch,
                      const std::optional<rendezvous::JobKey>& key = std::nullopt);

}  // namespace rueda::launchers
