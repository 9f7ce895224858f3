#include "collectives/transport/mpi/mpi_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace rueda::mpi {

Result<std::unique_ptr<MpiConnection>> MpiConnection::create(std::shared_ptr<Engine> engine,
                                                             int peer, int tag, host::Ringer news,
                                                             UniqueFd socket,
                                                             host::EventLoop* loop) {
  const int fd = socket.get();
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));  // fails on a unix socket
  std::unique_ptr<MpiConnection> connection(
      new MpiConnection(std::move(engine), peer, tag, news, std::move(socket), loop));
  RUEDA_RETURN_IF_ERROR(loop->add(fd, connection.get()));
  connection->watched_ = true;
  return connection;
}

MpiConnection::MpiConnection(std::shared_ptr<Engine> engine, int peer, int tag, host::Ringer news,
                             UniqueFd socket, host::EventLoop* loop)
    : engine_(std::move(engine)),
      stream_(engine_->open(peer, tag, news)),
      socket_(std::move(socket)),
      loop_(loop) {}

MpiConnection::~MpiConnection() {
  unwatch();
  stream_->detach();
}

void MpiConnection::unwatch() {
  if (watched_) loop_->remove(socket_.get());
  watched_ = false;
}

void MpiConnection::end(std::chrono::milliseconds patience, const char* why) {
  if (ended_) return;
  ended_ = true;
  if (!goodbye_) engine_->mark_unclean();
  unwatch();
  stream_->end(unavailable(why), Stream::Clock::now() + patience);
}

void MpiConnection::on_ready(bool readable, bool writable) {
  if (writable) tell();
  while (readable && !ended_) {
    std::array<char, 4096> bytes;
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return end(goodbye_ ? kAfterGoodbye : kAfterDeath, "connection closed");
    const auto first = bytes.begin(), last = bytes.begin() + got;
    const auto chunks = std::count(first, last, 'c');
    if (std::find(first, last, 'g') != last) goodbye_ = true;
    if (chunks > 0) stream_->announce(static_cast<size_t>(chunks));
  }
}

Result<size_t> MpiConnection::write(std::span<const ByteView> pieces) {
  if (ended_) return unavailable("connection closed");
  return stream_->write(pieces);
}

Result<size_t> MpiConnection::read(ByteSpan into) { return stream_->read(into); }

void MpiConnection::set_blocked(bool blocked) { stream_->set_blocked(blocked); }

void MpiConnection::flush() {
  untold_ += stream_->flush();
  tell();
}

void MpiConnection::tell() {
  while (untold_ > 0 && !ended_) {
    std::array<char, 256> bytes;
    bytes.fill('c');
    const ssize_t sent = send(socket_.get(), bytes.data(), std::min(untold_, bytes.size()),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) break;  // full, or at its end, which the reading side tells
    untold_ -= static_cast<size_t>(sent);
  }
  if (watched_) loop_->want_write(socket_.get(), untold_ > 0);
}

void MpiConnection::finish() {
  tell();
  if (ended_) return;
  const char goodbye = 'g';
  [[maybe_unused]] const ssize_t sent =
      send(socket_.get(), &goodbye, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(socket_.get(), SHUT_WR);
}

}  // namespace rueda::mpi
