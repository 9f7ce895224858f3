#include "runtime/membership/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>

namespace rueda::membership {
namespace {

// An address with its length, as the socket calls want it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress abstract_address(const std::string& name) {
  SocketAddress address;
  auto* un = reinterpret_cast<sockaddr_un*>(&address.storage);
  un->sun_family = AF_UNIX;
  const size_t count = std::min(name.size(), sizeof(un->sun_path) - 1);
  std::memcpy(un->sun_path + 1, name.data(), count);  // the leading zero byte makes it abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
  return address;
}

Result<SocketAddress> tcp_address(const std::string& host, int port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    address.length = sizeof(sockaddr_in);
    return address;
  }
  if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    address.length = sizeof(sockaddr_in6);
    return address;
  }
  return invalid_argument("'" + host +
                          "' is not a numeric IPv4 or IPv6 address (RUEDA_TCP_ADDRESS)");
}

}  // namespace

bool wait_ready(int fd, bool write, Deadline deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{fd, static_cast<short>(write ? POLLOUT : POLLIN), 0};
    const int ready =
        poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (ready > 0) return true;
    if (ready < 0 && errno == EINTR) continue;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

Result<Listener> listen_unix(int backlog) {
  uint8_t random[16];
  if (getrandom(random, sizeof(random), 0) != sizeof(random))
    return errno_status("no random bytes", errno);
  std::string name = "rueda-";
  for (const uint8_t byte : random) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_status("cannot create a unix socket", errno);
  SocketAddress address = abstract_address(name);
  if (bind(fd.get(), address.get(), address.length) != 0)
    return errno_status("cannot bind a unix socket", errno);
  if (listen(fd.get(), backlog) != 0) return errno_status("cannot listen on a unix socket", errno);
  return Listener{std::move(fd), name};
}

Result<Listener> listen_tcp(const std::string& host, int backlog) {
  RUEDA_ASSIGN_OR_RETURN(SocketAddress address, tcp_address(host, 0));
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_status("cannot create a tcp socket for " + host, errno);
  if (bind(fd.get(), address.get(), address.length) != 0)
    return errno_status("cannot bind to " + host, errno);
  if (listen(fd.get(), backlog) != 0) return errno_status("cannot listen on " + host, errno);
  if (getsockname(fd.get(), address.get(), &address.length) != 0)
    return errno_status("getsockname", errno);
  const bool v6 = address.storage.ss_family == AF_INET6;
  const uint16_t port = v6 ? reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port
                           : reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port;
  return Listener{std::move(fd),
                  (v6 ? "[" + host + "]" : host) + ":" + std::to_string(ntohs(port))};
}

Result<UniqueFd> connect_unix(const std::string& name) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno_status("cannot create a unix socket", errno);
  SocketAddress address = abstract_address(name);
  while (connect(fd.get(), address.get(), address.length) != 0) {
    if (errno != EINTR) return errno_status("cannot connect to a rank of this host", errno);
  }
  return fd;
}

Result<UniqueFd> connect_tcp(const std::string& text, const Patience& patience) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == std::string::npos ||
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), port).ec != std::errc()) {
    return invalid_argument("'" + text + "' is not an address");
  }
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  RUEDA_ASSIGN_OR_RETURN(SocketAddress address, tcp_address(host, port));
  while (true) {
    UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return errno_status("cannot create a tcp socket", errno);
    int error = connect(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
    if (error == EINPROGRESS || error == EINTR) {
      const Status ready = rendezvous::poll_patiently(fd.get(), POLLOUT, patience);
      if (ready.code() == Code::kDeadlineExceeded)
        return deadline_exceeded("nobody answers at " + text);
      RUEDA_RETURN_IF_ERROR(ready);
      socklen_t length = sizeof(error);
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) return fd;
    // On a lossy connection the question for the host's address gets lost, too.
    const auto next = std::chrono::steady_clock::now() + Patience::kLookAround;
    if (error != EHOSTUNREACH || next >= patience.deadline)
      return errno_status("cannot connect to " + text, error);
    poll(nullptr, 0, static_cast<int>(Patience::kLookAround.count()));
    if (patience.look) RUEDA_RETURN_IF_ERROR(patience.look());
  }
}

void retransmit_soon(int tcp_socket, std::chrono::nanoseconds silence) {
  constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS, newer than most headers
  constexpr int64_t kLeast = 1000, kMost = 120'000;
  const auto quarter = std::chrono::ceil<std::chrono::milliseconds>(silence / 4).count();
  const int milliseconds = static_cast<int>(std::clamp<int64_t>(quarter, kLeast, kMost));
  const int on = 1;
  setsockopt(tcp_socket, IPPROTO_TCP, kRtoMaxMs, &milliseconds, sizeof(milliseconds));
  setsockopt(tcp_socket, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof(on));
}

void end_when_silent(int tcp_socket, std::chrono::nanoseconds silence) {
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(silence);
  const int on = limit.count() > 0 ? 1 : 0;
  const int milliseconds = static_cast<int>(limit.count());
  const int second = 1;  // the shortest there is
  setsockopt(tcp_socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(tcp_socket, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof(second));
  setsockopt(tcp_socket, IPPROTO_TCP, TCP_KEEPINTVL, &second, sizeof(second));
  setsockopt(tcp_socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
}

Status make_pair(UniqueFd* a, UniqueFd* b) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return errno_status("socketpair", errno);
  a->reset(fds[0]);
  b->reset(fds[1]);
  return {};
}

bool same_user(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         credentials.uid == geteuid();
}

Status send_fds(int socket, const std::vector<int>& fds) {
  char byte = 'f';
  iovec piece{&byte, 1};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)), 0);
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  while (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) {
    if (errno != EINTR) return errno_status("cannot pass file descriptors", errno);
  }
  return {};
}

Result<std::vector<UniqueFd>> receive_fds(int socket, size_t count, const Patience& patience) {
  char byte = 0;
  iovec piece{&byte, 1};
  std::vector<char> control(CMSG_SPACE(count * sizeof(int)), 0);
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const Status ready = rendezvous::poll_patiently(socket, POLLIN, patience);
  if (ready.code() == Code::kDeadlineExceeded)
    return deadline_exceeded("no answer while sharing memory");
  RUEDA_RETURN_IF_ERROR(ready);
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got != 1) return unavailable("connection closed while sharing memory");
  std::vector<UniqueFd> fds;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    const size_t received = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < received; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  // The kernel drops what this process has no room for.
  if (fds.size() < count && (message.msg_flags & MSG_CTRUNC) != 0)
    return errno_status("cannot take the descriptors that a peer shares", EMFILE);
  if (fds.size() != count)
    return failed_precondition("a peer passed the wrong number of file descriptors");
  return fds;
}

}  // namespace rueda::membership
