#include "launcher/agent/agent_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/processes/process_state.h"
#include "launcher/processes/process_tree.h"

namespace rueda::launcher {

bool Agent::all_ended() const {
  return std::none_of(ranks_.begin(), ranks_.end(),
                      [](const auto& rank) { return rank->running(); });
}

RankProcess* Agent::find(MemberId member) const {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(),
                                  [&](const auto& rank) { return rank->member() == member; });
  return found == ranks_.end() ? nullptr : found->get();
}

int Agent::poll_limit_ms() const {
  std::optional<TimePoint> deadline = supervisor_.next_deadline();
  const auto sooner = [&](const std::optional<TimePoint>& other) {
    if (other && (!deadline || *other < *deadline)) deadline = other;
  };
  sooner(give_up_at_);
  sooner(leave_by_);
  if (!signals_due_.empty()) sooner(signals_due_.begin()->first);
  if (lives_) sooner(lives_->next_deadline());
  const int limit = controller_->poll_limit_ms();
  if (!deadline) return limit;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - time_now()).count();
  const int ms = static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
  return limit < 0 ? ms : std::min(ms, limit);
}

void Agent::wait_for_events() {
  std::vector<pollfd> fds;
  add_to_poll(&fds);
  if (lives_) lives_->add_to_poll(&fds);  // looked at in every round
  controller_->add_to_poll(&fds);         // likewise
  const size_t observed = fds.size();
  fds.push_back({observer_ != nullptr ? observer_->event_fd() : -1, POLLIN, 0});
  struct Source {
    size_t index;
    RankProcess* rank;
    Stream stream;
  };
  std::vector<Source> sources;
  if (!controller_->congested()) {
    for (const auto& rank : ranks_) {
      for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
        if (rank->output_fd(stream) < 0) continue;
        sources.push_back({fds.size(), rank.get(), stream});
        fds.push_back({rank->output_fd(stream), POLLIN, 0});
      }
    }
  }
  if (poll(fds.data(), fds.size(), poll_limit_ms()) < 0) return;  // EINTR: nothing is lost

  if (fds[observed].revents != 0) take_observations();
  if (observer_ != nullptr) count();
  if (fds[0].revents != 0) read_signals();
  if (guard_link_ && fds[1].revents != 0) check_guard();
  for (const Source& source : sources) {
    if (fds[source.index].revents != 0) source.rank->pump(source.stream);
  }
}

void Agent::take_observations() {
  for (const std::string& line : observer_->take_lines()) say(line);
  if (observer_->take_drain()) {
    const Drained drained = drain_ranks();
    observer_->drained(drained.asked, drained.ranks);
  }
  for (const JobObserver::HostDrain& one : observer_->take_host_drains())
    observer_->host_drained(one.client, controller_->drain_host(one.host));
  for (HostReport& report : observer_->take_reports()) controller_->report(std::move(report));
}

// When the observer has counted anew.
void Agent::count() {
  std::vector<RankCounters> counters = observer_->counters();
  if (counters == counted_) return;
  counted_ = counters;
  for (RankCounters& one : counters) {
    const life::LostRank now = lives_->verdict(one.member, 0, "", false);
    one.operation = now.operation.str();
    one.operations = now.operations;
    one.step = now.step;
    one.waited_ns = lives_->waited(one.member).count();
    one.at_ns = now.noticed_ns;
  }
  controller_->count(counters);
}

void Agent::read_signals() {
  signalfd_siginfo info = {};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;  // reap() looks for itself
    if (signal == SIGUSR2 && observer_ != nullptr && observer_->has_folder()) {
      observer_->request_dump();
      continue;
    }
    if (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGTSTP || signal == SIGCONT) {
      signal_ranks(signal);
      continue;
    }
    check_guard();
    if (!guard_link_) continue;  // the kernel's message that the guard is gone
    if (leaves(signal, static_cast<pid_t>(info.ssi_pid) == plan_.guard)) continue;
    ++signals_received_;
    supervisor_.signal_received(signal, time_now());
    if (signals_received_ == 1) {
      say(signal_name(signal) + ": asking the ranks to stop (once more kills them at once)");
    }
  }
}

// SIGTERM is what clouds and batch systems send before they take a machine away: an elastic job
// goes on elsewhere, and our ranks leave at their next commit. Some send it to every process, so
// that it comes directly and from our guard: that is one notice.
bool Agent::leaves(int signal, bool by_guard) {
  if (signal != SIGTERM || !plan_.elastic || plan_.explains) return false;
  if (over_ || finishing_ || supervisor_.cause() != StopCause::kNone) return false;
  if (leave_by_ && by_guard == notice_by_guard_) {
    leave_by_ = time_now();
    return true;
  }
  if (leave_by_) return true;
  notice_by_guard_ = by_guard;
  leave_by_ = time_now() + grace();
  controller_->leaves(signal_name(signal));
  return true;
}

