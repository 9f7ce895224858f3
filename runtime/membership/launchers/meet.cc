#include "runtime/membership/launchers/meet.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "collectives/base/log.h"
#include "runtime/membership/launchers/doors.h"
#include "runtime/membership/launchers/meeting.h"
#include "runtime/rendezvous/handshake.h"

namespace rueda::launchers {
namespace {

using membership::Deadline;
using membership::Place;
using Clock = std::chrono::steady_clock;
using rendezvous::JobKey;

constexpr const char* kLastWord = "parted";
constexpr const char* kKeeper = "rank 0, which keeps the store,";
constexpr std::chrono::milliseconds kFirstNap{2}, kLongestNap{100};

// Hydra (MPICH, Intel MPI) gives its jobs no name: the proxy that started this host's ranks stands
// for one. "proxy/<pid>/<start time>"; empty when there is none above us.
std::string proxy_above() {
  for (pid_t pid = getppid(); pid > 1;) {
    std::string text;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
    const size_t begin = text.find('('), end = text.rfind(')');
    if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
    const std::string name = text.substr(begin + 1, end - begin - 1);
    std::istringstream rest(text.substr(end + 1));
    std::string state, field;
    pid_t parent = 0;
    rest >> state >> parent;
    if (name == "hydra_pmi_proxy" || name == "hydra_bstrap_pr" || name == "pmi_proxy") {
      // Field 22 of stat; state and parent were 3 and 4.
      for (int at = 5; at <= 22; ++at) rest >> field;
      return "proxy/" + std::to_string(pid) + "/" + field;
    }
    pid = parent;
  }
  return "";
}

struct Task {
  const Place& place;
  Meeting meeting;
  std::string job;
  uint64_t epoch;
  Deadline deadline;
  double timeout_seconds;
  double dead_seconds;

