// The composition root: everything that a process is in one epoch.
#pragma once

#include <memory>

#include "bindings/c/context.h"
#include "proto/messages.h"

namespace rueda::c_abi {

struct Made {
  MemberPtr member;                          // null: provisional
  std::shared_ptr<const EpochRecord> epoch;  // null: nobody decides epochs here
};

// Enters an epoch and meets the others there. In an elastic job who is lost meanwhile leads to the
// epoch after that. standing: as entrance.h says; when it ends, what was asked last: where an epoch
// ended before all had met, who asks again comes from that one. given_up: as
// StoreClient::enter says.
Result<Made> make_member(const rueda_init_options* said, wire::Standing* standing,
                         const std::atomic<bool>* given_up = nullptr);
std::unique_ptr<rueda_context> make_context(Made made);

}  // namespace rueda::c_abi
