#include "launcher/controller/job_controller.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/hosts/lost_rank_wire.h"
#include "launcher/job/exit_code.h"
#include "launcher/job/summary_report.h"
#include "proto/store_codec.h"

namespace rueda::launcher {

using State = JobHost::State;

void JobController::rank_ended(int host, const control::RankEnded& ended) {
  RankEnd end;
  end.rank = ended.rank();
  end.pid = ended.pid();
  end.wait_status = ended.wait_status();
  end.stopped = ended.stopped();
  end.host = where(host);
  end.hint = ended.hint();
  end.resident_peak = ended.resident_peak();
  const auto number =
      noticed_.emplace(std::pair(host, ended.noticed()), static_cast<int>(noticed_.size()));
  end.noticed = number.first->second;
  end_rank(end, describe_end(end));
  tell_failure(host);
}

// The one place where the end of a rank, however it was learnt, becomes known to all others.
void JobController::end_rank(RankEnd end, const std::string& text) {
  if (!ended_.insert(end.rank).second) return;
  store_->mark_dead(static_cast<uint64_t>(end.rank), text);
  narrate(text);
  if (end.wait_status != 0) supervisor_.rank_failed(clock_now());
  ends_.push_back(std::move(end));
}

// Once: survivors everywhere may raise errors of their own and are stopped then.
void JobController::tell_failure(int except) {
  if (failure_told_ || supervisor_.cause() != StopCause::kRankFailed) return;
  failure_told_ = true;
  broadcast(control::Order::RANK_FAILED, 0, except);
}

// The verdict on a lost rank: the first of the job, in the order in which we hear, goes to every
// host, also back to the one that told it, so that all pending calls end with the same; a newer
// version about the same rank has its cause.
void JobController::rank_lost(int host, const life::LostRank& lost) {
  if (lost_ && (lost_->rank != lost.rank || lost_->cause_is_final != 0)) return;
  const bool first = !lost_;
  lost_ = lost;
  for (size_t other = 0; other < hosts_.size(); ++other) {
    if (!hosts_[other].talks()) continue;
    control::ControllerMessage message;
    *message.mutable_rank_lost() = to_wire(lost);
    server_->send(static_cast<int>(other), std::move(message));
  }
  if (!first) return;
  lost_by_us_ = supervisor_.stopping();
  store_->mark_dead(static_cast<uint64_t>(lost.rank), lost.describe());
  supervisor_.rank_failed(clock_now());
  tell_failure(host);
}

void JobController::host_finished(JobHost* host, const control::Finished& finished) {
  host->state = State::kFinished;
  narrate("host " + host->name() + " has finished");
  if (!finished.failure().empty())
    fail(finished.exit_code() == 0 ? kLauncherFailure : finished.exit_code(),
         "host " + host->name() + ": " + finished.failure());
}

void JobController::host_lost(int number, const std::string& why) {
  JobHost& host = hosts_[static_cast<size_t>(number)];
  if (host.over()) return;
  const bool ran = host.state == State::kRunning;
  host.state = State::kLost;
  std::map<Rank, RankCounters> counted;
  for (const RankPlace& place : host.plan.places) {
    if (auto counters = observer_ ? observer_->counters_of(place.rank) : std::nullopt)
      counted[place.rank] = std::move(*counters);
  }
  if (observer_) observer_->host_gone(number);
  const std::string text =
      "host " + host.name() + " (agent pid " + std::to_string(host.pid) + ") is lost: " + why;
  if (!ran) {
    if (failure_ == 0) fail(kUnreachable, text);
    return;
  }
  console_.say(text);
  const bool first = supervisor_.cause() == StopCause::kNone;
  const int noticed = static_cast<int>(noticed_.size());
  noticed_.emplace(std::pair(number, -1), noticed);
  for (const RankPlace& place : host.plan.places) {
    if (ended_.contains(place.rank)) continue;
    RankEnd end;
    end.rank = place.rank;
    end.pid = pids_[place.rank];
    end.wait_status = SIGKILL;
    end.noticed = noticed;
    end.stopped = !first;
    end.host = host.name();
    end.lost = "lost with its host " + host.name() + " (" + why + ")";
    const std::string rank_text = describe_end(end);
    life::LostRank lost;
    lost.rank = end.rank;
    lost.pid = end.pid;
    lost.cause_is_final = 1;
    lost.host.set(host.name());
    lost.cause.set(end.lost);
    lost.operation.set("unknown");
    if (const auto known = counted.find(end.rank); known != counted.end()) {
      lost.operations = known->second.operations;
      lost.operation.set(known->second.operation);
      lost.step = known->second.step;
    }
    rank_lost(number, lost);
    end_rank(std::move(end), rank_text);
  }
  tell_failure(number);
  if (static_cast<size_t>(number) < starters_.size() && !plan_.use_srun)
    starters_[static_cast<size_t>(number)]->kill();
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
  const auto any_left = [&] {
    return std::any_of(starters_.begin(), starters_.end(),
                       [](const auto& starter) { return starter->running(); });
  };
  for (reap(); any_left() && clock_now() < until && signals_received_ < 2; reap()) {
    pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {server_->fd(), POLLIN, 0}};
    poll(fds, 2, 50);
    if (fds[0].revents != 0) read_signals();
    server_->take();
  }
  server_->stop();
}

