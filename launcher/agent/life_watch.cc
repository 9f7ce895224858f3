#include "launcher/agent/life_watch.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "collectives/host/event_fd.h"
#include "collectives/host/monotonic.h"
#include "collectives/host/threads.h"
#include "launcher/job/exit_report.h"
#include "launcher/processes/process_tree.h"

namespace rueda::launcher {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(250);
constexpr Duration kCrashLook = std::chrono::milliseconds(5);  // while a handler has the last word
// Whose threads still run then is stopped, or stuck in the kernel: the usual looks do.
constexpr Duration kFenceLimit = std::chrono::seconds(2);
constexpr Duration kCrashLimit = std::chrono::seconds(10);

std::string seconds_text(Duration d) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(d).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

// "rank 3 (pid 4711)"
std::string name_of(Rank rank, pid_t pid) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + ")";
}

// Others of its epoch count on it. Who has been in none yet is missed by its parent alone.
bool is_missed(life::Presence presence) {
  return presence == life::Presence::kInEpoch || presence == life::Presence::kBetween;
}

}  // namespace

Result<std::unique_ptr<LifeWatch>> LifeWatch::create(std::string host, Duration dead_after) {
  std::unique_ptr<LifeWatch> watch(new LifeWatch(std::move(host), dead_after));
  RUEDA_ASSIGN_OR_RETURN(watch->deaths_, host::make_event_fd());
  RUEDA_ASSIGN_OR_RETURN(watch->alarm_, host::make_event_fd());
  return watch;
}

LifeWatch::~LifeWatch() {
  for (const auto& watched : ranks_) stop_waiter(watched.get());
}

// A waiter sleeps on a word that others own; it is woken again and again until it has seen that it
// is to stop, since it may be on its way to sleep.
void LifeWatch::stop_waiter(Watched* watched) {
  if (!watched->waiter.joinable()) return;
  watched->waiter_stops.store(true);
  while (!watched->waiter_ended.load()) {
    syscall(SYS_futex, &watched->page->owner, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    usleep(100);
  }
  watched->waiter.join();
}

Result<LifeWatch::Handed> LifeWatch::add(MemberId member, Rank rank) {
  UniqueFd page_fd;
  RUEDA_ASSIGN_OR_RETURN(life::LifeMapping page, life::LifeMapping::create(&page_fd));
  auto watched = std::make_unique<Watched>(std::move(page));
  watched->member = member;
  watched->rank = rank;
  watched->page_fd = std::move(page_fd);
  RUEDA_ASSIGN_OR_RETURN(watched->news, host::make_event_fd());
  Handed handed;
  handed.fds = {watched->page_fd.get(), watched->news.get(), alarm_.get()};
  for (const int fd : handed.fds)
    handed.variable.append(handed.variable.empty() ? "" : ",").append(std::to_string(fd));
  ranks_.push_back(std::move(watched));
  return handed;
}

Status LifeWatch::started(MemberId member, pid_t pid) {
  Watched* const watched = find(member);
  watched->pid = pid;
  watched->running = true;
  watched->silence.emplace(dead_after_);
  RUEDA_ASSIGN_OR_RETURN(watched->waiter,
                         host::start_thread([this, watched] { wait_for_end(watched); }));
  if (!next_look_) next_look_ = std::chrono::steady_clock::now() + kLookEvery;
  return {};
}

void LifeWatch::set_rank(MemberId member, Rank rank) {
  if (Watched* const watched = find(member)) watched->rank = rank;
}

void LifeWatch::expect_end(MemberId member) {
  if (Watched* const watched = find(member)) watched->given = true;
}

void LifeWatch::ended(MemberId member) {
  if (Watched* const watched = find(member)) watched->running = false;
}

void LifeWatch::forget(MemberId member) {
  Watched* const watched = find(member);
  if (watched == nullptr) return;
  stop_waiter(watched);
  std::erase_if(ranks_, [&](const auto& one) { return one.get() == watched; });
}

LifeWatch::Watched* LifeWatch::find(MemberId member) const {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(), [member](const auto& watched) {
    return watched->member == member;
  });
  return found == ranks_.end() ? nullptr : found->get();
}

// The process that is in the job: what was started, or something below it, as `sh -c 'python
// train.py; ...'` is not the one that waits and computes. The page is the rank's to write, so only
// a process of the rank's own is believed.
pid_t LifeWatch::member_of(const Watched& watched) {
  const pid_t joined = watched.page->pid.load(std::memory_order_acquire);
  return joined > 0 && joined != watched.pid && descends_from(joined, watched.pid) ? joined
                                                                                   : watched.pid;
}

