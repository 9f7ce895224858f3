// A port at which only those get anything who prove to hold a key (rendezvous/handshake.h).
//
// Threads: one that listens, and one for each connection, 32 at most: a stranger who says nothing
// holds up nobody for longer than kProofLimit.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "launcher/hosts/addresses.h"
#include "runtime/rendezvous/handshake.h"

namespace rueda::launcher {

inline constexpr std::chrono::seconds kProofLimit{3};

class ProofDoor {
 public:
  // Listens on all addresses; port 0: of the kernel's choice. Answers nobody yet.
  static Result<ProofDoor> open(int port);
  ProofDoor(ProofDoor&&) = default;
  ProofDoor& operator=(ProofDoor&&) = delete;
  // Nobody is answered any more, and the port is free.
  ~ProofDoor();

  int port() const { return socket_.port; }
  // `met`: called on the connection's thread with its descriptor, which is closed after that.
  void answer(const rendezvous::HandshakeTerms& terms, const rendezvous::JobKey& key,
              std::function<void(int fd)> met = {});

 private:
  ProofDoor() = default;

  ListeningSocket socket_;
  UniqueFd wake_;
  std::thread thread_;
};

}  // namespace rueda::launcher
