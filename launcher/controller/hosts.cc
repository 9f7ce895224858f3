// From an agent that is here to ranks on its host: all try to reach each other, addresses are
// chosen, assignments go out.
#include <algorithm>

#include "launcher/controller/job_controller.h"
#include "launcher/hosts/host_environment.h"
#include "launcher/job/exit_code.h"
#include "launcher/job/rank_environment.h"

namespace rueda::launcher {
namespace {

using State = JobHost::State;

// How long those that discovery has found together are waited for, once the first is here.
constexpr std::chrono::seconds kTogether{1};

}  // namespace

void JobController::agent_here(int number, const control::Register& agent) {
  JobHost& host = hosts_[static_cast<size_t>(number)];
  if (host.over()) return say_goodbye_to(number);  // it was given up meanwhile
  host.state = State::kHere;
  host.pid = agent.pid();
  host.probe_port = agent.probe_port();
  host.reach = reach_of(host.name(), agent);
  narrate("host " + host.name() + " is here: agent pid " + std::to_string(agent.pid()) + ", " +
          std::to_string(agent.usable_cores()) + " cores");
  if (failure_ != 0) return broadcast(control::Order::KILL, 0);
  if (!first_here_) first_here_ = clock_now();
  close_door();
  begin_round_if_due();
}

ReachHost JobController::reach_of(const std::string& name, const control::Register& agent) const {
  std::vector<InterfaceAddress> found;
  for (const auto& entry : agent.interfaces())
    found.push_back({entry.name(), entry.address(), entry.loopback(), entry.up()});
  auto ordered = order_addresses(found, plan_.options.network_interfaces);
  return {name, agent.host_identity(),
          ordered.ok() ? std::move(ordered).value() : std::vector<std::string>(),
          none_allowed(found, plan_.options.network_interfaces)};
}

// Nobody is awaited: nothing listens, and no ticket is good for anything.
void JobController::close_door() {
  // A fixed port is also the one where agents come back to.
  const bool is_shared = awaits_return_ && plan_.options.listen_port != 0;
  if (count(State::kAwaited) != 0 || listens_for_late_ || is_shared) return;
  server_->stop_listening();
  ticket_door_.reset();
  tickets_.clear();
  if (!token_file_.empty()) unlink(token_file_.c_str());
  token_file_.clear();
}

// The hosts that a job begins with come together, later ones one by one.
void JobController::begin_round_if_due() {
  if (round_ || failure_ != 0 || (elastic() && !goes_on())) return;
  std::vector<int> here;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].state == State::kHere) here.push_back(static_cast<int>(host));
  }
  if (here.empty()) return;
  if (assigned_) return begin_round({here.front()});
  const bool all = count(State::kAwaited) == 0;
  if (all || begins_short_ || (finds_hosts() && clock_now() - *first_here_ >= kTogether))
    begin_round(std::move(here));
}

// Hosts whose ranks run open a port again before they are tried.
void JobController::begin_round(std::vector<int> newcomers) {
  round_ = Round{};
  round_->number = ++last_round_number_;
  round_->newcomers = std::move(newcomers);
  round_->awaited.insert(round_->newcomers.begin(), round_->newcomers.end());
  const auto is_past = [&](int host) {  // it is gone, or tried anew
    return hosts_[static_cast<size_t>(host)].over() ||
           std::ranges::count(round_->newcomers, host) != 0;
  };
  std::erase_if(tries_, [&](const ReachTry& one) { return is_past(one.from) || is_past(one.to); });
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].state != State::kRunning) continue;
    round_->opening.insert(static_cast<int>(host));
    round_->awaited.insert(static_cast<int>(host));
    send_probe(static_cast<int>(host), round_->newcomers);
  }
  if (round_->opening.empty()) probe();
}

void JobController::probe() {
  const std::vector<int> all = in_round();
  for (const int host : round_->newcomers) send_probe(host, all);
}

std::vector<int> JobController::in_round() const {
  std::vector<int> all;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    const int number = static_cast<int>(host);
    if (hosts_[host].state == State::kRunning || std::ranges::count(round_->newcomers, number) != 0)
      all.push_back(number);
  }
  return all;
}

void JobController::send_probe(int me, const std::vector<int>& targets) {
  control::ControllerMessage message;
  auto* task = message.mutable_probe_task();
  task->set_job_key(
      std::string(plan_.succession->key().bytes().begin(), plan_.succession->key().bytes().end()));
  task->set_job_id(job_id_);
  task->set_host_index(me);
  task->set_hosts(static_cast<int>(hosts_.size()));
  task->set_round(round_->number);
  for (const int other : targets) {
    if (other == me) continue;
    const JobHost& host = hosts_[static_cast<size_t>(other)];
    auto* target = task->add_targets();
    target->set_host_index(other);
    target->set_port(host.probe_port);
    for (const std::string& address : host.reach.addresses) target->add_addresses(address);
  }
  server_->send(me, std::move(message));
}

