// What a JobObserver sees of the ranks of its host, and whether one of them waits for too long.
#include <algorithm>

#include "collectives/host/monotonic.h"
#include "launcher/agent/job_observer.h"
#include "launcher/agent/stack_collector.h"
#include "launcher/processes/process_state.h"

namespace rueda::launcher {
namespace {

constexpr std::chrono::milliseconds kStackPatience{1000};

// How long the operation waits that has waited longest; 0: none does.
int64_t longest_wait_ns(ByteView memory, int64_t now) {
  int64_t longest = 0;
  for (const int64_t since : flight::waiting_since(memory))
    longest = std::max(longest, flight::elapsed_ns(since, now));
  return longest;
}

}  // namespace

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
  made.now_ns = host::monotonic_ns();
  return made;
}

void JobObserver::count() {
  std::vector<RankCounters> counters;
  for (const auto& [rank, watched] : newest()) {
    const auto progress = flight::read_progress(watched->memory.bytes());
    if (!progress) continue;
    RankCounters one{rank, *progress, watched->member};
    const int64_t longest = longest_wait_ns(watched->memory.bytes(), host::monotonic_ns());
    if (longest > 0)
      one.progress.oldest_wait_ms =
          static_cast<uint64_t>(std::max<int64_t>(longest / 1'000'000, 1));
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

uint64_t JobObserver::stalled(const Watched& watched) const {
  const int64_t now = host::monotonic_ns();
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
    one.now_ns = host::monotonic_ns();
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

void JobObserver::look_for_stalls() {
  if (plan_.stall_seconds <= 0) return;
  const auto ranks = newest();
  const int64_t now = host::monotonic_ns();
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

}  // namespace rueda::launcher
