#include "launcher/controller/job_controller.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "launcher/hosts/late_start.h"
#include "launcher/hosts/limits.h"
#include "launcher/hosts/lost_rank_wire.h"
#include "launcher/hosts/report_wire.h"
#include "launcher/job/exit_code.h"

namespace rueda::launcher {
namespace {

using State = JobHost::State;

constexpr std::chrono::seconds kTellMissing{10};
constexpr std::chrono::seconds kEndLimit{20};  // beyond the grace period, for agents to finish

}  // namespace

int JobController::count(State state) const {
  return static_cast<int>(std::count_if(hosts_.begin(), hosts_.end(),
                                        [&](const JobHost& host) { return host.state == state; }));
}

bool JobController::runs_at(int host, MemberId member) const {
  const auto known = members_.find(member);
  return known != members_.end() && known->second.host == host;
}

bool JobController::goes_on() const {
  const ElasticMembers* const members = books_.elastic();
  return members != nullptr && !members->over() && supervisor_.cause() == StopCause::kNone;
}

bool JobController::all_over() const {
  if (goes_on() || taking_over_) return false;
  return std::all_of(hosts_.begin(), hosts_.end(), [](const JobHost& host) { return host.over(); });
}

// Our own failure: the job ends with this code, whatever ranks do.
void JobController::fail(int code, const std::string& text) {
  if (failure_ == 0) {
    failure_ = code;
    say(text);
  }
  supervisor_.driver_lost(clock_now());
  broadcast(control::Order::KILL, 0);
}

void JobController::broadcast(control::Order::Kind kind, int signal, int except) {
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (!hosts_[host].talks() || static_cast<int>(host) == except) continue;
    server_->send(static_cast<int>(host), to_wire(kind, signal));
  }
}

void JobController::wait_for_events() {
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0},
                             {link_.fd.get(), POLLIN, 0},
                             {server_ == nullptr ? -1 : server_->fd(), POLLIN, 0}};
  books_.add_to_poll(&fds);
  relay_.add_to_poll(&fds);
  if (observer_) observer_->add_to_poll(&fds);
  for (const auto& [host, starter] : starters_) starter->add_to_poll(&fds);
  auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(kHeartbeat);
  if (const auto lines = books_.next_deadline()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*lines - clock_now());
    wait = std::clamp(left, std::chrono::milliseconds(0), wait);
  }
  if (poll(fds.data(), fds.size(), static_cast<int>(wait.count())) < 0) return;
  if (fds[0].revents != 0) read_signals();
  if (link_.fd && fds[1].revents != 0) {
    link_.fd.reset();
    fail(128 + SIGKILL, "the ruedarun process that the user started is gone");
  }
}

void JobController::read_signals() {
  signalfd_siginfo info = {};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;  // reap() looks for itself
    if (signal == SIGUSR2 && observer_ && observer_->has_folder()) {
      observer_->request_dump(true);
      continue;
    }
    if (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGTSTP || signal == SIGCONT) {
      broadcast(control::Order::USER_SIGNAL, signal);
      continue;
    }
    if (getppid() != link_.guard) continue;  // the kernel's message that the guard is gone
    asked_to_stop(signal);
  }
}

void JobController::asked_to_stop(int signal) {
  ++signals_received_;
  supervisor_.signal_received(signal, clock_now());
  broadcast(signals_received_ > 1 ? control::Order::KILL : control::Order::SIGNAL, signal);
  if (signals_received_ == 1)
    say(signal_name(signal) + ": asking the ranks to stop (once more kills them at once)");
  // Nothing runs yet that could stop by itself.
  if (!started() && failure_ == 0) fail(128 + signal, "stopped before the ranks were started");
}

void JobController::take_events() {
  if (server_ == nullptr) return;
  server_->hold_output(taking_over_ || books_.congested());
  for (AgentEvent& event : server_->take()) take_event(&event);
}

