#include "launcher/controller/job_controller.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/hosts/lost_rank_wire.h"
#include "launcher/job/exit_code.h"

namespace rueda::launcher {

using State = JobHost::State;

void JobController::rank_ended(int host, const control::RankEnded& ended) {
  RankEnd end;
  end.rank = ended.rank();
  end.member = ended.member();
  end.pid = ended.pid();
  end.wait_status = ended.wait_status();
  end.stopped = ended.stopped();
  end.removed = ended.removed();
  end.host = where(host);
  end.hint = ended.hint();
  end.resident_peak = ended.resident_peak();
  const auto number =
      noticed_.emplace(std::pair(host, ended.noticed()), static_cast<int>(noticed_.size()));
  end.noticed = number.first->second;
  end_rank(end, describe_end(end));
  observer_->member_ended(end.member, end.wait_status == 0 || end.removed);
  tell_failure(host);
}

void JobController::end_rank(RankEnd end, const std::string& text) {
  const bool failed = end.wait_status != 0 && !end.removed;
  if (!books_.rank_ended(std::move(end), text)) return;
  narrate(text);
  if (failed && !elastic()) supervisor_.rank_failed(clock_now());
}

// Once: survivors everywhere may raise errors of their own and are stopped then.
void JobController::tell_failure(int except) {
  if (failure_told_ || elastic() || supervisor_.cause() != StopCause::kRankFailed) return;
  failure_told_ = true;
  broadcast(control::Order::RANK_FAILED, 0, except);
}

// The verdict on a lost rank: the first of the job, in the order in which we hear, goes to every
// host, also back to the one that told it, so that all pending calls end with the same.
void JobController::rank_lost(int host, const life::LostRank& lost) {
  if (elastic()) return books_.elastic()->lost(lost);
  const bool first = books_.rank_lost(lost, [&] {
    for (size_t other = 0; other < hosts_.size(); ++other) {
      if (!hosts_[other].talks()) continue;
      control::ControllerMessage message;
      *message.mutable_rank_lost() = to_wire(lost);
      server_->send(static_cast<int>(other), std::move(message));
    }
  });
  if (!first) return;
  lost_by_us_ = supervisor_.stopping();
  supervisor_.rank_failed(clock_now());
  tell_failure(host);
}

void JobController::host_finished(int number, const control::Finished& finished) {
  JobHost& host = hosts_[static_cast<size_t>(number)];
  if (host.over()) return;
  if (goes_on() && (finished.failure().empty() || host.may_fail))
    return host_lost(number,
                     finished.failure().empty() ? "its agent has ended" : finished.failure());
  host.state = State::kFinished;
  plan_.succession->note_host(static_cast<size_t>(number), false);
  narrate("host " + host.name() + " has finished");
  if (!finished.failure().empty())
    fail(finished.exit_code() == 0 ? kLauncherFailure : finished.exit_code(),
         "host " + host.name() + ": " + finished.failure());
}

// What is told of the ranks of a lost host, as they were when it was last heard of.
std::vector<life::LostRank> JobController::losses_of(int number, const std::string& cause) const {
  std::vector<life::LostRank> losses;
  for (const auto& [member, known] : members_) {
    if (known.host != number || books_.has_ended(member)) continue;
    life::LostRank& lost = losses.emplace_back();
    lost.rank = known.rank;
    lost.member = member;
    lost.pid = known.pid;
    lost.cause_is_final = 1;
    lost.host.set(where(number));
    lost.cause.set(cause);
    lost.operation.set("unknown");
    if (const auto last = observer_ ? observer_->counters_of(member) : std::nullopt) {
      lost.operations = last->operations;
      lost.operation.set(last->operation);
      lost.step = last->step;
    }
  }
  return losses;
}

void JobController::host_lost(int number, const std::string& why, bool was_silent) {
  JobHost& host = hosts_[static_cast<size_t>(number)];
  if (host.over()) return;
  const bool ran = host.state == State::kRunning;
  if (server_ != nullptr) server_->forget_host(number);
  if (host.is_cut) lost_cut_ = clock_now();
  host.is_cut = false;
  if (!ran && host.may_fail && goes_on()) return drop(number, "its agent is lost: " + why);
  host.state = State::kLost;
  plan_.succession->note_host(static_cast<size_t>(number), false);
  const std::string cause = "lost with its host " + host.name() + " (" + why + ")";
  const std::vector<life::LostRank> losses = losses_of(number, cause);
  if (observer_) observer_->host_gone(number);
  const std::string text =
      "host " + host.name() + " (agent pid " + std::to_string(host.pid) + ") is lost: " + why;
  if (!ran) {
    if (failure_ == 0) fail(kUnreachable, text);
    return;
  }
  say(text);
  const bool gone_on = goes_on();
  if (gone_on) bar_lost(host.name());
  if (gone_on)
    books_.elastic()->host_lost(host.name(), "the host is gone: " + why, losses, was_silent);
  leave_round(number);
  const bool first = supervisor_.cause() == StopCause::kNone;
  const int noticed = static_cast<int>(noticed_.size());
  noticed_.emplace(std::pair(number, -1), noticed);
  for (const life::LostRank& lost : losses) {
    RankEnd end;
    end.rank = lost.rank;
    end.member = lost.member;
    end.pid = lost.pid;
    end.wait_status = SIGKILL;
    end.noticed = noticed;
    end.stopped = !first;
    end.host = host.name();
    end.lost = cause;
    const std::string rank_text = describe_end(end);
    if (!gone_on) rank_lost(number, lost);
    end_rank(std::move(end), rank_text);
    relay_.drop(lost.member);
  }
  if (gone_on) {  // should it hear us again, it is to stop what it has
    say_goodbye_to(number);
  }
  tell_failure(number);
  if (const auto starter = starters_.find(static_cast<size_t>(number));
      starter != starters_.end() && !plan_.use_srun)
    starter->second->kill();
}

void JobController::say_goodbye(int exit_code) {
  if (server_ == nullptr) return;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    control::ControllerMessage message;
    message.mutable_goodbye()->set_exit_code(exit_code);
    server_->send(static_cast<int>(i), std::move(message));
  }
  // Agents leave by themselves; those that do not are killed with what started them (guard.h).
  const TimePoint until = clock_now() + std::chrono::seconds(3);
  // Where we have taken over others than us have started them.
  std::set<int> attached;
  for (size_t i = 0; i < hosts_.size() && plan_.succession->generation() > 0; ++i) {
    const int host = static_cast<int>(i);
    if (hosts_[i].talks() && !gone_.contains(host)) attached.insert(host);
  }
  const auto any_left = [&] {
    if (!attached.empty()) return true;
    return std::any_of(starters_.begin(), starters_.end(),
                       [](const auto& starter) { return starter.second->running(); });
  };
  for (reap(); any_left() && clock_now() < until && signals_received_ < 2; reap()) {
    pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {server_->fd(), POLLIN, 0}};
    poll(fds, 2, 50);
    if (fds[0].revents != 0) read_signals();
    for (const AgentEvent& event : server_->take()) {
      if (event.kind == AgentEvent::Kind::kGone) attached.erase(event.host);
    }
  }
  server_->stop();
}

