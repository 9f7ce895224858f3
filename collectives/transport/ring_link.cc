#include "collectives/transport/ring_link.h"

#include <sys/socket.h>

#include <cerrno>

namespace rueda::transport {

RingLink::RingLink(const char* kind, ByteRing outgoing, ByteRing incoming, Ringer peer,
                   UniqueFd life, EventLoop* loop, std::shared_ptr<void> keep_alive)
    : kind_(kind),
      outgoing_(outgoing),
      incoming_(incoming),
      peer_(peer),
      life_(std::move(life)),
      loop_(loop),
      keep_alive_(std::move(keep_alive)) {
  if (life_.get() >= 0 && !loop_->add(life_.get(), this).ok()) ended_ = true;
}

RingLink::~RingLink() { unwatch(); }

void RingLink::on_ready(bool, bool) {
  char byte = 0;
  const ssize_t got = recv(life_.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // End of the stream; a byte would be against the protocol and counts as the end too.
  ended_ = true;
  unwatch();
  life_.reset();
}

void RingLink::unwatch() {
  if (life_.get() >= 0) loop_->remove(life_.get());
}

Result<size_t> RingLink::write(std::span<const ByteView> pieces) {
  if (ended_) return unavailable("connection closed");
  size_t total = 0;
  bool sane = true;
  for (const ByteView piece : pieces) {
    const size_t count = outgoing_.write(piece, &sane);
    total += count;
    if (count < piece.size()) break;
  }
  if (!sane) return Status(Code::kDataLoss, "damaged ring in shared memory");
  if (total != 0) news_ = true;
  return total;
}

Result<size_t> RingLink::read(ByteSpan into) {
  bool sane = true;
  const bool ended =
      ended_;  // before the look into the ring: what the peer wrote last is still read
  const size_t count = incoming_.read(into, &sane);
  if (!sane) return Status(Code::kDataLoss, "damaged ring in shared memory");
  if (count != 0) news_ = true;
  if (count == 0 && ended && !into.empty()) return unavailable("connection closed");
  return count;
}

void RingLink::flush() {
  if (!news_) return;
  news_ = false;
  if (!ended_) peer_.ring();
}

void RingLink::finish() {
  if (life_.get() >= 0) shutdown(life_.get(), SHUT_WR);
}

}  // namespace rueda::transport
