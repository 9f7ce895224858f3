#include "collectives/transport/ring_connection.h"

#include <sys/socket.h>

#include <cerrno>

namespace rueda::transport {

Result<std::unique_ptr<RingConnection>> RingConnection::create(
    const char* kind, host::ByteRing outgoing, host::ByteRing incoming, host::Ringer peer,
    UniqueFd life, host::EventLoop* loop, std::shared_ptr<void> keep_alive) {
  std::unique_ptr<RingConnection> connection(new RingConnection(
      kind, outgoing, incoming, peer, std::move(life), loop, std::move(keep_alive)));
  const int fd = connection->life_.get();
  if (fd < 0) return connection;
  RUEDA_RETURN_IF_ERROR(loop->add(fd, connection.get()));
  connection->watched_ = true;
  return connection;
}

RingConnection::RingConnection(const char* kind, host::ByteRing outgoing, host::ByteRing incoming,
                               host::Ringer peer, UniqueFd life, host::EventLoop* loop,
                               std::shared_ptr<void> keep_alive)
    : kind_(kind),
      outgoing_(outgoing),
      incoming_(incoming),
      peer_(peer),
      life_(std::move(life)),
      loop_(loop),
      keep_alive_(std::move(keep_alive)) {}

RingConnection::~RingConnection() { unwatch(); }

void RingConnection::on_ready(bool, bool) {
  char byte = 0;
  const ssize_t got = recv(life_.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // End of the stream; a byte would be against the protocol and counts as the end too.
  ended_ = true;
  unwatch();
  life_.reset();
}

void RingConnection::unwatch() {
  if (watched_) loop_->remove(life_.get());
  watched_ = false;
}

Result<size_t> RingConnection::write(std::span<const ByteView> pieces) {
  if (ended_) return unavailable("connection closed");
  bool sane = true;
  size_t total = write_now(pieces, &sane);
  if (total == 0 && sane && !wants_room_) {
    // The reader wakes only a writer that says so; what it read before it could know is seen here.
    wants_room_ = true;
    outgoing_.want_room(true);
    total = write_now(pieces, &sane);
  }
  if (!sane) return Status(Code::kDataLoss, "damaged ring in shared memory");
  if (total == 0) return total;
  wrote_ = true;
  if (wants_room_) outgoing_.want_room(false);
  wants_room_ = false;
  return total;
}

size_t RingConnection::write_now(std::span<const ByteView> pieces, bool* sane) {
  size_t total = 0;
  for (const ByteView piece : pieces) {
    const size_t count = outgoing_.write(piece, sane);
    total += count;
    if (count < piece.size()) break;
  }
  return total;
}

Result<size_t> RingConnection::read(ByteSpan into) {
  bool sane = true;
  // Before the look into the ring: what the peer wrote last is still read.
  const bool ended = ended_;
  const size_t count = incoming_.read(into, &sane);
  if (!sane) return Status(Code::kDataLoss, "damaged ring in shared memory");
  if (count != 0) read_ = true;
  if (count == 0 && ended && !into.empty()) return unavailable("connection closed");
  return count;
}

void RingConnection::flush() {
  if (!wrote_ && !read_) return;
  host::fence_before_rings();
  const bool wake = wrote_ || incoming_.room_is_wanted();
  wrote_ = read_ = false;
  if (wake && !ended_) peer_.ring_after_fence();
}

void RingConnection::finish() {
  if (life_.get() >= 0) shutdown(life_.get(), SHUT_WR);
}

}  // namespace rueda::transport
