// PlanChannel: how the step plan reaches shared memory. The agreement is pure and speaks to this;
// the runtime implements it over a shm::Channel, the simulator with a virtual clock.
//
// A plan is a cyclic list of batches. Batches are entered in the plan's order and counted from 0 in
// each generation: batch number n is plan.batches[n mod size]. Entering is visible to the peers at
// once or a little later (when the channel has room); `entered` says how many are visible.
//
//   batch n runs   if and only if every rank has entered it        (withdrawal, below)
//   revoked        this rank enters nothing more; its last `entered` is published for good
//
// Threads: one at a time, who holds the progress lock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/base/types.h"
#include "proto/messages.h"

namespace rueda::plan {

// What an operation is to its owner; the agreement only carries it.
using Ticket = void*;

struct PlannedBatch {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  std::vector<uint32_t> ids;  // the members' cache ids, in the order of their batch
  uint32_t protocol = 0;      // as in wire::Response
};

// Frozen by a response, the same on every rank.
struct StepPlan {
  uint64_t generation = 0;  // 1, 2, ... in the order in which the root froze them
  std::vector<PlannedBatch> batches;
};

class PlanChannel {
 public:
  virtual ~PlanChannel() = default;
  // A plan begins. All ranks have finished with the generation before. requests[id order of the
  // plan, batch by batch]: what each member is.
  virtual void begin(const StepPlan& plan, const std::vector<const wire::Request*>& requests) = 0;
  // Enters the next batch; tickets in the order of its ids. Its works end when it has run.
  // Allocates nothing.
  virtual void enter(std::span<const Ticket> tickets) = 0;
  // Batches of this generation that peers can see as entered here.
  virtual uint64_t entered() const = 0;
  // Batches of this generation that have run to their end here.
  virtual uint64_t finished() const = 0;
  // What batches need is being made, in a bounded time: that nothing ends meanwhile says nothing.
  virtual bool starting() const { return false; }
  // From here on nothing becomes visible; publishes entered() as this rank's last word and wakes
  // the peers. Idempotent.
  virtual void revoke() = 0;
  // A rank's last word in this generation; empty while it has not revoked.
  virtual std::optional<uint64_t> last_word(Rank rank) const = 0;
  // Batches with numbers >= first do not run: their user memory has not been and will not be
  // written. Returns the tickets of those that enter() had taken, in order.
  virtual std::vector<Ticket> withdraw(uint64_t first) = 0;
};

}  // namespace rueda::plan
