#include "launcher/controller/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>

#include "collectives/host/event_fd.h"
#include "launcher/hosts/limits.h"

namespace rueda::launcher {

using Clock = std::chrono::steady_clock;

Result<std::unique_ptr<Acceptor>> Acceptor::listen(const std::vector<std::string>& addresses,
                                                   int port) {
  auto acceptor = std::make_unique<Acceptor>();
  std::string errors;
  for (const std::string& address : addresses) {
    auto socket = listen_on(address, port);
    if (!socket.ok()) {
      errors += (errors.empty() ? "" : "; ") + socket.status().message();
      continue;
    }
    acceptor->addresses_.push_back(with_port(socket->address, socket->port));
    acceptor->sockets_.push_back(std::move(socket).value());
  }
  if (acceptor->sockets_.empty())
    return unavailable("no address of this machine can be listened on: " +
                       (errors.empty() ? "there is none" : errors));
  RUEDA_ASSIGN_OR_RETURN(acceptor->wake_, host::make_event_fd());
  return acceptor;
}

Result<std::unique_ptr<Acceptor>> Acceptor::listen(std::vector<ListeningSocket> bound) {
  auto acceptor = std::make_unique<Acceptor>();
  for (ListeningSocket& socket : bound) {
    if (::listen(socket.fd.get(), kListenQueue) != 0) continue;
    acceptor->addresses_.push_back(with_port(socket.address, socket.port));
    acceptor->sockets_.push_back(std::move(socket));
  }
  if (acceptor->sockets_.empty()) return unavailable("none of the addresses can be listened on");
  RUEDA_ASSIGN_OR_RETURN(acceptor->wake_, host::make_event_fd());
  return acceptor;
}

void Acceptor::start(Take take, size_t expected_hosts) {
  take_ = std::move(take);
  most_ = std::max(kMaxStrangers, 2 * (sockets_.size() + 1) * expected_hosts);
  thread_ = std::thread([this] { run(); });
}

void Acceptor::stop() {
  if (thread_.joinable()) {
    host::ring_event_fd(wake_.get());
    thread_.join();
  }
  // Others may have it, too: nobody listens any more.
  for (const ListeningSocket& socket : sockets_) shutdown(socket.fd.get(), SHUT_RDWR);
  sockets_.clear();
}

void Acceptor::run() {
  std::deque<Clock::time_point> recent;
  for (;;) {
    const auto now = Clock::now();
    while (!recent.empty() && recent.front() + kHandshakeLimit <= now) recent.pop_front();
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
    int timeout_ms = -1;
    if (recent.size() < most_) {
      for (const ListeningSocket& socket : sockets_) fds.push_back({socket.fd.get(), POLLIN, 0});
    } else {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(recent.front() + kHandshakeLimit - now);
      timeout_ms = static_cast<int>(std::max<int64_t>(left.count(), 1));
    }
    poll(fds.data(), fds.size(), timeout_ms);
    if (fds[0].revents != 0) return;
    for (size_t i = 1; i < fds.size() && recent.size() < most_; ++i) {
      if (fds[i].revents == 0) continue;
      UniqueFd connection(accept4(fds[i].fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!connection) {
        if (errno == EMFILE || errno == ENFILE) poll(fds.data(), 1, 100);  // until some are closed
        continue;
      }
      const int yes = 1;
      setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      recent.push_back(Clock::now());
      take_(fds[i].fd, std::move(connection));
    }
  }
}

}  // namespace rueda::launcher
