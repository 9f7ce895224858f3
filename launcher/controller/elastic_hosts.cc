// Hosts of an elastic job, which come and go: who is invited, who is let go, and how the decider's
// orders reach those that are ready.
#include <signal.h>

#include <algorithm>

#include "collectives/base/number_text.h"
#include "launcher/controller/job_controller.h"
#include "launcher/hosts/report_wire.h"
#include "launcher/job/rank_environment.h"

namespace rueda::launcher {

using State = JobHost::State;

namespace {

bool is_listed(const std::vector<HostSlots>& list, const std::string& name) {
  return std::ranges::any_of(list, [&](const HostSlots& host) { return host.host == name; });
}

}  // namespace

void JobController::tell(const std::string& host, const Order& order) {
  if (order.kind == Order::Kind::kBeginEpoch) {
    epoch_hosts_.clear();
    for (const auto& [member, rank] : order.ranks) {
      const auto known = members_.find(member);
      if (known == members_.end()) continue;
      known->second.rank = rank;
      epoch_hosts_.insert(known->second.host);
    }
    observer_->begin_epoch(order.ranks);
  }
  bool told = false;
  Status status;
  for (size_t number = 0; number < hosts_.size(); ++number) {
    if (hosts_[number].state != State::kRunning) continue;
    if (!host.empty() && hosts_[number].name() != host) continue;
    const int there = static_cast<int>(number);
    // One that we have taken over is there, and has its order perhaps.
    const bool is_new =
        order.kind == Order::Kind::kStartMember && !members_.contains(order.start.member);
    if (is_new) status = add_member(there, order.start);
    if (status.ok()) server_->send(there, to_wire(order));
    told = true;
  }
  if (order.kind != Order::Kind::kStartMember || (told && status.ok())) return;
  books_.elastic()->started(order.start, 0, told ? status.message() : "the host is gone");
}

std::string JobController::address_of(const std::string& name) const {
  if (find_variable(plan_.base_environment, "RUEDA_TCP_ADDRESS") != nullptr) return {};
  for (const JobHost& host : hosts_) {
    if (host.state == State::kRunning && host.name() == name) return host.address;
  }
  return {};
}

// Those with an agent. The others are invited.
ReadyHosts JobController::ready_hosts(const std::vector<HostSlots>& found) {
  listed_ = found;
  std::erase_if(barred_, [&](const auto& entry) {
    return !entry.second && !is_listed(listed_, entry.first);
  });
  ReadyHosts ready;
  ready.begin_short = begins_short_;
  for (const HostSlots& host : found) {
    const auto known = std::ranges::find_if(
        hosts_, [&](const JobHost& one) { return !one.over() && one.name() == host.host; });
    if (known != hosts_.end()) {
      if (known->state == State::kRunning)
        ready.hosts.push_back(host);
      else
        ready.more_come = true;
      continue;
    }
    if (barred_.contains(host.host) || plan_.succession->issuer() == nullptr) continue;
    const Status invited = invite(host);
    ready.more_come = ready.more_come || invited.ok();
    if (invited.ok()) continue;
    barred_[host.host].reset();
    say("host " + host.host + " is not used: " + invited.message());
  }
  return ready;
}

// Its agent gets a certificate of its own, and finds us listening.
Status JobController::invite(const HostSlots& host) {
  const auto number = hosts_.size();
  RUEDA_ASSIGN_OR_RETURN(const KeyPair pair,
                         plan_.succession->issuer()->issue(agent_name(static_cast<int>(number))));
  RUEDA_RETURN_IF_ERROR(server_->listen());
  JobHost entry;
  entry.plan.host = host;
  entry.plan.ours = is_ours(host.host, plan_.elastic->own_names);
  entry.may_fail = true;
  entry.awaited_until = clock_now() + start_limit();
  hosts_.push_back(std::move(entry));
  plan_.succession->note_host(number, false);
  server_->add_host(host.host);
  Ticket ticket = ticket_;
  ticket.addresses = server_->addresses();
  ticket.certificate = pair.certificate;
  ticket.private_key = pair.private_key;
  tickets_.resize(hosts_.size());
  tickets_.back() = write_ticket(ticket);
  auto starter = start_agent(number);
  if (!starter.ok()) {
    hosts_.back().state = State::kLost;
    close_door();
    return starter.status();
  }
  starters_[number] = std::move(starter).value();
  return {};
}

// One that is not here yet, or cannot be used.
void JobController::drop(int number, const std::string& why) {
  JobHost& host = hosts_[static_cast<size_t>(number)];
  if (host.over()) return;
  host.state = State::kLost;
  host.again_at.reset();
  if (is_listed(listed_, host.name())) {
    barred_[host.name()].reset();
    say("host " + host.name() + " is not used: " + why);
  }
  say_goodbye_to(number);
  if (const auto starter = starters_.find(static_cast<size_t>(number)); starter != starters_.end())
    starter->second->kill();
  leave_round(number);
  close_door();
  if (!goes_on()) return;
  books_.elastic()->hosts_changed();
  begin_round_if_due();
}

// A machine that is gone is not asked for again before the decider would use it.
void JobController::bar_lost(const std::string& name) {
  if (!is_listed(listed_, name)) return;
  if (const auto barred = barred_.find(name); barred != barred_.end() && !barred->second) return;
  const auto& cooldown = plan_.elastic->policy.cooldown;
  const double seconds = cooldown ? cooldown->first : 365.0 * 24 * 3600;
  barred_[name] =
      clock_now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

void JobController::say_goodbye_to(int host) {
  control::ControllerMessage message;
  message.mutable_goodbye();
  server_->send(host, std::move(message));
}

// One that is not ready yet is not awaited any more.
Result<std::string> JobController::drain_host(const std::string& name) {
  if (taking_over_)
    return failed_precondition("another controller is taking over; ask again in a moment");
  for (size_t number = 0; goes_on() && number < hosts_.size(); ++number) {
    const JobHost& host = hosts_[number];
    if (host.over() || host.state == State::kRunning || host.name() != name) continue;
    if (!host.may_fail)
      return failed_precondition("host " + name + " is awaited, and the job begins with it");
    drop(static_cast<int>(number), "it is drained");
    books_.elastic()->awaited_is_drained(name);
    return "host " + name + " is drained, no rank is there";
  }
  Result<std::string> outlook = books_.drain_host(name);
  if (outlook.ok()) barred_[name].reset();
  return outlook;
}

// Where the job could not go on without it the ranks are asked to stop, as everywhere else.
void JobController::host_leaves(int number, const std::string& why) {
  const std::string& name = where(number);
  if (!goes_on() || hosts_[static_cast<size_t>(number)].over()) return;
  const Result<std::string> outlook = books_.elastic()->drain(name, finds_hosts());
  if (!outlook.ok() && !finds_hosts()) {
    say("host " + name + " has got " + why + ", and the job has no other host");
    return server_->send(number, to_wire(control::Order::SIGNAL, SIGTERM));
  }
  barred_[name].reset();
  say(why + ": " +
      (outlook.ok() ? outlook.value() : "host " + name + " leaves; another is waited for"));
}

// Hosts that are not on the list any more, or drained, once no rank is left there.
void JobController::let_go() {
  for (size_t number = 0; number < hosts_.size(); ++number) {
    JobHost& host = hosts_[number];
    if (host.over() || (is_listed(listed_, host.name()) && !barred_.contains(host.name())))
      continue;
    const int there = static_cast<int>(number);
    if (host.state != State::kRunning) {
      drop(there, "");
      continue;
    }
    if (!ranks_of(there).empty()) continue;
    narrate("host " + host.name() + " is let go");
    if (host.is_cut) lost_cut_ = clock_now();
    host.state = State::kFinished;
    plan_.succession->note_host(number, false);
    observer_->host_gone(there);
    leave_round(there);
    say_goodbye_to(there);
    server_->forget_host(there);
  }
}

// The job is over before they are in.
void JobController::forget_newcomers() {
  if (server_ == nullptr) return;  // nobody could come
  listed_.clear();
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].state != State::kRunning) drop(static_cast<int>(host), "");
  }
}

