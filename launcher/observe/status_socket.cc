#include "launcher/observe/status_socket.h"

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

constexpr int kPatienceMs = 15'000;           // of a client, until the hosts of a job have answered
constexpr std::chrono::seconds kAskLimit{5};  // until a client has asked
constexpr std::chrono::seconds kAnswerLimit{20};  // from then on, until it has the answer
constexpr size_t kMostClients = 16;
constexpr size_t kMostQuestion = 256;
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

Result<std::unique_ptr<ToolDoor>> ToolDoor::open(const std::string& job_id) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t size = address_of(job_id, &address);
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), kMostClients) != 0) {
    return errno_status("cannot listen for `rueda status`", errno);
  }
  return std::unique_ptr<ToolDoor>(new ToolDoor(std::move(fd)));
}

void ToolDoor::add_to_poll(std::vector<pollfd>* fds) const {
  if (clients_.size() < kMostClients) fds->push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) {
    if (client.asked && !client.answered) continue;  // it waits for us
    fds->push_back({client.fd.get(), static_cast<short>(client.asked ? POLLOUT : POLLIN), 0});
  }
}

void ToolDoor::accept_one(TimePoint now) {
  UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return;
  ucred who = {};
  socklen_t size = sizeof(who);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 ||
      (who.uid != geteuid() && who.uid != 0)) {
    return;
  }
  Client client;
  client.number = ++last_number_;
  client.fd = std::move(fd);
  client.until = now + kAskLimit;
  clients_.push_back(std::move(client));
}

// Whether it stays.
bool ToolDoor::serve(Client* client, TimePoint now, std::vector<Question>* questions) {
  while (!client->asked) {
    char bytes[kMostQuestion];
    const ssize_t n = recv(client->fd.get(), bytes, sizeof(bytes), 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    client->question.append(bytes, static_cast<size_t>(n));
    const size_t end = client->question.find('\n');
    if (end == std::string::npos) {
      if (client->question.size() > kMostQuestion) return false;
      continue;
    }
    client->asked = true;
    client->until = now + kAnswerLimit;
    questions->push_back({client->number, client->question.substr(0, end)});
  }
  while (client->answered && client->written < client->answer.size()) {
    const ssize_t n = send(client->fd.get(), client->answer.data() + client->written,
                           client->answer.size() - client->written, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    client->written += static_cast<size_t>(n);
  }
  return !client->answered;
}

std::vector<ToolDoor::Question> ToolDoor::work(TimePoint now) {
  std::vector<Question> questions;
  if (clients_.size() < kMostClients) accept_one(now);
  std::erase_if(clients_, [&](Client& client) {
    return now > client.until || !serve(&client, now, &questions);
  });
  return questions;
}

void ToolDoor::answer(int number, std::string text) {
  for (Client& client : clients_) {
    if (client.number != number) continue;
    client.answer = std::move(text);
    client.answered = true;
  }
}

std::vector<std::string> running_jobs() {
  std::vector<std::string> jobs;
  std::ifstream in("/proc/net/unix");
  const std::string wanted = prefix().insert(0, 1, '@');
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find(wanted);
    if (at == std::string::npos) continue;
    std::string job = line.substr(at + wanted.size());
    if (std::find(jobs.begin(), jobs.end(), job) == jobs.end()) jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

Result<std::string> ask_job(const std::string& job_id, const std::string& question) {
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
  const std::string line = question + "\n";
  if (send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    return Status(Code::kUnavailable, "the job '" + job_id + "' does not take questions");
  std::string text;
  char bytes[64 << 10];
  while (text.size() < kMostBytes && wait_for(fd.get(), POLLIN)) {
    const ssize_t n = read(fd.get(), bytes, sizeof(bytes));
    if (n == 0) return text;
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text.append(bytes, static_cast<size_t>(n));
  }
  return Status(Code::kUnavailable, "the launcher of job '" + job_id + "' does not answer");
}

}  // namespace rueda::launcher
