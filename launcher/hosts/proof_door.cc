#include "launcher/hosts/proof_door.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <vector>

#include "collectives/host/event_fd.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMostAnswered = 32;

using Met = std::function<void(int fd)>;

void listen_and_answer(int socket, int wake, const rendezvous::HandshakeTerms& terms,
                       const rendezvous::JobKey& key, const Met& met) {
  std::vector<std::thread> answering;
  std::atomic<size_t> busy{0};
  for (;;) {
    pollfd fds[2] = {{wake, POLLIN, 0}, {socket, POLLIN, 0}};
    if (busy >= kMostAnswered) fds[1].fd = -1;
    poll(fds, 2, busy >= kMostAnswered ? 50 : -1);
    if (fds[0].revents != 0) break;
    if (fds[1].revents == 0) continue;
    UniqueFd fd(accept4(socket, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) continue;
    ++busy;
    answering.emplace_back([&, connection = std::move(fd)] {
      const auto peer = rendezvous::shake_hands(connection.get(), terms, key,
                                                std::chrono::steady_clock::now() + kProofLimit);
      if (peer.ok() && met) met(connection.get());
      --busy;
    });
  }
  for (std::thread& thread : answering) thread.join();
}

}  // namespace

Result<ProofDoor> ProofDoor::open(int port) {
  ProofDoor door;
  auto socket = listen_on("::", port);
  if (!socket.ok()) socket = listen_on("0.0.0.0", port);
  if (!socket.ok()) return socket.status();
  door.socket_ = std::move(socket).value();
  RUEDA_ASSIGN_OR_RETURN(door.wake_, host::make_event_fd());
  return door;
}

ProofDoor::~ProofDoor() {
  if (!thread_.joinable()) return;
  host::ring_event_fd(wake_.get());
  thread_.join();
}

void ProofDoor::answer(const rendezvous::HandshakeTerms& terms, const rendezvous::JobKey& key,
                       Met met) {
  thread_ = std::thread([socket = socket_.fd.get(), wake = wake_.get(), terms, key, met] {
    listen_and_answer(socket, wake, terms, key, met);
  });
}

}  // namespace rueda::launcher