Patience JobController::patience() {
  Patience patience;
  patience.is_wanted = [this] {
    read_signals();
    pollfd link = {link_.fd.get(), POLLIN, 0};
    if (link_.fd && poll(&link, 1, 0) > 0) link_.fd.reset();
    return link_.fd && signals_received_ < 2;
  };
  patience.add_to_poll = [this](std::vector<pollfd>* fds) {
    fds->push_back({signals_.get(), POLLIN, 0});
    fds->push_back({link_.fd.get(), POLLIN, 0});
  };
  return patience;
}

// A failed job's, from every agent that is still there: they hold them until we say goodbye.
void JobController::gather_recorders() {
  const bool failed = elastic()
                          ? books_.elastic()->over() && books_.elastic()->over()->exit_code != 0
                          : books_.any_failed();
  if (!failed || failure_ != 0 || !observer_ || !observer_->has_folder()) return;
  observer_->request_dump(false);
  while (observer_->busy() && link_.fd && signals_received_ < 2) {
    for (const std::string& line : observer_->work(clock_now())) say(line);
    check_time();
    books_.work();
    if (observer_->busy()) wait_for_events();
    reap();
    take_events();
  }
}

JobEnd JobController::job_end() const {
  JobEnd job = books_.end();
  if (!lost_by_us_) job.lost = books_.lost();
  job.cause = supervisor_.cause();
  job.signal = supervisor_.cause_signal();
  return job;
}

int JobController::finish() {
  gather_recorders();
  const int code = failure_ != 0 ? failure_ : judge(job_end()).exit_code;
  plan_.succession->job_is_over(code);
  say_goodbye(code);
  books_.close_outputs(patience());
  books_.close_store();
  if (failure_ != 0) {  // has been said
    books_.drain_console(patience());
    return failure_;
  }
  return books_.conclude(job_end(), patience());
}

}  // namespace rueda::launcher
