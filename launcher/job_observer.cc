#include "launcher/job_observer.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "launcher/process_state.h"
#include "launcher/stack_collector.h"
#include "launcher/status_report.h"
#include "launcher/status_socket.h"

namespace rueda::launcher {
namespace {

constexpr int kTickMs = 1000;
constexpr std::chrono::milliseconds kStackPatience{1000};
constexpr size_t kMostStacks = 4;  // in one explanation
constexpr size_t kMostTold = 1024;

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

void ring(int fd) {
  const uint64_t one = 1;
  const ssize_t ignored = write(fd, &one, sizeof(one));
  static_cast<void>(ignored);
}

void clear(int fd) {
  uint64_t count = 0;
  const ssize_t ignored = read(fd, &count, sizeof(count));
  static_cast<void>(ignored);
}

std::string key_of(const Wait& wait) {
  return std::to_string(wait.operation.process_set) + "/" + wait.operation.name + "/" +
         std::to_string(wait.since_ns);
}

}  // namespace

Result<std::unique_ptr<JobObserver>> JobObserver::start(ObserverPlan plan) {
  std::unique_ptr<JobObserver> observer(new JobObserver(std::move(plan)));
  for (const Rank rank : observer->plan_.ranks) {
    RUEDA_ASSIGN_OR_RETURN(FlightMemory memory, FlightMemory::make());
    observer->ranks_.emplace(rank, std::make_unique<Watched>(std::move(memory)));
  }
  observer->event_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  observer->wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!observer->event_ || !observer->wake_) return errno_status("cannot make an eventfd", errno);
  // Without it `rueda status` finds nothing; the job runs all the same.
  if (auto listener = listen_for_status(observer->plan_.job_id); listener.ok())
    observer->status_ = std::move(listener).value();
  observer->thread_ = std::thread([raw = observer.get()] { raw->run(); });
  return observer;
}

JobObserver::~JobObserver() { stop(); }

void JobObserver::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  ring(wake_.get());
  thread_.join();
}

int JobObserver::memory_fd(Rank rank) const { return ranks_.at(rank)->memory.fd(); }

void JobObserver::rank_started(Rank rank, pid_t pid) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ranks_.at(rank)->pid = pid;
  ranks_.at(rank)->running = true;
}

void JobObserver::rank_ended(Rank rank, bool well, const std::string& how) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Watched& watched = *ranks_.at(rank);
  watched.running = false;
  watched.well = well;
  watched.how = how;
}

std::vector<std::string> JobObserver::take_lines() {
  clear(event_.get());
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(lines_, {});
}

void JobObserver::say(std::vector<std::string> lines) {
  if (lines.empty()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::string& line : lines) lines_.push_back(std::move(line));
  }
  ring(event_.get());
}

void JobObserver::request_dump() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    dump_wanted_ = true;
  }
  ring(wake_.get());
}

std::string JobObserver::folder() const {
  return plan_.folder.empty() ? "rueda-flight-" + plan_.job_id : plan_.folder;
}

void JobObserver::run() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (;;) {
    pollfd fds[] = {{wake_.get(), POLLIN, 0}, {status_.get(), POLLIN, 0}};
    poll(fds, status_ ? 2 : 1, kTickMs);
    clear(wake_.get());
    bool dump_wanted = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      dump_wanted = std::exchange(dump_wanted_, false);
    }
    if (dump_wanted) dump();
    if (fds[1].revents != 0) answer();
    look_for_stalls();
  }
}

