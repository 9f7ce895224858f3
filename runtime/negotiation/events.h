// What happens to a rank's agreement: the inputs of Negotiator::on(). Views and pointers are read
// within the call, unless it says otherwise.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "proto/messages.h"
#include "runtime/plan/step_plan.h"

namespace rueda::negotiation {

using plan::CacheId;
using plan::OpHandle;
using plan::RequestId;
using Time = std::chrono::steady_clock::time_point;

namespace event {

// ---- this rank's user

// An operation. request: stays until the handle comes back; its name is submitted once at a time.
// It goes out with Flush.
struct Submit {
  const wire::Request* request = nullptr;
  OpHandle handle;
  Time now;
};
// The same for a request of which id_of() has said the number, which it may have forgotten since:
// for a member of the step plan without allocation.
struct SubmitCached {
  RequestId id = 0;
  const wire::Request* request = nullptr;
  OpHandle handle;
  Time now;
};
// A thread is blocked on the tensor of this name. Idempotent; unknown names are ignored.
struct Awaited {
  const std::string& name;
};
// Tells the root what was collected.
struct Flush {
  Time now;
};
// This rank submits no more; on the root rank nothing is agreed on any more.
struct Leave {
  Time now;
};

// ---- the other ranks

struct Message {
  Rank from = 0;
  std::string_view bytes;
  Time now;
};
// The peer has said goodbye.
struct PeerLeft {
  Rank peer = 0;
  Time now;
};

// ---- the owner

// Time has passed, batches have run: decides and tells what has become due. Comes after the other
// events of a round.
struct Tick {
  Time now;
  plan::Progress plan = {};  // while planning()
  // Where stalls_due(): what the launcher knows of whom everybody waits for; "" for nothing.
  std::string launcher_knows = {};
};
// Answers AskSites: where the operations were called, "" where that is not known.
struct Sites {
  std::vector<wire::CallSite> sites;
  Time now;
};
// Answers EndPlan: what had been entered and does not run, in order.
struct Withdrawn {
  std::span<const OpHandle> handles;
  Time now;
};
// Every handle that is in no batch entered comes back with this status.
struct Drop {
  Status status;
};
// The same, and nothing moves any more: after GiveUp or a lost peer.
struct BreakDown {
  Status verdict;
};

// ---- the root rank: protocols of batches

// All ranks can read each other's memory, or not. Whoever says so also reports what it measures.
struct CmaAvailable {
  bool available = false;
};
// How long a batch took whose response or plan said which protocol it takes.
struct Measured {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int64_t bytes = 0;
  uint32_t protocol = 0;
  int64_t ns = 0;
  Time now;
};
// The plan's protocols are to be chosen anew.
struct Retune {};

}  // namespace event
}  // namespace rueda::negotiation
