#include "launcher/agent/job_observer.h"

#include <poll.h>
#include <signal.h>

#include "collectives/host/event_fd.h"
#include "collectives/host/threads.h"

namespace rueda::launcher {
namespace {

constexpr int kTickMs = 1000;

}  // namespace

Result<std::unique_ptr<JobObserver>> JobObserver::start(ObserverPlan plan) {
  std::unique_ptr<JobObserver> observer(new JobObserver(std::move(plan)));
  RUEDA_ASSIGN_OR_RETURN(observer->event_, host::make_event_fd());
  RUEDA_ASSIGN_OR_RETURN(observer->wake_, host::make_event_fd());
  // Without it `rueda status` finds nothing; the job runs all the same.
  if (auto door =
          ToolDoor::open(observer->plan_.job_id, observer->plan_.ranks, observer->plan_.command);
      door.ok())
    observer->door_ = std::move(door).value();
  if (observer->plan_.metrics) {
    RUEDA_ASSIGN_OR_RETURN(observer->http_, HttpDoor::open(*observer->plan_.metrics));
  }
  RUEDA_ASSIGN_OR_RETURN(observer->thread_,
                         host::start_thread([raw = observer.get()] { raw->run(); }));
  return observer;
}

JobObserver::~JobObserver() { stop(); }

void JobObserver::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  host::ring_event_fd(wake_.get());
  thread_.join();
}

Result<int> JobObserver::add(MemberId member, Rank rank) {
  RUEDA_ASSIGN_OR_RETURN(FlightMemory memory, FlightMemory::make());
  auto watched = std::make_shared<Watched>(std::move(memory));
  watched->member = member;
  watched->rank = rank;
  const int fd = watched->memory.fd();
  const std::lock_guard<std::mutex> lock(mutex_);
  forget_ended();
  members_.insert_or_assign(member, std::move(watched));
  return fd;
}

void JobObserver::rank_started(MemberId member, pid_t pid) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = members_.find(member);
  if (known == members_.end()) return;
  known->second->pid = pid;
  known->second->running = true;
}

void JobObserver::begin_epoch(const std::map<MemberId, Rank>& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [member, watched] : members_) {
    const auto found = ranks.find(member);
    watched->in_epoch = found != ranks.end();
    if (watched->in_epoch) watched->rank = found->second;
  }
  forget_ended();
}

// Those of no epoch that goes on, or went on last.
void JobObserver::forget_ended() {
  std::erase_if(members_, [](const auto& known) {
    return !known.second->running && !known.second->in_epoch && !known.second->how.empty();
  });
}

void JobObserver::rank_ended(MemberId member, bool well, const std::string& how) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = members_.find(member);
  if (known == members_.end()) return;
  Watched& watched = *known->second;
  watched.running = false;
  watched.well = well;
  if (!well) ++ranks_lost_;
  watched.how = how;
}

void JobObserver::forget(MemberId member) {
  const std::lock_guard<std::mutex> lock(mutex_);
  members_.erase(member);
}

std::map<Rank, std::shared_ptr<JobObserver::Watched>> JobObserver::newest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<Rank, std::shared_ptr<Watched>> by_rank;
  for (const auto& [member, watched] : members_) {
    std::shared_ptr<Watched>& known = by_rank[watched->rank];
    if (known == nullptr || watched->in_epoch || !known->in_epoch) known = watched;
  }
  return by_rank;
}

std::vector<std::string> JobObserver::take_lines() {
  host::clear_event_fd(event_.get());
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(lines_, {});
}

void JobObserver::request_report(HostQuestion question) {
  const bool stopped = !thread_.joinable();
  HostReport now = stopped ? report(question) : HostReport{};
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopped) {
    reports_.push_back(std::move(now));
  } else {
    questions_.push_back(std::move(question));
    host::ring_event_fd(wake_.get());
  }
}

std::vector<HostReport> JobObserver::take_reports() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(reports_, {});
}

std::vector<RankCounters> JobObserver::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

void JobObserver::mail(MemberId member, const std::string& text) {
  std::shared_ptr<Watched> watched;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = members_.find(member); known != members_.end()) watched = known->second;
  }
  if (watched != nullptr) flight::write_mail(watched->memory.bytes(), text);
}

void JobObserver::say(std::vector<std::string> lines) {
  if (lines.empty()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::string& line : lines) lines_.push_back(std::move(line));
  }
  host::ring_event_fd(event_.get());
}

void JobObserver::run() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (;;) {
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
    if (door_) door_->add_to_poll(&fds);
    if (http_) http_->add_to_poll(&fds);
    poll(fds.data(), fds.size(), kTickMs);
    host::clear_event_fd(wake_.get());
    bool dump_wanted = false;
    std::vector<HostQuestion> questions;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      dump_wanted = std::exchange(dump_wanted_, false);
      questions.swap(questions_);
    }
    if (dump_wanted) dump();
    for (const HostQuestion& question : questions) {
      HostReport made = report(question);
      const std::lock_guard<std::mutex> lock(mutex_);
      reports_.push_back(std::move(made));
      host::ring_event_fd(event_.get());
    }
    if (door_) serve_tools();
    if (http_) serve_metrics();
    if (!plan_.metrics_file.empty()) write_metrics();
    if (plan_.counts) count();
    look_for_stalls();
  }
}

}  // namespace rueda::launcher
