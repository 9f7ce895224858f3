// Guest: somebody who connected to a listener and has not proven anything yet.
#pragma once

#include <chrono>
#include <cstddef>

#include "collectives/base/unique_fd.h"
#include "runtime/membership/sockets.h"
#include "runtime/rendezvous/handshake.h"

namespace rueda::membership {

inline constexpr std::chrono::seconds kGuestTime{5};  // for a whole handshake
inline constexpr size_t kStrangers = 256;  // that may be silent without costing a rank any time
// Once there are so many that others have to wait outside: how long one may stay that has said
// nothing at all (a rank speaks as soon as it is connected), and one that has begun to speak.
inline constexpr std::chrono::milliseconds kSilentTime{100};
inline constexpr std::chrono::seconds kCrowdedTime{1};

struct Guest {
  UniqueFd fd;
  rendezvous::Handshake handshake;
  bool local;  // over a unix socket
  Deadline since = std::chrono::steady_clock::now();
};

// Moves a guest's handshake on without waiting. False: send it away. crowded: no more are let in.
bool serve(Guest* guest, bool crowded);

}  // namespace rueda::membership
