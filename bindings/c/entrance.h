// How a process that an agent has started enters the epochs of its job, one after the other.
#pragma once

#include <memory>
#include <optional>

#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "proto/messages.h"
#include "runtime/membership/place.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/store_client.h"

namespace rueda::c_abi {

// What a member needs of its launcher for one epoch: the store behind the agent's socket, the job's
// key, who it is there.
struct Entrance {
  // Kept for reports as long as the runtime lives.
  std::shared_ptr<rendezvous::StoreClient> store;
  std::optional<rendezvous::JobKey> key;
  wire::NewEpoch epoch;
};

// Waits until the next epoch is decided, and for what this member is to do: `standing` says why it
// asks and what it holds; who it is and in which epoch it was last is filled in. The answer is to
// enter, or to wait outside (kProvisional). kCancelled: it is removed. given_up: as
// StoreClient::enter says.
Result<Entrance> enter(const membership::Place& place, const Config& config,
                       wire::Standing standing, const std::atomic<bool>* given_up);

}  // namespace rueda::c_abi
