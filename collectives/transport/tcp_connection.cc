#include "collectives/transport/tcp_connection.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rueda::transport {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kMaxPieces = 16;
constexpr size_t kMaxCallBytes = 1 << 30;  // system calls move at most 1 GiB

}  // namespace

Result<std::unique_ptr<TcpConnection>> TcpConnection::create(UniqueFd socket, host::EventLoop* loop,
                                                             int64_t rate_limit) {
  const int fd = socket.get();
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (rate_limit > 0) {  // 8 bytes: above 4 GiB/s too
    const auto rate = static_cast<uint64_t>(rate_limit);
    setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  std::unique_ptr<TcpConnection> connection(new TcpConnection(std::move(socket), loop));
  RUEDA_RETURN_IF_ERROR(loop->add(fd, connection.get()));
  connection->watched_ = true;
  return connection;
}

TcpConnection::TcpConnection(UniqueFd socket, host::EventLoop* loop)
    : socket_(std::move(socket)), loop_(loop), buffer_(kBufferBytes) {}

TcpConnection::~TcpConnection() { unwatch(); }

void TcpConnection::unwatch() {
  if (watched_) loop_->remove(socket_.get());
  watched_ = false;
}

void TcpConnection::on_ready(bool readable, bool) {
  if (readable) readable_ = true;
  if (!readable || reading_) return;
  // Nobody asks any more. A lost connection would tell so again and again until it is read.
  pollfd lost{socket_.get(), 0, 0};
  if (poll(&lost, 1, 0) == 1) unwatch();
}

Result<size_t> TcpConnection::write(std::span<const ByteView> pieces) {
  iovec parts[kMaxPieces];
  size_t count = 0;
  size_t bytes = 0;
  for (const ByteView piece : pieces) {
    if (count == kMaxPieces || bytes == kMaxCallBytes) break;
    const size_t length = std::min(piece.size(), kMaxCallBytes - bytes);
    if (length == 0) continue;
    parts[count++] = {const_cast<std::byte*>(piece.data()), length};
    bytes += length;
  }
  if (count == 0) return size_t{0};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  while (true) {
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    return unavailable(std::string("connection lost: ") + strerror(errno));
  }
}

Result<size_t> TcpConnection::receive(ByteSpan into) {
  if (!readable_) return size_t{0};
  while (true) {
    const ssize_t got = recv(socket_.get(), into.data(), std::min(into.size(), kMaxCallBytes), 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return unavailable("connection closed");
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      readable_ = false;
      return size_t{0};
    }
    return unavailable(std::string("connection lost: ") + strerror(errno));
  }
}

Result<size_t> TcpConnection::read(ByteSpan into) {
  if (into.empty()) return size_t{0};
  if (begin_ == end_) {
    if (into.size() >= kBufferBytes) return receive(into);
    RUEDA_ASSIGN_OR_RETURN(end_, receive(buffer_));
    begin_ = 0;
  }
  const size_t count = std::min(into.size(), end_ - begin_);
  std::memcpy(into.data(), buffer_.data() + begin_, count);
  begin_ += count;
  return count;
}

void TcpConnection::set_blocked(bool blocked) {
  if (blocked == blocked_) return;
  blocked_ = blocked;
  loop_->want(socket_.get(), reading_, blocked_);
}

void TcpConnection::set_reading(bool reading) {
  if (reading == reading_) return;
  reading_ = reading;
  readable_ = true;  // what came meanwhile was not told
  loop_->want(socket_.get(), reading_, blocked_);
}

void TcpConnection::finish() { shutdown(socket_.get(), SHUT_WR); }

// What the peer's kernel has acknowledged is in its socket, and is read there before the end is.
bool TcpConnection::has_arrived() const {
  tcp_info info{};
  socklen_t length = sizeof(info);
  // A socket of another kind (tests have pairs) keeps nothing on this side; a lost one never will.
  if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return true;
  int unacknowledged = 0;
  return info.tcpi_state == TCP_CLOSE || ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) != 0 ||
         unacknowledged == 0;
}

}  // namespace rueda::transport