// Remembers who it is while that can be seen: its parent may reap it before its end is looked at,
// and its number may be another's then.
void LifeWatch::look_inside(Watched* watched) {
  const pid_t joined = watched->page->pid.load(std::memory_order_acquire);
  if (joined <= 0 || joined == watched->pid || joined == watched->inside) return;
  const uint64_t since = started_at(joined);
  if (since == 0 || !descends_from(joined, watched->pid)) return;
  watched->inside = joined;
  watched->inside_since = since;
}

// No thread of the process in the job can run any more, whatever becomes of the shell around it.
bool LifeWatch::is_fenced(const Watched& watched) {
  const pid_t joined = watched.page->pid.load(std::memory_order_acquire);
  if (joined <= 0 || joined == watched.pid) return all_threads_exiting(watched.pid);
  const uint64_t since = started_at(joined);
  if (since == 0) return true;  // reaped
  const bool is_other =
      joined == watched.inside ? since != watched.inside_since : !descends_from(joined, getpid());
  return is_other || all_threads_exiting(joined);
}

// A thread of its own.
void LifeWatch::wait_for_end(Watched* watched) {
  std::atomic<uint32_t>& word = watched->page->owner;
  while (!watched->waiter_stops.load()) {
    const uint32_t value = word.load(std::memory_order_acquire);
    const bool missed = is_missed(watched->page->where());
    // Who comes next in this place has put itself into the word before it is in an epoch.
    if ((value & FUTEX_OWNER_DIED) != 0 && missed && word.load() == value) {
      watched->died_ns.store(host::monotonic_ns());
      host::ring_event_fd(deaths_.get());
      break;
    }
    // A process that begins changes the word without waking us: it is the same word still.
    syscall(SYS_futex, &word, FUTEX_WAIT, value, nullptr, nullptr, 0);
  }
  watched->waiter_ended.store(true);
}

void LifeWatch::add_to_poll(std::vector<pollfd>* fds) const {
  fds->push_back({deaths_.get(), POLLIN, 0});
  fds->push_back({alarm_.get(), POLLIN, 0});
}

// Why this rank must be given up now, if it must.
std::optional<std::string> LifeWatch::cause_of(Watched* watched, TimePoint now) {
  if (watched->died_ns.load() != 0) {
    if (!watched->kill_reason.empty()) return watched->kill_reason;
    const auto crash =
        static_cast<life::Crash>(watched->page->crash.load(std::memory_order_acquire));
    if (crash == life::Crash::kNone) return "it ended without leaving the job";
  }
  const auto crash = static_cast<life::Crash>(watched->page->crash.load(std::memory_order_acquire));
  if (crash == life::Crash::kNone) {
    watched->crash_seen.reset();
    return std::nullopt;
  }
  if (!watched->crash_seen) watched->crash_seen = now;
  if (crash == life::Crash::kHandled && watched->died_ns.load() == 0 &&
      !is_dying(member_of(*watched)))
    return std::nullopt;
  const std::string signal = signal_name(watched->page->crash_signal.load());
  // It may have jumped out of its handler long ago and have died of something else.
  if (crash == life::Crash::kHandled && watched->died_ns.load() != 0)
    return "it ended without leaving the job after " + signal +
           ", which a handler of its own had taken";
  return "crashed with " + signal;
}

LifeWatch::Findings LifeWatch::look(TimePoint now) {
  Findings findings;
  host::clear_event_fd(deaths_.get());
  host::clear_event_fd(alarm_.get());
  const bool due = !next_look_ || now >= *next_look_;
  const Duration every = kLookEvery;
  bool running = false, crashing = false, ending = false;
  std::vector<std::pair<int64_t, life::LostRank>> lost;
  for (const auto& watched : ranks_) {
    if (!watched->running) continue;
    running = true;
    if (watched->given) {
      ending = look_at_threads(watched.get(), now, &findings) || ending;
      continue;
    }
    look_inside(watched.get());
    if (const auto cause = cause_of(watched.get(), now)) {
      watched->given = true;
      watched->lost_at = now;
      ending = true;
      life::LostRank verdict = this->verdict(watched->member, watched->pid, *cause, false);
      if (watched->died_ns.load() != 0) verdict.noticed_ns = watched->died_ns.load();
      lost.emplace_back(verdict.noticed_ns, verdict);
      continue;
    }
    crashing = crashing || (watched->crash_seen && now - *watched->crash_seen < kCrashLimit);
    if (due && !paused_) look_at_silence(watched.get(), now, &findings);
  }
  std::stable_sort(lost.begin(), lost.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [when, verdict] : lost) findings.lost.push_back(verdict);
  if (due) last_look_ = now;
  if (!running) {
    next_look_.reset();
  } else if (due || ((crashing || ending) && now + kCrashLook < *next_look_)) {
    next_look_ = now + (crashing || ending ? kCrashLook : every);
  }
  return findings;
}