void JobController::take_event(AgentEvent* taken) {
  AgentEvent& event = *taken;
  const bool comes_back =
      event.kind == AgentEvent::Kind::kRegistered && event.message.register_().has_holds();
  if (comes_back) return agent_back(event.host, event.message.register_());
  if (event.kind == AgentEvent::Kind::kGone) gone_.insert(event.host);
  if (event.kind == AgentEvent::Kind::kResumed) gone_.erase(event.host);
  if (taking_over_) return waiting_events_.push_back(std::move(event));
  JobHost& host = hosts_[static_cast<size_t>(event.host)];
  host.last_heard = clock_now();
  switch (event.kind) {
    case AgentEvent::Kind::kRegistered: agent_here(event.host, event.message.register_()); break;
    case AgentEvent::Kind::kMessage: take_message(event.host, &event.message); break;
    case AgentEvent::Kind::kResumed: connection_is_back(event.host); break;
    case AgentEvent::Kind::kGone: connection_ended(event.host, event.text); break;
    case AgentEvent::Kind::kOutput: {
      const auto& output = event.output;
      if (output.stream() < 1 || output.stream() > 2 || !runs_at(event.host, output.member()))
        break;
      RankOutput& taker = *books_.output_of(output.member(), 0);
      const Stream stream = output.stream() == 1 ? Stream::kStdout : Stream::kStderr;
      if (!output.data().empty()) taker.take(stream, output.data());
      if (output.end()) taker.end(stream);
      break;
    }
  }
}

void JobController::take_message(int number, control::AgentMessage* taken) {
  const control::AgentMessage& message = *taken;
  JobHost& host = hosts_[static_cast<size_t>(number)];
  const auto is_theirs = [&](MemberId member) { return runs_at(number, member); };
  const auto is_now = [&](uint64_t round) { return round_ && round_->number == round; };
  if (message.has_probe_report()) {
    // An answer of an earlier round says nothing.
    if (!is_now(message.probe_report().round()) || !round_->awaited.contains(number)) return;
    for (const auto& one : message.probe_report().tries())
      tries_.push_back({number, one.host_index(), one.address(), one.error()});
    round_->awaited.erase(number);
    if (host.state == State::kHere) host.state = State::kProbed;
    if (round_->awaited.empty()) end_round();
  } else if (message.has_listening()) {
    if (!is_now(message.listening().round()) || round_->opening.erase(number) == 0) return;
    host.probe_port = message.listening().port();
    if (round_->opening.empty()) probe();
  } else if (message.has_rank_started() && is_theirs(message.rank_started().member())) {
    rank_started(number, message.rank_started());
  } else if (message.has_rank_ended() && is_theirs(message.rank_ended().member())) {
    rank_ended(number, message.rank_ended());
  } else if (message.has_rank_lost() && is_theirs(message.rank_lost().member())) {
    rank_lost(number, from_wire(message.rank_lost()));
  } else if (message.has_rank_fenced() && is_theirs(message.rank_fenced().member())) {
    if (elastic()) books_.elastic()->fenced(message.rank_fenced().member());
  } else if (message.has_store_bytes() && is_theirs(message.store_bytes().member())) {
    const auto& bytes = message.store_bytes();
    relay_.deliver(bytes.member(), bytes.data(), bytes.end());
  } else if (message.has_record_kept()) {
    record_kept(number, message.record_kept().serial());
  } else if (message.has_heartbeat()) {
    observer_->take(number, message.heartbeat());
    for (const control::RankCounters& one : message.heartbeat().ranks()) {
      if (elastic() && is_theirs(one.member())) books_.elastic()->counted(from_wire(one));
    }
  } else if (message.has_observed()) {
    observer_->take(number, std::move(*taken->mutable_observed()));
  } else if (message.has_drained()) {
    observer_->take(number, message.drained());
  } else if (message.has_leaves()) {
    host_leaves(number, message.leaves().why());
  } else if (message.has_say()) {
    say(host.name() + ": " + message.say().text());
  } else if (message.has_finished()) {
    host_finished(number, message.finished());
  }
}

void JobController::rank_started(int host, const control::RankStarted& started) {
  if (elastic()) books_.elastic()->started({started.member(), {}}, started.pid(), started.error());
  if (!started.error().empty()) {
    // There is nothing that could be lost with its host later, or write to the store.
    relay_.deliver(started.member(), {}, true);
    members_.erase(started.member());
    observer_->forget_member(started.member());
    return say(where(host) + ": " + started.error());
  }
  members_[started.member()].pid = started.pid();
  narrate("rank " + std::to_string(started.rank()) + " is pid " + std::to_string(started.pid()) +
          " on " + where(host));
}

