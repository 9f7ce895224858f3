#include "launcher/agent/job_observer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "collectives/base/version.h"
#include "collectives/host/event_fd.h"
#include "collectives/host/threads.h"
#include "launcher/agent/stack_collector.h"
#include "launcher/observe/metrics_pages.h"
#include "launcher/observe/metrics_text.h"
#include "launcher/observe/status_report.h"
#include "launcher/observe/vitals_json.h"
#include "launcher/output/replace_file.h"
#include "launcher/processes/process_state.h"

namespace rueda::launcher {
namespace {

constexpr int kTickMs = 1000;
constexpr std::chrono::milliseconds kStackPatience{1000};
constexpr std::chrono::seconds kWriteLimit{5};
constexpr std::chrono::seconds kWriteMetricsEvery{5};

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// How long the operation waits that has waited longest; 0: none does.
int64_t longest_wait_ns(ByteView memory, int64_t now) {
  int64_t longest = 0;
  for (const int64_t since : flight::waiting_since(memory))
    longest = std::max(longest, flight::elapsed_ns(since, now));
  return longest;
}

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

void JobObserver::request_dump() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    dump_wanted_ = true;
  }
  host::ring_event_fd(wake_.get());
}

std::string JobObserver::folder() const {
  return plan_.folder.empty() ? "rueda-flight-" + plan_.job_id : plan_.folder;
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

HostReport JobObserver::report(const HostQuestion& question) {
  HostReport made;
  made.round = question.round;
  std::vector<RankRecord> records = look(question.stacks_of, question.detail != Detail::kVitals);
  const auto ranks = newest();
  const int64_t of_host = question.detail == Detail::kVitals ? host_cpu_ns() : 0;
  for (RankRecord& record : records) {
    const auto holder = ranks.find(record.rank);
    if (holder == ranks.end()) continue;  // it has left since it was looked at
    const Watched& watched = *holder->second;
    RankView view;
    view.member = watched.member;
    view.pid = record.flight ? record.flight->pid : watched.pid;
    view.pieces = flight_pieces(watched.memory.bytes(), question.detail);
    if (question.detail == Detail::kVitals) {
      if (view.pid > 0) view.use = process_use(view.pid);
      view.use.host_cpu_ns = of_host;
      view.stalled = stalled(watched);
    }
    record.flight.reset();
    view.record = std::move(record);
    made.ranks.push_back(std::move(view));
  }
  made.now_ns = now_ns();
  return made;
}

void JobObserver::count() {
  std::vector<RankCounters> counters;
  for (const auto& [rank, watched] : newest()) {
    const auto progress = flight::read_progress(watched->memory.bytes());
    if (!progress) continue;
    RankCounters one{rank, *progress, watched->member};
    const int64_t longest = longest_wait_ns(watched->memory.bytes(), now_ns());
    if (longest > 0)
      one.progress.oldest_wait_ms = static_cast<uint64_t>(std::max<int64_t>(longest / 1'000'000, 1));
    counters.push_back(one);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_ = std::move(counters);
}

std::vector<RankRecord> JobObserver::look(const std::vector<Rank>& stacks_of,
                                          bool with_operations) {
  std::vector<RankRecord> records;
  for (const auto& [rank, watched] : newest()) {
    RankRecord record;
    record.rank = rank;
    const auto vitals = flight::read_vitals(watched->memory.bytes());
    if (with_operations && vitals) {
      auto flight = flight::read_flight(watched->memory.bytes());
      if (flight.ok()) record.flight = std::move(flight).value();
    }
    pid_t pid = -1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      record.pid = watched->pid;
      if (watched->running) {
        pid = vitals ? vitals->pid : watched->pid;
      } else if (!watched->how.empty()) {
        record.life = watched->well ? RankRecord::Life::kLeft : RankRecord::Life::kDead;
        record.state = watched->how;
      }
    }
    if (pid > 0) {
      const ProcessActivity state = process_activity(pid);
      record.state = state.text;
      if (state.silent)
        record.life = RankRecord::Life::kSilent;
      else if (vitals && vitals->left)
        record.life = RankRecord::Life::kLeft;
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
  const auto ranks = newest();
  const int64_t now = now_ns();
  const bool any = std::any_of(ranks.begin(), ranks.end(), [&](const auto& entry) {
    const int64_t longest = longest_wait_ns(entry.second->memory.bytes(), now);
    return static_cast<double>(longest) * 1e-9 >= plan_.stall_seconds;
  });
  if (!any) return stalls_.forget();
  const StallWatch::Due due = stalls_.look(look({}), now);
  if (!due.any) return;
  const std::vector<RankRecord> closer = look({due.absent.begin(), due.absent.end()});
  std::vector<std::string> lines = explain_waits(closer, now, plan_.stall_seconds, Stacks::kAll);
  if (lines.empty()) return;
  lines = story_.tell(std::move(lines), due.anew);
  // For the errors of those that wait, which have less room; not of who has got their number since.
  const auto now_ranks = newest();
  for (const Rank rank : due.waiting) {
    const auto holder = now_ranks.find(rank);
    const auto looked_at = ranks.find(rank);
    if (holder == now_ranks.end() || looked_at == ranks.end() ||
        holder->second != looked_at->second)
      continue;
    std::string mail;
    for (const std::string& line :
         explain_waits(closer, now, plan_.stall_seconds, Stacks::kPlace, rank)) {
      mail += (mail.empty() ? "" : "\n") + line;
    }
    flight::write_mail(holder->second->memory.bytes(), mail);
  }
  if (plan_.dump_stalls) {
    for (std::string& line : write(closer)) lines.push_back(std::move(line));
  }
  say(std::move(lines));
}

std::vector<std::string> JobObserver::write(const std::vector<RankRecord>& records) {
  const std::string hangs =
      "the folder '" + folder() + "' has not answered for " + std::to_string(kWriteLimit.count()) +
      " s: the flight recorders were not written (is it on a file server that "
      "is gone? --flight-recorder FOLDER names another)";
  if (!writer_.idle()) return {hangs};
  const int64_t now = now_ns();
  const auto ranks = newest();
  for (const RankRecord& record : records) {
    const auto holder = ranks.find(record.rank);
    if (holder == ranks.end()) continue;  // it has left since it was looked at
    const ByteView memory = holder->second->memory.bytes();
    std::vector<std::byte> copy(memory.begin(), memory.end());
    writer_.add([folder = folder(), record, now, copy = std::move(copy)] {
      return write_flight_file(folder, record, copy, now);
    });
  }
  const bool written = writer_.wait(kWriteLimit);
  writer_.forget();
  const std::vector<std::string> problems = writer_.take_problems();
  if (!problems.empty()) return {problems.front()};
  if (!written) return {hangs};
  return {"the flight recorders are in '" + folder() + "': rueda explain " + folder()};
}

void JobObserver::dump() {
  std::vector<Rank> all;
  for (const auto& [rank, watched] : newest()) all.push_back(rank);
  say(write(look(all)));
}

std::vector<std::string> JobObserver::write_files() { return write(look({})); }

void JobObserver::serve_tools() {
  const auto now = std::chrono::steady_clock::now();
  std::string drained;
  std::vector<std::pair<int, std::string>> answers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    drained = std::exchange(drain_answer_, "");
    answers.swap(host_answers_);
  }
  for (auto& [client, text] : answers) door_->answer(client, std::move(text));
  if (!drained.empty()) {
    for (const int client : std::exchange(drain_clients_, {})) door_->answer(client, drained);
  }
  for (const ToolDoor::Question& one : door_->work(now)) {
    if (one.text == "status") {
      door_->answer(one.client, status());
    } else if (one.text == kVitalsQuestion) {
      door_->answer(one.client, vitals_json(vitals()));
    } else if (const auto rank = asked_rank(one.text)) {
      std::string story = "there is no rank " + std::to_string(*rank) + "\n";
      for (const RankRecord& record : look({*rank})) {
        if (record.rank == *rank) story = rank_story(record, now_ns());
      }
      door_->answer(one.client, std::move(story));
    } else if (one.text == "drain") {
      drain_clients_.push_back(one.client);
      const std::lock_guard<std::mutex> lock(mutex_);
      drain_wanted_ = true;
      host::ring_event_fd(event_.get());
    } else if (one.text.starts_with(kDrainHost)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      host_drains_.push_back({one.client, one.text.substr(kDrainHost.size())});
      host::ring_event_fd(event_.get());
    } else {
      door_->answer(one.client, "");
    }
  }
  door_->send_answers();
}

bool JobObserver::take_drain() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(drain_wanted_, false);
}

void JobObserver::drained(int asked, int ranks) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    drain_answer_ = drain_answer(asked, ranks);
  }
  host::ring_event_fd(wake_.get());
}