// Ranks that are still here are killed, and are lost to the others.
void Agent::leave_in_time() {
  if (!leave_by_ || time_now() < *leave_by_) return;
  leave_by_.reset();
  if (supervisor_.cause() != StopCause::kNone) return;
  if (!all_ended()) say("the ranks that have not left yet are killed");
  supervisor_.driver_lost(time_now());
}

// The user's own: to the ranks and not to what they have started, which it would end. A pause
// (Ctrl-Z) is for all of them, and no silence; it comes as SIGSTOP, because a group without a
// parent in its session takes no SIGTSTP.
void Agent::signal_ranks(int signal) {
  if (signal == SIGTSTP || signal == SIGCONT) {
    lives_->pause(signal == SIGTSTP);
    for (const auto& rank : ranks_) rank->signal(signal == SIGTSTP ? SIGSTOP : SIGCONT);
    return;
  }
  for (const auto& rank : ranks_) rank->signal_process(signal);
}

// Whatever has happened elsewhere stops this host's ranks as if it had happened here.
void Agent::follow(const Order& order) {
  switch (order.kind) {
    case Order::Kind::kRankFailed: supervisor_.rank_failed(time_now()); break;
    case Order::Kind::kRankLost: verdict_came(order.lost); break;
    case Order::Kind::kSignal:
      leave_by_.reset();  // there is no other host
      // Another controller tells it again; the user's second one comes as kKill.
      if (supervisor_.cause() == StopCause::kSignal) break;
      supervisor_.signal_received(order.signal, time_now());
      break;
    case Order::Kind::kUserSignal: signal_ranks(order.signal); break;
    case Order::Kind::kOutputClosed: supervisor_.output_closed(time_now()); break;
    case Order::Kind::kKill: supervisor_.driver_lost(time_now()); break;
    case Order::Kind::kObserve: observe(order.question); break;
    case Order::Kind::kMail:
      if (observer_ != nullptr) observer_->mail(order.member, order.text);
      break;
    case Order::Kind::kStartMember: start_late(order.start); break;
    case Order::Kind::kStopMember:
      if (order.knows)
        leave_member(order.member);
      else
        stop_member(order.member, order.text);
      break;
    case Order::Kind::kBeginEpoch: begin_epoch(order.ranks); break;
    case Order::Kind::kAnnounce: lives_->announce(order.word); break;
    case Order::Kind::kJobOver: job_over(order.exit_code); break;
    case Order::Kind::kDrain: {
      const Drained drained = drain_ranks();
      controller_->drained(drained.asked, drained.ranks);
      break;
    }
  }
}

// It may be one that works well: it is asked, and killed after the grace period.
void Agent::stop_member(MemberId member, const std::string& why) {
  RankProcess* const rank = find(member);
  if (rank == nullptr || !rank->running() || rank->removed()) return;
  narrate("rank " + std::to_string(rank->place().rank) + " (pid " + std::to_string(rank->pid()) +
          ") is stopped: " + why);
  lives_->expect_end(member);
  if (causes_.contains(member))
    rank->end_it();  // it is lost: how it ended is still to be told
  else
    rank->remove();
  rank->signal(SIGTERM);
  rank->signal(SIGCONT);  // a stopped process cannot end itself
  signals_due_.emplace(time_now() + grace(), std::pair(member, SIGKILL));
}

// It has been told so, and has the grace period to go by itself. One that is lost may have asked to
// enter just before: its end is a loss all the same, whose cause others wait to hear.
void Agent::leave_member(MemberId member) {
  RankProcess* const rank = find(member);
  if (rank == nullptr || !rank->running() || rank->removed() || causes_.contains(member)) return;
  lives_->expect_end(member);
  rank->remove();
  end_later(member);
}

// What has no part in the job any more: a shell whose command was lost, a program that does not end
// though it was told that the job goes on without it.
void Agent::end_later(MemberId member) {
  signals_due_.emplace(time_now() + grace(), std::pair(member, SIGTERM));
}

// Whoever is asked is killed later: from when it was asked, so that an agent that comes late itself
// does not ask and kill at once.
void Agent::end_removed() {
  while (!signals_due_.empty() && signals_due_.begin()->first <= time_now()) {
    const auto [member, signal] = signals_due_.begin()->second;
    signals_due_.erase(signals_due_.begin());
    RankProcess* const rank = find(member);
    if (rank == nullptr || !rank->running()) continue;
    rank->end_it();
    rank->signal(signal);
    if (signal == SIGKILL) continue;
    rank->signal(SIGCONT);
    signals_due_.emplace(time_now() + (over_ ? grace() / 2 : grace()), std::pair(member, SIGKILL));
  }
}

// Ranks come and go for as long as the job runs.
void Agent::forget_ended() {
  if (plan_.elastic) std::erase_if(ranks_, [](const auto& rank) { return rank->over(); });
}

