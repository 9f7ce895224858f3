// The blocking driver of Handshake: sockets and the clock live here.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "runtime/rendezvous/handshake.h"

namespace rueda::rendezvous {
namespace {

// Reads no more than the handshake wants. False when there is no more to come.
bool pull(int fd, Handshake& handshake) {
  std::array<std::byte, kHandshakeBytes> buffer;
  const ssize_t n = ::recv(fd, buffer.data(), handshake.bytes_wanted(), MSG_DONTWAIT);
  if (n > 0) {
    handshake.feed(ByteView(buffer.data(), static_cast<size_t>(n)));
    return handshake.bytes_wanted() > 0;
  }
  if (n == 0 || !try_again(errno)) handshake.feed_end();
  return false;
}

// Sends what there is. When nobody reads it any more, what the other side said before it left says
// best why.
void push(int fd, Handshake& handshake) {
  const ByteView bytes = handshake.bytes_to_send();
  const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) {
    handshake.sent(static_cast<size_t>(n));
  } else if (n < 0 && !try_again(errno)) {
    while (pull(fd, handshake)) {
    }
    handshake.feed_end();
  }
}

}  // namespace

Result<Rank> shake_hands(int fd, HandshakeTerms terms, const JobKey& key,
                         const Patience& patience) {
  Handshake handshake(std::move(terms), key);
  while (handshake.status().ok() && !handshake.done()) {
    const bool sending = !handshake.bytes_to_send().empty();
    if (sending) push(fd, handshake);
    if (!handshake.status().ok() || handshake.done()) break;
    const bool receiving = handshake.bytes_wanted() > 0;
    const short events = static_cast<short>((receiving ? POLLIN : 0) |
                                            (handshake.bytes_to_send().empty() ? 0 : POLLOUT));
    const Status ready = poll_patiently(fd, events, patience);
    if (ready.code() == Code::kDeadlineExceeded) {
      return deadline_exceeded("handshake: the other side did not answer in time");
    }
    RUEDA_RETURN_IF_ERROR(ready);
    if (receiving) pull(fd, handshake);
  }
  RUEDA_RETURN_IF_ERROR(handshake.status());
  return handshake.peer_rank();
}

}  // namespace rueda::rendezvous