// At --start-timeout. Hosts that are missing may come later, where the others give --min-np ranks.
bool JobController::begin_without_missing(TimePoint at) {
  if (!elastic() || finds_hosts() || begins_short_) return false;
  std::vector<std::string> missing;
  std::string why;  // of the first for which it is known
  int slots = 0;
  for (size_t number = 0; number < hosts_.size(); ++number) {
    const JobHost& host = hosts_[number];
    if (host.state == State::kHere) slots += host.plan.host.slots;
    if (host.state != State::kAwaited) continue;
    missing.push_back(host.name());
    if (why.empty()) why = why_late(number);
  }
  const membership::Policy& policy = plan_.elastic->policy;
  if (missing.empty() || slots < std::max(policy.min_np, 1)) return false;
  const auto patience = std::chrono::duration_cast<Duration>(policy.elastic_timeout);
  for (JobHost& host : hosts_) {
    if (host.state != State::kAwaited) continue;
    host.may_fail = host.is_late = true;
    host.awaited_until = at + patience;
  }
  begins_short_ = true;
  start_from_ = at;  // the others have to reach each other yet
  say("the job begins without " + name_hosts(missing) + ", not there within --start-timeout" + why +
      ": the other hosts have room for " + counted(static_cast<size_t>(slots), "rank") +
      ", and --min-np is " + std::to_string(policy.min_np) +
      ". Who comes within --elastic-timeout joins");
  begin_round_if_due();
  return true;
}

void JobController::look_at_hosts(TimePoint at) {
  for (size_t number = 0; number < hosts_.size(); ++number) {
    const JobHost& host = hosts_[number];
    const bool awaited = host.state != State::kRunning && !host.over();
    if (!host.may_fail || !awaited || at < host.awaited_until) continue;
    const std::string limit = host.is_late ? "--elastic-timeout" : "--start-timeout";
    drop(static_cast<int>(number),
         "no agent has come from there (" + limit + ")" + why_late(number));
  }
  let_go();
  begin_round_if_due();
  const auto free_again = std::erase_if(
      barred_, [&](const auto& entry) { return entry.second && at >= *entry.second; });
  if (free_again != 0) books_.elastic()->hosts_changed();
}

}  // namespace rueda::launcher