// True while the next look should come soon.
bool LifeWatch::look_at_threads(Watched* watched, TimePoint now, Findings* findings) {
  if (!watched->lost_at || watched->fenced) return false;
  if (!is_fenced(*watched)) return now - *watched->lost_at < kFenceLimit;
  watched->fenced = true;
  findings->fenced.push_back(watched->member);
  return false;
}

void LifeWatch::look_at_silence(Watched* watched, TimePoint now, Findings* findings) {
  if (!watched->kill_reason.empty()) return;
  const pid_t member = member_of(*watched);
  const ProcessState state = read_process_state(member);
  const Duration since = last_look_ == TimePoint{} ? kLookEvery : now - last_look_;
  const std::string who = name_of(watched->rank, member);
  switch (watched->silence->observe(state, false, since)) {
    case Silence::Verdict::kSuspect:
      findings->remarks.push_back(who + " is " + describe_state(state) +
                                  "; if it does not go on it counts as dead after " +
                                  seconds_text(dead_after_) + " (RUEDA_DEAD_SECONDS)");
      break;
    case Silence::Verdict::kTraced:
      findings->remarks.push_back(who + " is " + describe_state(state) +
                                  "; the others wait for it");
      break;
    case Silence::Verdict::kGoesOn: findings->remarks.push_back(who + " goes on"); break;
    case Silence::Verdict::kLive: break;
    case Silence::Verdict::kDead:
      // A process that can wake up later could write into memory that others use again: it has to
      // end before its end is told.
      watched->kill_reason = "it was " + describe_state(state) + " for " +
                             seconds_text(watched->silence->quiet()) +
                             ", so ruedarun killed it (RUEDA_DEAD_SECONDS)";
      kill(member, SIGKILL);
      break;
  }
}

life::LostRank LifeWatch::verdict(MemberId member, pid_t pid, const std::string& cause,
                                  bool is_final) const {
  const Watched* const watched = find(member);
  life::LostRank lost;
  lost.member = member;
  lost.rank = watched != nullptr ? watched->rank : static_cast<Rank>(member);
  lost.pid = pid;
  lost.noticed_ns = host::monotonic_ns();
  lost.cause_is_final = is_final ? 1 : 0;
  lost.host.set(host_);
  lost.cause.set(watched != nullptr && is_final && !watched->kill_reason.empty()
                     ? watched->kill_reason
                     : cause);
  if (watched != nullptr && watched->page->operation.version() != 0) {
    const life::LastOperation last = watched->page->operation.read();
    lost.operation.set(last.name.str());
    lost.operations = last.number;
    lost.step = last.step;
  }
  return lost;
}

std::chrono::nanoseconds LifeWatch::waited(MemberId member) const {
  const Watched* const watched = find(member);
  if (watched == nullptr) return {};
  // A wait that ends between these looks would be missing, or counted twice.
  for (int tries = 0;; ++tries) {
    const int64_t before = watched->page->blocked_ns.load(std::memory_order_acquire);
    const int64_t since = watched->page->blocked_since.load(std::memory_order_acquire);
    const int64_t after = watched->page->blocked_ns.load(std::memory_order_acquire);
    if (before != after && tries < 3) continue;
    return std::chrono::nanoseconds(after + (since == 0 ? 0 : host::monotonic_ns() - since));
  }
}

bool LifeWatch::has_not_left(MemberId member) const {
  const Watched* const watched = find(member);
  return watched != nullptr && watched->page->where() != life::Presence::kLeft;
}

bool LifeWatch::was_replaced(MemberId member) const {
  const Watched* const watched = find(member);
  if (watched == nullptr || !watched->running || watched->died_ns.load() == 0) return false;
  const pid_t joined = watched->page->pid.load(std::memory_order_acquire);
  return joined == watched->pid && !is_dying(watched->pid);
}

pid_t LifeWatch::joined_pid(MemberId member) const {
  const Watched* const watched = find(member);
  return watched == nullptr ? 0 : watched->page->pid.load(std::memory_order_acquire);
}

std::string LifeWatch::gpu(MemberId member) const {
  const Watched* const watched = find(member);
  return watched == nullptr ? "" : watched->page->gpu.read().str();
}

bool LifeWatch::has_joined_inside(MemberId member) const {
  const pid_t joined = joined_pid(member);
  return joined > 0 && joined != find(member)->pid;
}

bool LifeWatch::has_joined(MemberId member) const { return joined_pid(member) != 0; }

void LifeWatch::tell(const life::LostRank& lost) {
  if (lost.epoch != 0 && lost.epoch < told_epoch_) return;
  told_epoch_ = lost.epoch;
  for (const auto& watched : ranks_) {
    watched->page->lost.publish(lost);
    host::ring_event_fd(watched->news.get());
  }
}

void LifeWatch::announce(uint64_t word) {
  for (const auto& watched : ranks_)
    watched->page->announced.store(word, std::memory_order_release);
}

}  // namespace rueda::launcher
