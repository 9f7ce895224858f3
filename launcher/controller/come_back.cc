// A host whose connection has ended: its agent, which goes on, makes another, and nothing that was
// said is lost. Only one that cannot be made again within the silence limit is the host's death.
#include <sys/wait.h>

#include <algorithm>

#include "launcher/controller/job_controller.h"

namespace rueda::launcher {

using State = JobHost::State;

namespace {

constexpr int kFailureOfSsh = 255;  // of its own connection, perhaps: the agent may live

}  // namespace

void JobController::connection_ended(int number, const std::string& why) {
  JobHost& host = hosts_[static_cast<size_t>(number)];
  const bool may_return = host.state == State::kRunning && may_come_back() && failure_ == 0;
  if (may_return && !is_dead(number)) {
    host.is_cut = true;
    narrate("host " + host.name() + ": " + why + "; its agent may make another");
    return await_return();
  }
  host_lost(number, why);
  observer_->host_gone(number);
}

void JobController::connection_is_back(int number) {
  JobHost& host = hosts_[static_cast<size_t>(number)];
  if (host.over()) return say_goodbye_to(number);
  host.is_cut = false;
  say("host " + host.name() + ": its connection had ended, and was made again");
}

// What started the agent has ended as the agent does.
bool JobController::is_dead(int number) const {
  const auto starter = starters_.find(static_cast<size_t>(number));
  if (plan_.use_srun || starter == starters_.end() || starter->second->running()) return false;
  const int status = starter->second->wait_status();
  return !WIFEXITED(status) || WEXITSTATUS(status) != kFailureOfSsh;
}

// How long an agent tries.
double JobController::return_seconds() const {
  return has_successor() ? plan_.options.elastic.driver_timeout_seconds
                         : plan_.options.silence_seconds;
}

bool JobController::any_cut() const {
  return std::ranges::any_of(hosts_, [](const JobHost& host) {
    return host.state == State::kRunning && (host.is_cut || host.suspect);
  });
}

// Where a connection that is silent has ended only the agent may know.
void JobController::await_return() {
  if (awaits_return_ || listens_for_late_ || !may_come_back() || server_ == nullptr) return;
  const Status listens = server_->listen_for_return(plan_.succession->door());
  awaits_return_ = listens.ok();
  if (!listens.ok()) say("agents cannot come back: " + listens.message());
}

// One that comes too late hears that the job has gone on without it; for as long as it may try. One
// that we hear again may not hear us: TCP says again what was lost in each direction when its own
// pause is over. Its agent tries another connection until the silence limit, and so long there is
// one to be had.
void JobController::await_no_return() {
  if (!awaits_return_ || any_cut()) return;
  const auto lately = [](const std::optional<TimePoint>& then, double seconds) {
    return then && clock_now() - *then < std::chrono::duration<double>(seconds);
  };
  if (lately(lost_cut_, return_seconds())) return;
  if (lately(heard_again_, plan_.options.silence_seconds)) return;
  awaits_return_ = false;
  lost_cut_.reset();
  heard_again_.reset();
  server_->end_return();
  close_door();
}

}  // namespace rueda::launcher
