#include "runtime/membership/guest.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace rueda::membership {
namespace {

std::chrono::steady_clock::duration time_of(const Guest& guest, bool crowded) {
  if (!crowded) return kGuestTime;
  if (guest.handshake.bytes_wanted() == rendezvous::kHelloBytes) return kSilentTime;
  return kCrowdedTime;
}

bool shake(Guest* guest) {
  while (true) {
    const ByteView out = guest->handshake.bytes_to_send();
    if (out.empty()) break;
    const ssize_t sent = send(guest->fd.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    guest->handshake.sent(static_cast<size_t>(sent));
  }
  std::byte buffer[512];
  const size_t wanted = std::min(guest->handshake.bytes_wanted(), sizeof(buffer));
  if (wanted == 0) return guest->handshake.status().ok();
  const ssize_t got = recv(guest->fd.get(), buffer, wanted, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  guest->handshake.feed({buffer, static_cast<size_t>(got)});
  if (!guest->handshake.status().ok()) return false;
  return shake(guest);
}

}  // namespace

bool serve(Guest* guest, bool crowded) {
  return shake(guest) && std::chrono::steady_clock::now() - guest->since < time_of(*guest, crowded);
}

}  // namespace rueda::membership
