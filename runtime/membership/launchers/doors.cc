#include "runtime/membership/launchers/doors.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

namespace rueda::launchers {
namespace {

constexpr int kBacklog = 1024;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failed != 0) {
    return Status(Code::kNotFound,
                  "'" + host + "' has no address here (" + gai_strerror(failed) + ")");
  }
  return Addresses(list);
}

sockaddr_un unix_address(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // the leading zero byte of the path makes it abstract
  std::memcpy(address.sun_path + 1, name.data(),
              std::min(name.size(), sizeof(address.sun_path) - 1));
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

// Rather than a name that happens to have a loopback address here.
bool means_loopback(const std::string& host) {
  in6_addr bytes;
  return host == "localhost" || inet_pton(AF_INET, host.c_str(), &bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &bytes) == 1;
}

// 0 and a listening socket, or the errno.
int listen_at(const sockaddr* address, socklen_t length, UniqueFd* out) {
  UniqueFd fd(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  if (!fd) return errno;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd.get(), address, length) != 0 || listen(fd.get(), kBacklog) != 0) return errno;
  *out = std::move(fd);
  return 0;
}

int listen_everywhere(int port, UniqueFd* out) {
  sockaddr_in6 any{};  // takes IPv4 as well
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_any;
  any.sin6_port = htons(static_cast<uint16_t>(port));
  const int failed = listen_at(reinterpret_cast<sockaddr*>(&any), sizeof(any), out);
  if (failed != EAFNOSUPPORT && failed != EADDRNOTAVAIL) return failed;
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_port = any.sin6_port;
  return listen_at(reinterpret_cast<sockaddr*>(&any4), sizeof(any4), out);
}

}  // namespace

std::string unix_name(const std::string& job, uint64_t epoch) {
  const std::string text = std::to_string(geteuid()) + "/" + std::to_string(epoch) + "/" + job;
  uint8_t hash[16];
  crypto_generichash(hash, sizeof(hash), reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                     nullptr, 0);
  std::string name = "rueda-meet-";
  for (const uint8_t byte : hash) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

Result<membership::Listener> open_unix(const std::string& name) {
  socklen_t length = 0;
  const sockaddr_un address = unix_address(name, &length);
  UniqueFd fd;
  const int failed = listen_at(reinterpret_cast<const sockaddr*>(&address), length, &fd);
  if (failed == EADDRINUSE)
    return Status(Code::kAlreadyExists, "another process waits there for the ranks of this job");
  if (failed != 0) return errno_status("cannot wait for the other ranks of this host", failed);
  return membership::Listener{std::move(fd), name};
}

Result<membership::Listener> open_tcp(const Meeting& meeting) {
  RUEDA_ASSIGN_OR_RETURN(const Addresses found, resolve(meeting.host, meeting.first_port));
  int failed = EADDRINUSE;
  for (int port = meeting.first_port; port < meeting.first_port + meeting.ports && port < 65536;
       ++port) {
    UniqueFd fd;
    failed = EADDRNOTAVAIL;
    if (!is_loopback(found->ai_addr) || means_loopback(meeting.host)) {
      // sin_port and sin6_port lie at the same place.
      reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_port = htons(static_cast<uint16_t>(port));
      failed = listen_at(found->ai_addr, found->ai_addrlen, &fd);
    }
    if (failed == EADDRNOTAVAIL) failed = listen_everywhere(port, &fd);
    if (failed == 0)
      return membership::Listener{std::move(fd), meeting.host + ":" + std::to_string(port)};
  }
  return errno_status("rank 0 cannot listen on " + meeting.host + ":" +
                          std::to_string(meeting.first_port) +
                          (meeting.ports > 1 ? " or the ports after it" : "") + " (" + meeting.why +
                          "; RUEDA_RENDEZVOUS=HOST:PORT chooses another)",
                      failed);
}

Result<UniqueFd> try_unix(const std::string& name) {
  socklen_t length = 0;
  const sockaddr_un address = unix_address(name, &length);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno_status("cannot create a unix socket", errno);
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECONNREFUSED) return Status(Code::kNotFound, "nobody waits there yet");
    return errno_status("cannot connect to rank 0 of this host", errno);
  }
  return fd;
}

Result<UniqueFd> try_tcp(const std::string& host, int port, membership::Deadline deadline) {
  RUEDA_ASSIGN_OR_RETURN(const Addresses found, resolve(host, port));
  Status why(Code::kNotFound, "no address");
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    int failed = connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (failed == EINPROGRESS || failed == EINTR) {
      socklen_t length = sizeof(failed);
      failed = ETIMEDOUT;
      if (membership::wait_ready(fd.get(), true, deadline))
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failed, &length);
    }
    if (failed == 0) return fd;
    why = Status(Code::kNotFound, host + ":" + std::to_string(port) + ": " + strerror(failed));
  }
  return why;
}

std::string own_end(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  char host[NI_MAXHOST] = "";
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getsockname(fd, address, &length) != 0 || is_loopback(address) ||
      getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  const std::string text = host;
  // An IPv4 connection to a listener that takes both.
  return text.rfind("::ffff:", 0) == 0 && text.find('.') != std::string::npos ? text.substr(7)
                                                                              : text;
}

}  // namespace rueda::launchers