std::vector<RankRecord> JobObserver::look(const std::vector<Rank>& stacks_of) {
  std::vector<RankRecord> records;
  for (const auto& [rank, watched] : ranks_) {
    RankRecord record;
    record.rank = rank;
    auto flight = flight::read_flight(watched->memory.bytes());
    if (flight.ok()) record.flight = std::move(flight).value();
    pid_t pid = -1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (watched->running) {
        pid = record.flight ? record.flight->pid : watched->pid;
      } else if (!watched->how.empty()) {
        record.life = watched->well ? RankRecord::Life::kLeft : RankRecord::Life::kDead;
        record.state = watched->how;
      }
    }
    if (pid > 0) {
      const ProcessActivity state = process_activity(pid);
      record.state = state.text;
      if (state.silent) record.life = RankRecord::Life::kSilent;
      else if (record.flight && record.flight->left) record.life = RankRecord::Life::kLeft;
      const bool wanted = std::find(stacks_of.begin(), stacks_of.end(), rank) != stacks_of.end();
      if (wanted && record.flight) {
        record.stacks = collect_stacks(pid, record.flight->stack_signal, record.flight->stack_fd,
                                       kStackPatience);
        watched->stacks = record.stacks;
      }
    }
    if (record.stacks.empty() && pid <= 0) record.stacks = watched->stacks;
    records.push_back(std::move(record));
  }
  return records;
}

void JobObserver::look_for_stalls() {
  if (plan_.stall_seconds <= 0) return;
  const bool any = std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return flight::has_unfinished(entry.second->memory.bytes());
  });
  if (!any) return told_.clear();
  const int64_t now = now_ns();
  const std::vector<RankRecord> records = look({});
  bool due = false;
  std::set<Rank> waiting, absent;
  std::map<std::string, double> told;
  for (const Wait& wait : find_waits(records)) {
    const double age = wait.seconds(now);
    if (age < plan_.stall_seconds || wait.operation.kind == CollectiveKind::kJoin) continue;
    const std::string key = key_of(wait);
    const auto known = told_.find(key);
    double next = known == told_.end() ? 0 : known->second;
    if (age >= next) {
      due = true;
      next = 2 * age;
    }
    if (told.size() < kMostTold) told.emplace(key, next);
    waiting.insert(wait.in.begin(), wait.in.end());
    for (const Rank rank : wait.out) {
      if (absent.size() < kMostStacks) absent.insert(rank);
    }
  }
  told_ = std::move(told);
  if (!due) return;
  if (absent.empty()) {  // all ranks are in it: whoever is stuck is one of them
    for (const Rank rank : waiting) {
      if (absent.size() < kMostStacks) absent.insert(rank);
    }
  }
  const std::vector<RankRecord> closer = look({absent.begin(), absent.end()});
  std::vector<std::string> lines = explain_waits(closer, now, plan_.stall_seconds, Stacks::kAll);
  if (lines.empty()) return;
  // For the errors of those that wait, which have less room.
  for (const Rank rank : waiting) {
    std::string mail;
    for (const std::string& line :
         explain_waits(closer, now, plan_.stall_seconds, Stacks::kPlace, rank)) {
      mail += (mail.empty() ? "" : "\n") + line;
    }
    flight::write_mail(ranks_.at(rank)->memory.bytes(), mail);
  }
  if (plan_.dump_stalls) {
    for (std::string& line : write(closer)) lines.push_back(std::move(line));
  }
  say(std::move(lines));
}

std::vector<std::string> JobObserver::write(const std::vector<RankRecord>& records) {
  std::vector<std::string> lines;
  const int64_t now = now_ns();
  for (const RankRecord& record : records) {
    const Status written =
        write_flight_file(folder(), record, ranks_.at(record.rank)->memory.bytes(), now);
    if (!written.ok()) return {written.message()};
  }
  return {"the flight recorders are in '" + folder() + "': rueda explain " + folder()};
}

void JobObserver::dump() {
  std::vector<Rank> all;
  for (const auto& [rank, watched] : ranks_) all.push_back(rank);
  say(write(look(all)));
}

std::vector<std::string> JobObserver::write_files() { return write(look({})); }

void JobObserver::answer() {
  const JobStatus job{plan_.job_id, plan_.command, now_ns(), look({})};
  answer_status(status_.get(), status_json(job) + '\x1e' + status_text(job));
}

}  // namespace rueda::launcher