// It is lost, or not wanted any more.
void JobController::leave_round(int host) {
  if (!round_) return;
  std::erase(round_->newcomers, host);
  const bool was_opening = round_->opening.erase(host) != 0;
  const bool was_awaited = round_->awaited.erase(host) != 0;
  if (round_->newcomers.empty() || (was_awaited && round_->awaited.empty())) return end_round();
  // While it was waited for the others may have tried newcomers in vain, who do not answer before.
  if (was_opening) begin_round(std::vector<int>(round_->newcomers));
}

void JobController::end_round() {
  const std::vector<int> all = in_round();
  const std::vector<int> newcomers = std::move(round_->newcomers);
  round_.reset();
  control::ControllerMessage over;
  over.mutable_probe_over();
  for (const int host : all) {
    if (hosts_[static_cast<size_t>(host)].state == State::kRunning) server_->send(host, over);
  }
  if (elastic() && !goes_on()) return forget_newcomers();  // nobody is let in any more
  if (newcomers.empty()) return begin_round_if_due();
  const auto left_out = choose_addresses_of(all, newcomers);
  if (!left_out.ok()) return fail(kUnreachable, left_out.status().message());
  std::vector<std::string> named = plan_.options.named_variables;
  for (const auto& [name, value] : plan_.options.environment) named.push_back(name);
  std::vector<std::string> withheld;
  const auto environment = environment_for_hosts(plan_.base_environment, named, &withheld);
  if (!assigned_ && !withheld.empty()) {
    narrate("no rank is given " + name_hosts(withheld) +
            ", which look like secrets (-x NAME gives one to all)");
  }
  for (const int host : newcomers) {
    if (left_out.value().contains(host)) continue;
    assign(host, environment);
    assigned_ = true;
  }
  for (const auto& [host, why] : left_out.value()) drop(host, why);
  if (elastic()) books_.elastic()->hosts_changed();
  begin_round_if_due();
}

// Of the hosts that have tried to reach each other. Which newcomers the job does without, and why.
Result<std::map<int, std::string>> JobController::choose_addresses_of(
    const std::vector<int>& all, const std::vector<int>& newcomers) {
  std::vector<ReachHost> hosts;
  std::map<int, int> place;  // of a host in `hosts`
  std::set<int> may_leave;
  for (const int host : all) {
    const JobHost& entry = hosts_[static_cast<size_t>(host)];
    place[host] = static_cast<int>(hosts.size());
    hosts.push_back(entry.reach);
    if (entry.may_fail && std::ranges::count(newcomers, host) != 0) may_leave.insert(place[host]);
  }
  Reachable reachable;
  if (hosts.size() > 1 || !hosts_[static_cast<size_t>(all.front())].plan.ours) {
    std::vector<ReachTry> tries;
    for (const ReachTry& one : tries_) {
      if (place.contains(one.from) && place.contains(one.to))
        tries.push_back({place[one.from], place[one.to], one.address, one.error});
    }
    RUEDA_ASSIGN_OR_RETURN(reachable, choose_reachable(hosts, tries, std::move(may_leave)));
  } else {
    reachable.addresses[0] = "127.0.0.1";
  }
  std::map<int, std::string> left_out;
  for (const auto& [number, at] : place) {
    if (const auto out = reachable.left_out.find(at); out != reachable.left_out.end()) {
      left_out[number] = out->second;
      continue;
    }
    JobHost& host = hosts_[static_cast<size_t>(number)];
    const auto chosen = reachable.addresses.find(at);  // none where no newcomer is left
    if (chosen == reachable.addresses.end() || host.address == chosen->second) continue;
    host.address = chosen->second;
    narrate("ranks on " + host.name() + " use address " + host.address);
  }
  return left_out;
}

void JobController::assign(int number, const std::vector<std::string>& environment) {
  JobHost& host = hosts_[static_cast<size_t>(number)];
  JobText job;
  job.job_id = job_id_;
  job.key =
      std::string(plan_.succession->key().bytes().begin(), plan_.succession->key().bytes().end());
  job.address = host.address;
  job.folder = plan_.folder;
  job.bind = plan_.options.bind;
  job.dead_seconds = plan_.dead_seconds;
  job.grace_seconds = plan_.options.grace_seconds;
  job.silence_seconds = plan_.options.silence_seconds;
  job.verbose = plan_.options.verbose;
  job.hangup_ignored = link_.hangup_ignored;
  job.elastic = elastic();
  job.num_proc = plan_.options.num_proc;
  job.door_addresses = plan_.succession->door_addresses();
  job.driver_timeout = has_successor() ? plan_.options.elastic.driver_timeout_seconds : 0;
  control::ControllerMessage message;
  // A node has the environment of its own command; ours is complete.
  const bool whole = plan_.nodes && host.plan.ours;
  *message.mutable_assign() = make_assignment(job, host.plan, number, plan_.options.command,
                                              whole ? plan_.base_environment : environment);
  server_->send(number, std::move(message));
  host.state = State::kRunning;
  plan_.succession->note_host(static_cast<size_t>(number), true);
  host.last_heard = clock_now();
}

}  // namespace rueda::launcher
