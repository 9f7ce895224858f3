#include "launcher/agent/agent_process.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "launcher/job/exit_code.h"
#include "launcher/processes/process_state.h"
#include "launcher/processes/process_tree.h"

namespace rueda::launcher {
namespace {

// "18:45:34.500 (1234.567890 s of the monotonic clock)", of the latter's nanoseconds.
std::string clock_text(int64_t monotonic_ns) {
  timespec monotonic = {}, real = {};
  clock_gettime(CLOCK_MONOTONIC, &monotonic);
  clock_gettime(CLOCK_REALTIME, &real);
  const auto nanoseconds = [](const timespec& t) {
    return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
  };
  const int64_t then = nanoseconds(real) - nanoseconds(monotonic) + monotonic_ns;
  const time_t seconds = then / 1'000'000'000;
  tm parts = {};
  localtime_r(&seconds, &parts);
  char clock[16], text[80];
  strftime(clock, sizeof(clock), "%H:%M:%S", &parts);
  std::snprintf(text, sizeof(text), "%s.%03d (%.6f s of the monotonic clock)", clock,
                static_cast<int>(then / 1'000'000 % 1000),
                static_cast<double>(monotonic_ns) * 1e-9);
  return text;
}

}  // namespace

// A lost one's processes go with it, and not at the job's end; before it is reaped, since until
// then its group is its own.
void Agent::end_children_of(const RankProcess& rank, bool well) const {
  if (!plan_.elastic || over_ || supervisor_.cause() != StopCause::kNone) return;
  const bool lost = lives_->has_joined(rank.member()) && lives_->has_not_left(rank.member());
  if (!well || lost) rank.signal(SIGKILL);
}

void Agent::rank_ended(RankProcess* rank, int wait_status, uint64_t resident_peak) {
  rank->ended();
  const MemberId member = rank->member();
  const Rank number = rank->place().rank;
  RankEnd end;
  end.rank = number;
  end.member = member;
  end.removed = rank->removed();
  // Where a shell was started, people look for the process in it.
  const pid_t joined = lives_->joined_pid(member);
  end.pid = joined > 0 ? joined : rank->pid();
  end.wait_status = wait_status;
  end.resident_peak = resident_peak;
  end.noticed = dying_together_.contains(member) ? dying_number_ : noticed_;
  end.stopped = supervisor_.stopping();
  const bool failed = wait_status != 0 && !end.removed;
  any_failed_ = any_failed_ || (failed && !plan_.elastic);
  end.hint = oom_.hint(wait_status);
  if (failed && gpus_ != nullptr) end.hint += gpus_->hint(lives_->gpu(member));
  if (replaced_ && lost_->member == member) {
    end.hint =
        ", by ruedarun: another program had taken its place (exec) before it had left the job "
        "(shutdown)";
  }
  const std::string how = describe_wait_status(wait_status) + end.hint;
  if (observer_ != nullptr) observer_->rank_ended(member, wait_status == 0, how);
  // In an elastic job a loss comes before the end: what ends with 0 and has not left is no success.
  if (!plan_.elastic) controller_->rank_ended(end);
  narrate("rank " + std::to_string(number) + " " + how);
  lives_->ended(member);
  if (!end.removed) tell_loss(*rank, end, how);
  if (plan_.elastic) {
    controller_->rank_ended(end);
    lives_->forget(member);
    causes_.erase(member);
  }
  if (failed) stop_for_failure();
}

// What was told before the process was reaped gets its cause; what nobody saw is told now.
void Agent::tell_loss(const RankProcess& rank, const RankEnd& end, const std::string& how) {
  const MemberId member = end.member;
  const auto told = causes_.find(member);
  const bool known = told != causes_.end() || (lost_ && lost_->member == member);
  if (!known &&
      !(lives_->has_not_left(member) && (end.wait_status != 0 || lives_->has_joined(member))))
    return;
  const bool by_us = lost_ && !plan_.elastic ? lost_by_us_ : end.stopped;
  // A command that hides how the process in it ended tells nothing new.
  const bool hidden = told != causes_.end() && lives_->has_joined_inside(member) &&
                      (end.wait_status == 0 || rank.is_ended_by_us());
  const std::string cause = hidden ? told->second : how;
  rank_lost(lives_->verdict(member, end.pid, by_us ? "ruedarun stopped it: " + how : cause, true));
}

void Agent::look_at_lives() {
  const LifeWatch::Findings findings = lives_->look(time_now());
  for (const std::string& remark : findings.remarks) say(remark);
  for (const life::LostRank& lost : findings.lost) rank_lost(lost);
  for (const MemberId member : findings.fenced) controller_->rank_fenced(member);
}

// The one place through which a loss on this host becomes known, from wherever it was noticed.
//
// Ranks may be lost on several hosts at once: the controller decides which was the first, and its
// word comes back to us too (verdict_came). Until then ours hear nothing, so that no two survivors
// ever hear of different ranks.
void Agent::rank_lost(const life::LostRank& lost) {
  const bool first = causes_.emplace(lost.member, lost.cause.str()).second;
  controller_->rank_lost(lost);
  RankProcess* const rank = find(lost.member);
  if (plan_.elastic && rank != nullptr && rank->running()) {
    if (lives_->was_replaced(lost.member))
      rank->signal(SIGKILL);
    else if (first)
      end_later(lost.member);
  }
  stop_for_failure();
}

// The job's first verdict, or more about the same rank.
void Agent::verdict_came(const life::LostRank& lost) {
  const bool first = !lost_ || lost_->epoch != lost.epoch;
  lost_ = lost;
  lives_->tell(lost);
  if (!first) return;
  lost_by_us_ = supervisor_.stopping();
  narrate(lost.describe() + "; known at " + clock_text(lost.noticed_ns));
  stop_for_failure();
}

void Agent::stop_for_failure() {
  if (plan_.elastic || supervisor_.cause() != StopCause::kNone) return;
  // A killed process may take long to give its memory back, while its peers notice its end at once
  // and exit first. Whoever is on its way out at this moment died together with this one.
  supervisor_.rank_failed(time_now());
  dying_number_ = noticed_;
  for (const auto& other : ranks_) {
    if (other->running() && is_exiting(other->pid())) dying_together_.insert(other->member());
  }
}

void Agent::reap() {
  ++noticed_;
  siginfo_t ended = {};
  while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) {
    const pid_t pid = std::exchange(ended.si_pid, 0);
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& candidate) {
      return candidate->running() && candidate->pid() == pid;
    });
    if (rank != ranks_.end())
      end_children_of(**rank, ended.si_code == CLD_EXITED && ended.si_status == 0);
    int status = 0;
    rusage used{};
    if (wait4(pid, &status, WNOHANG, &used) != pid) break;
    if (rank != ranks_.end())
      rank_ended(rank->get(), status, static_cast<uint64_t>(used.ru_maxrss) << 10);
    else
      controller_->child_ended(pid, status);
  }
}