std::vector<JobObserver::HostDrain> JobObserver::take_host_drains() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(host_drains_, {});
}

void JobObserver::host_drained(int client, const Result<std::string>& outlook) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    host_answers_.emplace_back(client, drain_answer(outlook));
  }
  host::ring_event_fd(wake_.get());
}

uint64_t JobObserver::stalled(const Watched& watched) const {
  const int64_t now = now_ns();
  return static_cast<uint64_t>(
      std::ranges::count_if(flight::waiting_since(watched.memory.bytes()), [&](int64_t since) {
        return static_cast<double>(flight::elapsed_ns(since, now)) * 1e-9 >= plan_.stalled_after;
      }));
}

JobVitals JobObserver::vitals() {
  JobVitals job{plan_.job_id, plan_.command, {}, {}, 0};
  const int64_t of_host = host_cpu_ns();
  std::map<Rank, RankRecord> records;
  for (RankRecord& record : look({}, false)) records[record.rank] = std::move(record);
  for (const auto& [rank, watched] : newest()) {
    const auto record = records.find(rank);
    if (record == records.end()) continue;
    RankVitals one;
    one.rank = rank;
    one.life = record->second.life;
    one.state = record->second.state;
    one.flight = flight::read_vitals(watched->memory.bytes());
    one.now_ns = now_ns();
    one.pid = one.flight ? one.flight->pid : record->second.pid;
    if (one.flight) one.host = one.flight->host;
    const bool runs =
        one.life == RankRecord::Life::kRunning || one.life == RankRecord::Life::kSilent;
    if (runs && one.pid > 0) one.use = process_use(one.pid);
    one.use.host_cpu_ns = of_host;
    if (runs) one.stalled = stalled(*watched);
    job.ranks.push_back(std::move(one));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  job.ranks_lost = ranks_lost_;
  return job;
}

void JobObserver::serve_metrics() {
  const auto questions = http_->work(std::chrono::steady_clock::now());
  if (!questions.empty()) {
    const JobVitals job = vitals();
    for (const HttpDoor::Question& one : questions) {
      const HttpPage page = metrics_page(one.path, job);
      http_->answer(one.client, page.code, page.type, page.body);
    }
  }
  http_->send_answers();
}

// For node_exporter, which reads a file as it is: it is replaced whole.
void JobObserver::write_metrics() {
  const auto now = std::chrono::steady_clock::now();
  if (now < metrics_due_ || !metrics_writer_.idle()) return;
  metrics_due_ = now + kWriteMetricsEvery;
  for (const std::string& problem : metrics_writer_.take_problems()) {
    if (std::exchange(metrics_problem_, problem) != problem) say({problem});
  }
  metrics_writer_.add([path = plan_.metrics_file, text = metrics_text(vitals(), version())] {
    const ByteView all = std::as_bytes(std::span(text));
    return replace_file(path, {&all, 1}, "metrics", 0644);
  });
}

std::string JobObserver::status() {
  const JobStatus job{plan_.job_id, plan_.command, now_ns(), look({}), {}, {}};
  return status_json(job) + kStatusCut + status_text(job);
}

}  // namespace rueda::launcher