  std::string purpose() const { return job + "/meet"; }
};

Status too_late(const Task& task, const std::string& where, const Status& last) {
  return deadline_exceeded("rank 0 was not found at " + where + " within " +
                           std::to_string(static_cast<int64_t>(task.timeout_seconds)) +
                           " s (RUEDA_START_TIMEOUT): " + last.message() +
                           "; did rank 0 call init as often as this rank?");
}

// Rank 0: opens the door and connects to itself.
Result<MetPeers> host(const Task& task, const JobKey& key) {
  Door door;
  door.local = task.meeting.one_host;
  door.epoch = task.epoch;
  door.purpose = task.purpose();
  door.size = task.place.size;
  if (door.local) {
    auto listener = open_unix(unix_name(task.job, task.epoch));
    if (listener.status().code() == Code::kAlreadyExists) {
      return failed_precondition(
          "rank 0 of job '" + task.job + "': " + listener.status().message() +
          "; when two jobs have the same name, set RUEDA_JOB_ID to a different one for each");
    }
    RUEDA_ASSIGN_OR_RETURN(door.listener, std::move(listener));
  } else {
    RUEDA_ASSIGN_OR_RETURN(door.listener, open_tcp(task.meeting));
  }
  RUEDA_DEBUG("bootstrap", "rank 0 waits at {} ({})", door.listener.address, task.meeting.why);
  RUEDA_ASSIGN_OR_RETURN(auto hosted, HostedStore::open(std::move(door), key, kLastWord));
  RUEDA_ASSIGN_OR_RETURN(auto stream, hosted->own_stream());
  return MetPeers{std::move(hosted),
                  std::make_unique<rendezvous::StoreClient>(std::move(stream), kKeeper, 0),
                  key,
                  task.epoch,
                  task.job,
                  {}};
}

Status prove(int fd, const Task& task, const JobKey& key, Deadline deadline) {
  rendezvous::HandshakeTerms terms;
  terms.role = rendezvous::HandshakeRole::kConnecting;
  terms.my_rank = task.place.rank;
  terms.size = task.place.size;
  terms.peer = 0;
  terms.epoch = task.epoch;
  terms.job_id = task.purpose();
  return rendezvous::shake_hands(fd, terms, key, deadline).status();
}

Result<MetPeers> joined(const Task& task, UniqueFd fd, const JobKey& key, std::string address) {
  return MetPeers{nullptr,  std::make_unique<rendezvous::StoreClient>(std::move(fd), kKeeper, 0),
                  key,      task.epoch,
                  task.job, std::move(address)};
}

Result<MetPeers> find_on_host(const Task& task) {
  const std::string name = unix_name(task.job, task.epoch);
  for (auto nap = kFirstNap;; nap = std::min(2 * nap, kLongestNap)) {
    auto fd = try_unix(name);
    if (fd.ok()) {
      if (!membership::same_user(fd.value().get())) {
        return Status(Code::kPermissionDenied,
                      "a process of another user waits for the ranks of job '" + task.job +
                          "': set RUEDA_JOB_ID to a name that nobody guesses, alike on all ranks");
      }
      // Rank 0 gives the key to processes of its user.
      RUEDA_ASSIGN_OR_RETURN(const auto fds,
                             membership::receive_fds(fd.value().get(), 1, task.deadline));
      RUEDA_ASSIGN_OR_RETURN(const JobKey key, JobKey::read_from(fds[0].get()));
      RUEDA_RETURN_IF_ERROR(prove(fd.value().get(), task, key, task.deadline));
      return joined(task, std::move(fd).value(), key, "");
    }
    if (fd.status().code() != Code::kNotFound) return fd.status();
    if (Clock::now() + nap >= task.deadline) return too_late(task, "this host", fd.status());
    std::this_thread::sleep_for(nap);
  }
}

Result<MetPeers> find_by_address(const Task& task, const JobKey& key) {
  const Meeting& meeting = task.meeting;
  for (auto nap = kFirstNap;; nap = std::min(2 * nap, kLongestNap)) {
    Status last;
    for (int port = meeting.first_port; port < meeting.first_port + meeting.ports; ++port) {
      // With several ports to look at, somebody else's server shall not cost the whole time.
      const auto patience = meeting.ports > 1 ? std::chrono::seconds(2) : membership::kGuestTime;
      const auto deadline = std::min(task.deadline, Clock::now() + patience);
      auto fd = try_tcp(meeting.host, port, deadline);
      if (!fd.ok()) {
        if (last.ok() || last.code() == Code::kNotFound) last = fd.status();
        continue;
      }
      const Status proven = prove(fd.value().get(), task, key, deadline);
      if (proven.ok()) {
        std::string address = own_end(fd.value().get());
        membership::end_when_silent(
            fd.value().get(),
            std::chrono::nanoseconds(static_cast<int64_t>(task.dead_seconds * 1e9)));
        return joined(task, std::move(fd).value(), key, std::move(address));
      }
      last =
          proven.with_message(meeting.host + ":" + std::to_string(port) + ": " + proven.message() +
                              " (RUEDA_KEY_FILE must be the same on all ranks)");
      if (meeting.ports == 1 && proven.code() == Code::kUnauthenticated) return last;
    }
    const std::string where = meeting.host + ":" + std::to_string(meeting.first_port);
    if (Clock::now() + nap >= task.deadline) return too_late(task, where, last);
    std::this_thread::sleep_for(nap);
  }
}

}  // namespace

std::string MetPeers::reachable_address(Deadline deadline) const {
  return hosted != nullptr ? hosted->reached_at(deadline) : address;
}

Status MetPeers::part(const Place& place, Deadline deadline) {
  RUEDA_RETURN_IF_ERROR(store->set(std::string(kLastWord) + "/" + std::to_string(place.rank), "1"));
  for (Rank rank = 1; hosted != nullptr && rank < place.size; ++rank) {
    const auto left = deadline - Clock::now();
    const auto word = store->get(std::string(kLastWord) + "/" + std::to_string(rank), left);
    if (word.ok()) continue;
    if (word.status().code() != Code::kDeadlineExceeded) return word.status();
    return deadline_exceeded("rank " + std::to_string(rank) +
                             " has met the others but did not finish init (RUEDA_START_TIMEOUT)");
  }
  store.reset();
  hosted.reset();
  return {};
}

Result<MetPeers> meet(const Place& place, const Config& config, uint64_t epoch,
                      const std::optional<JobKey>& given) {
  const auto timeout = std::chrono::duration<double>(config.start_timeout_seconds);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  RUEDA_ASSIGN_OR_RETURN(Meeting meeting, plan_meeting(place, config));
  Task task{place,    std::move(meeting),           place.job_id,       epoch,
            deadline, config.start_timeout_seconds, config.dead_seconds};
  if (task.meeting.one_host) {
    if (task.job.empty()) task.job = proxy_above();
    if (task.job.empty()) {
      return failed_precondition(place.source +
                                 " does not say which job this is: set RUEDA_JOB_ID to a name that "
                                 "no other job on this host has, alike on all ranks");
    }
    if (place.rank != 0) return find_on_host(task);
    RUEDA_ASSIGN_OR_RETURN(const JobKey key, JobKey::make_random());
    return host(task, key);
  }
  RUEDA_ASSIGN_OR_RETURN(const JobKey key,
                         given ? Result<JobKey>(*given) : JobKey::read_file(task.meeting.key_file));
  return place.rank == 0 ? host(task, key) : find_by_address(task, key);
}

}  // namespace rueda::launchers