void Agent::send(int signal) {
  narrate("sending " + signal_name(signal) + " to what is left");
  replaced_ = replaced_ || (lost_ && lives_->was_replaced(lost_->member));
  for (const auto& rank : ranks_) {
    rank->signal(signal);
    if (signal != SIGKILL) rank->signal(SIGCONT);  // a stopped process cannot end itself
  }
  last_sent_ = signal;
  swept_.clear();
  if (signal == SIGKILL && !give_up_at_) give_up_at_ = time_now() + kKillLimit;
}

bool Agent::finished() {
  const bool gave_up = give_up_at_ && time_now() >= *give_up_at_;
  if (!all_ended() && !gave_up) return false;
  if (plan_.elastic && !over_ && supervisor_.cause() == StopCause::kNone) return false;
  // After the last rank: descendants that outlived their ranks have become our children. More
  // appear as these end, which wakes us with SIGCHLD.
  const std::vector<pid_t> left = children_of(getpid());
  if (left.empty()) return true;
  if (gave_up) {
    for (const pid_t pid : left)
      say("process " + std::to_string(pid) + " is stuck in the kernel and was left behind");
    return true;
  }
  supervisor_.leftovers_remain(time_now());
  for (const int signal : supervisor_.due(time_now())) send(signal);
  for (const pid_t pid : left) {
    if (last_sent_ == 0 || !swept_.insert(pid).second) continue;
    kill(pid, last_sent_);
    if (last_sent_ != SIGKILL) kill(pid, SIGCONT);
  }
  return false;
}

HostEnd Agent::end() const {
  HostEnd end;
  end.cause = supervisor_.cause();
  end.signal = supervisor_.cause_signal();
  end.lost_by_us = lost_by_us_;
  if (!lost_) return end;
  end.lost_joined = lives_->has_joined(lost_->member);
  end.lost_inside = lives_->has_joined_inside(lost_->member);
  return end;
}

int Agent::finish(const Status& started) {
  finishing_ = true;
  const bool has_folder = observer_ != nullptr && observer_->has_folder();
  if (observer_ != nullptr) {
    observer_->stop();
    for (const std::string& line : observer_->take_lines()) say(line);
  }
  const bool lost_inside = lost_ && lives_->has_joined_inside(lost_->member);
  const bool failed = any_failed_ || (lost_inside && !plan_.elastic);
  if (plan_.explains && failed && has_folder) {
    for (const std::string& line : observer_->write_files()) say(line);
  }
  for (const auto& rank : ranks_) rank->drain();
  controller_->finish();
  if (controller_->controller_was_lost() && has_folder)
    observer_->write_files();  // nobody else can
  if (!started.ok()) return kLauncherFailure;
  return supervisor_.cause() == StopCause::kSignal ? 128 + supervisor_.cause_signal() : 0;
}

}  // namespace rueda::launcher
