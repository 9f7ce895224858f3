#include "launcher/observe/status_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string_view>
#include <thread>

#include "collectives/base/number_text.h"
#include "collectives/base/utf8.h"

namespace rueda::launcher {
namespace {

constexpr int kPatienceMs = 15'000;           // of a client, until the hosts of a job have answered
constexpr std::chrono::seconds kAskLimit{5};  // until a client has asked
constexpr std::chrono::seconds kAnswerLimit{20};  // from then on, until it has the answer
constexpr std::chrono::seconds kConnectLimit{5};  // while the queue is full
constexpr size_t kMostClients = 16;
constexpr int kBacklog = 128;
constexpr long kPauseNs = 20'000'000;  // after a stranger
constexpr size_t kMostQuestion = 256;
constexpr size_t kMostBytes = size_t{64} << 20;

constexpr std::string_view kPrefix =
    "rueda-status/";  // then the user's number, "/", the job's name

socklen_t address_of(uid_t user, const std::string& job_id, sockaddr_un* address) {
  const std::string name = std::string(kPrefix) + std::to_string(user) + "/" + job_id;
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t count = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), count);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
}

// The other side is this user or root.
bool belongs_to(uid_t user, int fd) {
  ucred who = {};
  socklen_t size = sizeof(who);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
         (who.uid == user || who.uid == 0);
}

// Not open where nobody of this user, nor root, listens: anybody may bind an abstract name. Waits
// for kConnectLimit at most: a stranger whose queue is full is no job.
UniqueFd connect_to_job(uid_t user, const std::string& job_id) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t size = address_of(user, job_id, &address);
  const auto give_up = std::chrono::steady_clock::now() + kConnectLimit;
  while (fd && connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    if (errno != EAGAIN || std::chrono::steady_clock::now() > give_up) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!fd || !belongs_to(user, fd.get())) return {};
  fcntl(fd.get(), F_SETFL, 0);
  return fd;
}

bool wait_for(int fd, short events) {
  pollfd one = {fd, events, 0};
  return poll(&one, 1, kPatienceMs) > 0;
}

}  // namespace

Result<std::unique_ptr<ToolDoor>> ToolDoor::open(const std::string& job_id, size_t ranks,
                                                 const std::string& command) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t size = address_of(geteuid(), job_id, &address);
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return errno_status("cannot listen for `rueda status`", errno);
  }
  UniqueFd pause(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!pause) return errno_status("cannot listen for `rueda status`", errno);
  const time_t now = time(nullptr);
  tm parts = {};
  localtime_r(&now, &parts);
  char since[32];
  strftime(since, sizeof(since), "%Y-%m-%d %H:%M:%S", &parts);
  std::string title = "pid " + std::to_string(getppid()) + ", " + counted(ranks, "rank");
  title += ", since " + std::string(since) + ": " + command;
  return std::unique_ptr<ToolDoor>(new ToolDoor(std::move(fd), std::move(pause), std::move(title)));
}

void ToolDoor::add_to_poll(std::vector<pollfd>* fds) const {
  if (clients_.size() < kMostClients)
    fds->push_back({paused_ ? pause_.get() : listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) {
    if (client.asked && !client.answered) continue;  // it waits for us
    fds->push_back({client.fd.get(), static_cast<short>(client.asked ? POLLOUT : POLLIN), 0});
  }
}

// All that wait, up to a bound. Strangers are sent away, and then nobody is heard for a moment: a
// flood of them costs a bounded part of a core, and who belongs here waits in the same queue.
void ToolDoor::accept_all(TimePoint now) {
  uint64_t expired = 0;
  if (paused_ && read(pause_.get(), &expired, sizeof(expired)) != sizeof(expired)) return;
  paused_ = false;
  for (int i = 0; i < kBacklog && clients_.size() < kMostClients; ++i) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) break;
    if (belongs_to(geteuid(), fd.get())) {
      welcome(std::move(fd), now);
    } else {
      paused_ = true;
    }
  }
  const itimerspec once = {{}, {0, kPauseNs}};
  if (paused_) paused_ = timerfd_settime(pause_.get(), 0, &once, nullptr) == 0;
}

void ToolDoor::welcome(UniqueFd fd, TimePoint now) {
  Client client;
  client.number = ++last_number_;
  client.fd = std::move(fd);
  client.until = now + kAskLimit;
  clients_.push_back(std::move(client));
}

// Whether it stays.
bool ToolDoor::hear(Client* client, TimePoint now, std::vector<Question>* questions) {
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
    client->question.resize(end);
    if (client->question == kTitleQuestion) {
      client->answer = title_;
      client->answered = true;
    } else {
      questions->push_back({client->number, client->question});
    }
  }
  return true;
}

// Whether it stays: its answer is not there yet, or not all of it is written.
bool ToolDoor::tell(Client* client) {
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
  accept_all(now);
  std::erase_if(clients_, [&](Client& client) {
    return now > client.until || !hear(&client, now, &questions) || !tell(&client);
  });
  return questions;
}

void ToolDoor::send_answers() {
  std::erase_if(clients_, [](Client& client) { return !tell(&client); });
}

void ToolDoor::answer(int number, std::string text) {
  for (Client& client : clients_) {
    if (client.number != number) continue;
    client.answer = std::move(text);
    client.answered = true;
  }
}

bool is_job_id(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::vector<RunningJob> running_jobs() {
  std::vector<RunningJob> jobs;
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find(" @" + std::string(kPrefix));
    if (at == std::string::npos) continue;
    const char* const begin = line.data() + at + 2 + kPrefix.size();
    const char* const end = line.data() + line.size();
    RunningJob job;
    const auto [slash, error] = std::from_chars(begin, end, job.user);
    if (error != std::errc() || slash == end || *slash != '/') continue;
    job.id.assign(slash + 1, end);
    const bool mine = job.user == geteuid() || geteuid() == 0;
    if (!mine || !is_job_id(job.id) || std::find(jobs.begin(), jobs.end(), job) != jobs.end())
      continue;
    if (connect_to_job(job.user, job.id)) jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

Result<std::string> ask_job(const std::string& job_id, const std::string& question) {
  UniqueFd fd;
  if (is_job_id(job_id)) fd = connect_to_job(geteuid(), job_id);
  if (!fd && geteuid() == 0) {
    for (const RunningJob& job : running_jobs()) {
      if (job.id == job_id) fd = connect_to_job(job.user, job_id);
    }
  }
  if (!fd) {
    const char* const whose =
        geteuid() == 0 ? "' runs on this host" : "' of this user runs on this host";
    return Status(Code::kNotFound, "no job '" + printable_text(job_id) + whose);
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