// Our reader may be slow or stopped; a signal ends the wait for it.
void JobController::drain_console() {
  console_.release_lines();
  console_.flush();
  while (console_.pending() && link_.fd && signals_received_ < 2) {
    std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}, {link_.fd.get(), POLLIN, 0}};
    console_.add_to_poll(&fds);
    poll(fds.data(), fds.size(), -1);
    if (fds[0].revents != 0) read_signals();
    if (fds[1].revents != 0) link_.fd.reset();
    console_.flush();
  }
}

// A failed job's, from every agent that is still there: they hold them until we say goodbye.
void JobController::gather_recorders() {
  const bool failed = std::any_of(ends_.begin(), ends_.end(),
                                  [](const RankEnd& end) { return end.wait_status != 0; });
  if (!failed || failure_ != 0 || !observer_ || !observer_->has_folder()) return;
  observer_->request_dump(false);
  while (observer_->busy() && link_.fd && signals_received_ < 2) {
    for (const std::string& line : observer_->work(clock_now())) console_.say(line);
    check_time();
    console_.flush();
    if (observer_->busy()) wait_for_events();
    reap();
    take_events();
  }
}

// What is known without the ranks' last lines.
JobEnd JobController::job_end() const {
  JobEnd job;
  job.ends = ends_;
  if (!lost_by_us_) job.lost = lost_;
  job.cause = supervisor_.cause();
  job.signal = supervisor_.cause_signal();
  if (store_ == nullptr) return job;
  for (const rendezvous::Report& report : store_->reports()) {
    if (report.key == "failure")
      job.reports.emplace_back(static_cast<Rank>(report.member), report.value);
  }
  return job;
}

int JobController::finish() {
  gather_recorders();
  say_goodbye(failure_ != 0 ? failure_ : judge(job_end()).exit_code);
  JobEnd job = job_end();
  std::map<Rank, wire::RankSummary> summaries;
  for (size_t rank = 0; rank < outputs_.size() && outputs_[rank] != nullptr; ++rank) {
    outputs_[rank]->end(Stream::kStdout);
    outputs_[rank]->end(Stream::kStderr);
    job.last_words[static_cast<Rank>(rank)] = outputs_[rank]->last_words();
  }
  if (copies_) {
    const auto is_wanted = [this] {
      read_signals();
      return link_.fd && signals_received_ < 2;
    };
    for (const std::string& line : copies_->finish(is_wanted)) console_.say(line);
  }
  if (failure_ != 0) {  // has been said
    drain_console();
    return failure_;
  }
  store_->stop();
  for (const rendezvous::Report& report : store_->reports()) {
    wire::RankSummary summary;
    if (report.key == "summary" && wire::decode(report.value, &summary).ok())
      summaries[static_cast<Rank>(report.member)] = std::move(summary);
  }
  for (const std::string& line : finish_timelines(plan_.timeline)) console_.say(line);
  if (plan_.summary) {
    for (const std::string& line : summary_report(summaries, plan_.options.num_proc, job.ends))
      console_.say(line);
  }
  const Verdict verdict = judge(job);
  for (const std::string& line : verdict.lines) console_.say(line);
  drain_console();
  return verdict.exit_code;
}

}  // namespace rueda::launcher