// What a starter has printed; not that its host is not there yet, which check_start() tells.
void JobController::pump_starter(size_t number) {
  const bool one_host = !plan_.use_srun;
  starters_[number]->pump([&](const std::string& line) {
    const Starter& starter = *starters_[number];
    if (one_host && hosts_[number].state == State::kAwaited && says_not_yet(starter.last_message()))
      return;
    say(starter.name() + ": " + line);
  });
}

void JobController::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (elastic() && books_.elastic() != nullptr && books_.elastic()->child_ended(pid, status))
      continue;
    for (const auto& [host, starter] : starters_) {
      if (!starter->running() || starter->pid() != pid) continue;
      starter->ended(status);
      pump_starter(host);
      starter_ended(host);
    }
  }
  for (const auto& [host, starter] : starters_) pump_starter(host);
}

// Before its host was there: it is only late, or cannot be started at all.
void JobController::starter_ended(size_t number) {
  const Starter& starter = *starters_[number];
  JobHost& host = hosts_[number];
  if (host.is_cut && is_dead(static_cast<int>(number)))
    return host_lost(static_cast<int>(number), "its connection has ended");
  const bool awaited = plan_.use_srun ? count(State::kAwaited) > 0 : host.state == State::kAwaited;
  if (!awaited || failure_ != 0) return;
  const bool final = plan_.use_srun || !starter.may_come_later();
  if (final && host.may_fail) return drop(static_cast<int>(number), starter.describe());
  if (final) return fail(kUnreachable, starter.describe());
  host.why_late = starter.last_message();
  host.again_at = clock_now() + pause_before(++host.tries);
  narrate("host " + host.name() + " is not there yet: " + host.why_late);
}

void JobController::check_silence(TimePoint at) {
  const auto limit = std::chrono::duration<double>(plan_.options.silence_seconds);
  for (size_t i = 0; i < hosts_.size(); ++i) {
    JobHost& host = hosts_[i];
    if (host.state != State::kRunning) continue;
    const auto silent = at - host.last_heard;
    if (silent > limit) {
      std::ostringstream text;
      text << (host.is_cut ? "its connection has ended, and no other was made for "
                           : "no sign of life for ")
           << plan_.options.silence_seconds << " s";
      host_lost(static_cast<int>(i), text.str(), true);
    } else if (silent > kSuspectAfter && !host.suspect) {
      host.suspect = true;
      say("host " + host.name() + " has given no sign of life for 1 s");
      await_return();
    } else if (silent < kSuspectAfter / 2 && host.suspect) {
      host.suspect = false;
      heard_again_ = at;
      say("host " + host.name() + " is back");
    }
  }
}

// Who is missing is told now and then, until there is no more time.
void JobController::check_start(TimePoint at) {
  std::vector<std::string> missing;
  std::string why;  // of the first for which it is known
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(at - start_from_);
  // Where a script names the hosts, more may come: --elastic-timeout ends the wait.
  const bool over = !finds_hosts() && waited.count() >= plan_.start_seconds;
  if (!over && at - last_told_ < kTellMissing) return;
  if (over && begin_without_missing(at)) return;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const JobHost& host = hosts_[i];
    if (host.state != State::kAwaited || host.is_late) continue;
    missing.push_back(host.name());
    if (why.empty()) why = why_late(i);
  }
  const std::string nobody = finds_hosts()
                                 ? "for --host-discovery-script to name hosts with room for -np " +
                                       std::to_string(plan_.options.num_proc)
                                 : "for the hosts to reach each other";
  const std::string who = missing.empty() ? nobody
                                          : "for " + std::to_string(missing.size()) + " of " +
                                                std::to_string(hosts_.size()) +
                                                " hosts: " + name_hosts(missing) + why;
  if (over) {
    fail(kStartTimeout, "gave up after " + std::to_string(waited.count()) +
                            " s (--start-timeout) of waiting " + who);
  } else {
    last_told_ = at;
    say("waiting " + who);
  }
}

