#include "launcher/status_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

namespace rueda::launcher {
namespace {

constexpr int kPatienceMs = 2000;
constexpr size_t kMostBytes = size_t{64} << 20;

std::string prefix() { return "rueda-status/" + std::to_string(geteuid()) + "/"; }

socklen_t address_of(const std::string& job_id, sockaddr_un* address) {
  const std::string name = prefix() + job_id;
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t count = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), count);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
}

bool wait_for(int fd, short events) {
  pollfd one = {fd, events, 0};
  return poll(&one, 1, kPatienceMs) > 0;
}

}  // namespace

Result<UniqueFd> listen_for_status(const std::string& job_id) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t size = address_of(job_id, &address);
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), 16) != 0) {
    return errno_status("cannot listen for `rueda status`", errno);
  }
  return fd;
}

void answer_status(int listener, const std::string& text) {
  const UniqueFd client(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client) return;
  ucred who = {};
  socklen_t size = sizeof(who);
  if (getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 ||
      (who.uid != geteuid() && who.uid != 0)) {
    return;
  }
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = send(client.get(), text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n > 0) {
      at += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      if (!wait_for(client.get(), POLLOUT)) return;
    } else if (errno != EINTR) {
      return;
    }
  }
}

std::vector<std::string> running_jobs() {
  std::vector<std::string> jobs;
  std::ifstream in("/proc/net/unix");
  const std::string wanted = "@" + prefix();
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find(wanted);
    if (at == std::string::npos) continue;
    std::string job = line.substr(at + wanted.size());
    if (std::find(jobs.begin(), jobs.end(), job) == jobs.end()) jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

Result<std::string> ask_status(const std::string& job_id) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t size = address_of(job_id, &address);
  ucred who = {};
  socklen_t who_size = sizeof(who);
  // Anybody may bind an abstract name: only the same user's (or root's) answer counts.
  if (!fd || connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &who_size) != 0 ||
      (who.uid != geteuid() && who.uid != 0)) {
    return Status(Code::kNotFound, "no job '" + job_id + "' of this user runs on this host");
  }
  std::string text;
  char bytes[64 << 10];
  while (text.size() < kMostBytes && wait_for(fd.get(), POLLIN)) {
    const ssize_t n = read(fd.get(), bytes, sizeof(bytes));
    if (n == 0) return text;
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text.append(bytes, static_cast<size_t>(n));
  }
  return Status(Code::kUnavailable, "the agent of job '" + job_id + "' does not answer");
}

}  // namespace rueda::launcher
