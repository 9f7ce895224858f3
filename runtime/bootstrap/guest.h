// Guest: somebody who connected to a listener and has not proven anything yet.
#pragma once

#include <chrono>

#include "collectives/base/unique_fd.h"
#include "collectives/rendezvous/handshake.h"
#include "runtime/bootstrap/sockets.h"

namespace rueda::bootstrap {

inline constexpr std::chrono::seconds kGuestTime{5};  // for a whole handshake

struct Guest {
  UniqueFd fd;
  rendezvous::Handshake handshake;
  Deadline deadline;
  bool local;  // over a unix socket
};

// Moves a guest's handshake on without waiting. False: send it away.
bool serve(Guest* guest);

}  // namespace rueda::bootstrap