std::string JobController::why_late(size_t number) const {
  const JobHost& host = hosts_[number];
  const auto starter = plan_.use_srun ? starters_.end() : starters_.find(number);
  if (starter != starters_.end() && starter->second->connected()) {
    return " (it is connected to, and no agent has come from there: a login that takes its time" +
           hint_of_large_packets(host.name()) + ")";
  }
  return host.why_late.empty() ? "" : " (" + host.why_late + ")";
}

void JobController::check_time() {
  const TimePoint at = clock_now();
  // While we ourselves did not run nobody was silent.
  if (at - last_round_ > 2 * kHeartbeat) {
    for (JobHost& host : hosts_) host.last_heard += at - last_round_;
  }
  last_round_ = at;
  if (at - last_beat_ >= kHeartbeat && server_ != nullptr) {
    last_beat_ = at;
    server_->beat();
  }
  supervisor_.due(at);  // the agents act; we remember that it has begun
  if (server_ != nullptr) {
    take_over_if_due(at);
    close_door_after_all();
    await_no_return();
    act_on_kept();
  }
  if (taking_over_) return;
  check_silence(at);
  const bool is_idle = finds_hosts() ? goes_on() && members_.empty() : !started();
  if (is_idle && failure_ == 0) check_start(at);
  start_late_hosts(at);
  if (goes_on()) look_at_hosts(at);
  if (elastic() && !goes_on()) forget_newcomers();
  // After success agents stop what has not ended; what is written may take as long as it takes.
  const bool done = elastic() && books_.elastic() != nullptr && books_.elastic()->over();
  const bool stopped = supervisor_.cause() != StopCause::kNone;
  if ((stopped && !give_up_at_) || (done && (!give_up_at_ || (!stopped && books_.congested())))) {
    const auto grace = std::chrono::duration<double>(plan_.options.grace_seconds);
    give_up_at_ = at + 2 * std::chrono::duration_cast<Duration>(grace) + kEndLimit;
  }
  if (failure_ != 0) {
    for (JobHost& host : hosts_) {
      if (host.state == State::kAwaited) host.state = State::kLost;
      if (!started() && host.state != State::kFinished) host.state = State::kLost;
    }
  }
  if (give_up_at_ && at > *give_up_at_) {
    for (size_t i = 0; i < hosts_.size(); ++i)
      host_lost(static_cast<int>(i), "its agent has not ended in time");
  }
}

// A rank that ends because we stop it is not replaced.
void JobController::elastic_work() {
  ElasticMembers* const members = books_.elastic();
  if (members == nullptr) return;
  if (supervisor_.cause() != StopCause::kNone) members->stop();
  if (members->over() && members->over()->exit_code != 0) supervisor_.job_over(clock_now());
}

int JobController::run() {
  const Status prepared = prepare();
  if (!prepared.ok()) {
    fail(prepared.code() == Code::kUnavailable ? kUnreachable : kLauncherFailure,
         prepared.message());
  }
  for (const int signal : link_.asked) asked_to_stop(signal);
  for (;;) {
    reap();
    take_events();
    relay_.pump([this](MemberId member, std::string_view bytes, bool end) {
      control::ControllerMessage message;
      auto* carried = message.mutable_store_bytes();
      carried->set_member(member);
      carried->set_data(bytes.data(), bytes.size());
      carried->set_end(end);
      const auto known = members_.find(member);
      if (known != members_.end()) server_->send(known->second.host, std::move(message));
    });
    check_time();
    if (observer_) {
      for (const std::string& line : observer_->work(clock_now())) say(line);
    }
    elastic_work();
    books_.work();
    elastic_work();
    if (books_.stdout_closed() && supervisor_.cause() == StopCause::kNone) {
      supervisor_.output_closed(clock_now());
      broadcast(control::Order::OUTPUT_CLOSED, 0);
    }
    if (all_over() || server_ == nullptr) break;
    wait_for_events();
  }
  return finish();
}

int run_controller(const ControllerPlan& plan, GuardLink link) {
  return JobController(plan, std::move(link)).run();
}

}  // namespace rueda::launcher