void Agent::begin_epoch(const std::map<MemberId, Rank>& ranks) {
  for (const auto& rank : ranks_) {
    const auto found = ranks.find(rank->member());
    if (found == ranks.end()) {
      rank->leave_epoch();
      continue;
    }
    rank->be(found->second);
    lives_->set_rank(found->first, found->second);
  }
  if (observer_ != nullptr) observer_->begin_epoch(ranks);
}

void Agent::job_over(int exit_code) {
  over_ = true;
  if (exit_code == 0) {  // of what runs still the job needs nothing
    for (const auto& rank : ranks_) {
      if (rank->running() && rank->removed())  // it goes by itself, if it does so soon
        signals_due_.emplace(time_now() + grace() / 2, std::pair(rank->member(), SIGTERM));
      stop_member(rank->member(), "the job has ended");
    }
    give_up_at_ = time_now() + 2 * grace() + kKillLimit;  // leftovers of theirs have it once more
    return;
  }
  any_failed_ = true;
  supervisor_.job_over(time_now());
}

void Agent::observe(const HostQuestion& question) {
  if (observer_ == nullptr) return controller_->report({question.round, 0, {}});
  observer_->request_report(question);
  for (HostReport& report : observer_->take_reports()) controller_->report(std::move(report));
}

// Ranks hear of it as of a preemption: with a signal that should_stop() waits for. To those that do
// not wait for one it would be the end, so they are left alone; one that listens is enough.
Agent::Drained Agent::drain_ranks() {
  Drained drained;
  for (const auto& rank : ranks_) {
    if (!rank->running()) continue;
    ++drained.ranks;
    for (const int signal : drain_signals_) {
      if (!catches_signal(rank->pid(), signal)) continue;
      rank->signal_process(signal);
      ++drained.asked;
      break;
    }
  }
  return drained;
}

void Agent::check_guard() {
  if (!guard_link_) return;
  pollfd link = {guard_link_.get(), POLLIN, 0};
  const bool closed = poll(&link, 1, 0) > 0;
  if (!closed && (plan_.guard == 0 || getppid() == plan_.guard)) return;
  guard_link_.reset();
  supervisor_.driver_lost(time_now());
}

bool Agent::is_wanted() {
  read_signals();
  check_guard();
  return guard_link_ && signals_received_ < 2;
}

void Agent::add_to_poll(std::vector<pollfd>* fds) const {
  fds->push_back({signals_.get(), POLLIN, 0});
  fds->push_back({guard_link_.get(), POLLIN, 0});
}

// Ranks wait in init for those that have not called it. These may hang before, in an import or on a
// file server: the user hears of it long before RUEDA_START_TIMEOUT ends the job.
void Agent::look_for_late_ranks() {
  if (told_late_ || supervisor_.cause() != StopCause::kNone) return;
  std::vector<const RankProcess*> late;
  bool any_here = false;
  for (const auto& rank : ranks_) {
    if (!rank->running() || rank->removed()) continue;
    if (plan_.elastic && !rank->in_epoch()) continue;  // the others go on without it
    if (lives_->has_joined(rank->member()))
      any_here = true;
    else
      late.push_back(rank.get());
  }
  if (!any_here || late.empty()) return waiting_since_.reset();
  if (!waiting_since_) waiting_since_ = time_now();
  if (time_now() - *waiting_since_ < to_duration(plan_.init_patience)) return;
  told_late_ = true;
  constexpr size_t kMostTold = 4;
  for (size_t i = 0; i < std::min(late.size(), kMostTold); ++i) {
    const std::string pid = std::to_string(late[i]->pid());
    std::string text = "rank " + std::to_string(late[i]->place().rank) + " (pid " + pid;
    text += ") has not called init, and others have waited " +
            std::to_string(static_cast<int>(plan_.init_patience)) + " s for it: ";
    text += process_activity(late[i]->pid()).text + "; its stack: py-spy dump --pid " + pid;
    say(text);
  }
  if (late.size() > kMostTold)
    say("nor have " + std::to_string(late.size() - kMostTold) + " other ranks");
}

int Agent::run() {
  Status status = prepare();
  if (status.ok()) status = start_ranks();
  if (!status.ok()) start_failed(status);
  for (;;) {
    if (lives_) {
      look_at_lives();
      look_for_late_ranks();
    }
    reap();
    forget_ended();
    end_removed();
    leave_in_time();
    for (const int signal : supervisor_.due(time_now())) send(signal);
    if (finished()) break;
    controller_->work();
    wait_for_events();
  }
  return finish(status);
}

int run_agent(const AgentPlan& plan, UniqueFd guard_link, ControllerClient* controller) {
  return Agent(plan, std::move(guard_link), controller).run();
}

}  // namespace rueda::launcher
