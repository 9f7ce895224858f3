// The last decision is kept by the agents; and a controller that takes over from one that was
// killed. Agents come by themselves, with what they keep and all that has become of their members.
// Until the newest decision is known nothing is decided, and what they say waits.
#include <algorithm>
#include <sstream>

#include "collectives/base/number_text.h"
#include "launcher/controller/job_controller.h"
#include "launcher/hosts/report_wire.h"
#include "launcher/job/exit_code.h"

namespace rueda::launcher {

using State = JobHost::State;

namespace {

constexpr std::chrono::seconds kStillComing{1};

}  // namespace

// ---- while all is well: what is decided is kept -------------------------------------------------

// Every host has it; a majority of those with ranks of the last epoch must, before it is acted on.
void JobController::keep_record(const std::string& record) {
  keeping_.emplace();
  keeping_->serial = ++serial_;
  control::ControllerMessage message;
  message.mutable_keep_record()->set_serial(serial_);
  message.mutable_keep_record()->set_record(record);
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].state != State::kRunning) continue;
    const int there = static_cast<int>(host);
    const bool counts = epoch_hosts_.empty() || epoch_hosts_.contains(there);
    if (counts) keeping_->asked.insert(there);
    message.mutable_keep_record()->set_address(hosts_[host].address);
    server_->send(there, message);
  }
  act_on_kept();
}

void JobController::record_kept(int host, uint64_t serial) {
  if (!keeping_ || serial != keeping_->serial) return;
  if (keeping_->asked.contains(host)) keeping_->by.insert(host);
  act_on_kept();
}

// Hosts that are lost meanwhile are no longer asked.
void JobController::act_on_kept() {
  if (!keeping_) return;
  const auto is_lost = [&](int host) {
    return hosts_[static_cast<size_t>(host)].state != State::kRunning;
  };
  std::erase_if(keeping_->asked, is_lost);
  std::erase_if(keeping_->by, is_lost);
  const size_t asked = keeping_->asked.size();
  if (keeping_->by.size() < asked / 2 + (asked == 0 ? 0 : 1)) return;
  plan_.succession->acted_on(keeping_->serial);
  keeping_.reset();
  books_.elastic()->record_is_kept();
}

// ---- taking over --------------------------------------------------------------------------------

// An agent that was in the job before us.
void JobController::agent_back(int number, const control::Register& agent) {
  JobHost& host = hosts_[static_cast<size_t>(number)];
  const control::Holds& holds = agent.holds();
  late_.erase(static_cast<size_t>(number));
  if (!taking_over_) return say_goodbye_to(number);  // the job has gone on without it
  // It tells all of it again.
  gone_.erase(number);
  std::erase_if(waiting_events_, [&](const AgentEvent& event) { return event.host == number; });
  host.plan.host.host = holds.host_name();
  host.plan.ours = is_ours(holds.host_name(), plan_.elastic->own_names);
  host.state = State::kHere;
  host.pid = agent.pid();
  host.address = holds.address();
  host.reach = reach_of(host.name(), agent);
  back_[number] = holds;
  last_back_ = clock_now();
  narrate("host " + host.name() + " is back: agent pid " + std::to_string(agent.pid()));
  control::ControllerMessage message;
  message.mutable_taken_over();
  server_->send(number, std::move(message));
  if (failure_ != 0) server_->send(number, to_wire(control::Order::KILL, 0));
  if (failure_ == 0 && supervisor_.cause() == StopCause::kSignal) {
    server_->send(number,
                  to_wire(signals_received_ > 1 ? control::Order::KILL : control::Order::SIGNAL,
                          supervisor_.cause_signal()));
  }
}

// Its newest record, from those that are here.
const control::Holds* JobController::newest_held() const {
  const control::Holds* newest = nullptr;
  for (const auto& [host, holds] : back_) {
    if (newest == nullptr || holds.serial() > newest->serial()) newest = &holds;
  }
  return newest;
}

// All who were there when the last controller was killed have come; or there was time enough for
// them, none comes any more, and a majority of the last epoch's hosts is here. And somebody has the
// last decision that was acted on.
void JobController::take_over_if_due(TimePoint at) {
  if (!taking_over_) return;
  const std::vector<size_t> expected = plan_.succession->running_hosts();
  const bool all = std::ranges::all_of(
      expected, [&](size_t host) { return back_.contains(static_cast<int>(host)); });
  const auto patience = std::chrono::duration<double>(plan_.options.silence_seconds);
  if (!all && (at - begun_ < patience || at - last_back_ < kStillComing)) return;
  const bool ends = failure_ != 0 || supervisor_.cause() != StopCause::kNone;
  const control::Holds* const newest = newest_held();
  const bool is_last = newest != nullptr && newest->serial() >= plan_.succession->acted();
  if (ends || (is_last && (all || has_majority(*newest)))) return take_over();
  const double waits = plan_.options.elastic.driver_timeout_seconds;
  if (at - begun_ < std::chrono::duration<double>(waits)) return;
  std::ostringstream text;
  text << "too few hosts have come back to the new controller within " << waits
       << " s (--driver-timeout): " << back_.size() << " of " << expected.size();
  fail(kLauncherFailure, text.str());
}

bool JobController::has_majority(const control::Holds& newest) const {
  const auto decider =
      membership::MembershipDecider::resume(plan_.elastic->policy, newest.record());
  if (decider == nullptr) return false;
  std::set<std::string> of_epoch, here;
  for (const auto& seat : decider->seats()) of_epoch.insert(seat.host);
  for (const auto& [host, holds] : back_) {
    if (of_epoch.contains(holds.host_name())) here.insert(holds.host_name());
  }
  return 2 * here.size() > of_epoch.size() || of_epoch.empty();
}

void JobController::take_over() {
  taking_over_ = false;
  for (const size_t host : plan_.succession->running_hosts()) {
    if (!back_.contains(static_cast<int>(host))) late_.insert(host);
  }
  std::vector<ElasticMembers::Living> living;
  for (size_t number = 0; number < hosts_.size(); ++number) {
    JobHost& host = hosts_[number];
    const int there = static_cast<int>(number);
    const auto held = back_.find(there);
    const bool is_back = held != back_.end();
    host.state = is_back ? State::kRunning : State::kLost;
    plan_.succession->note_host(number, is_back);
    if (!is_back) continue;
    host.last_heard = clock_now();
    for (const auto& one : held->second.members()) {
      if (!one.ended()) {
        const Status status = add_member(there, {one.member(), {one.rank(), 1, 0, 1, 0, 1}});
        if (!status.ok()) return fail(kLauncherFailure, status.message());
        living.push_back({one.member(), host.name(), one.rank(), one.pid()});
      } else {
        books_.output_of(one.member(), one.rank());
      }
      members_[one.member()] = {there, one.rank(), one.pid()};
    }
  }
  if (failure_ == 0 && supervisor_.cause() == StopCause::kNone) go_on(living);
  back_.clear();
  server_->taken_over();
  for (AgentEvent& event : std::exchange(waiting_events_, {})) take_event(&event);
}

// From the last decision. Hosts that have not come are lost.
void JobController::go_on(const std::vector<ElasticMembers::Living>& living) {
  ElasticMembers* const members = books_.elastic();
  std::vector<std::string> back;
  for (const auto& [host, holds] : back_) back.push_back(holds.host_name());
  if (!members->take_over(newest_held()->record(), living, back))
    return fail(kLauncherFailure, "the last decision that the agents kept makes no sense");
  say("another controller has taken over: " + counted(back_.size(), "host") + ", " +
      counted(living.size(), "rank"));
  // Their ranks are connected: they have reached each other.
  for (const auto& [to, holds] : back_) {
    for (const auto& [from, others] : back_) {
      if (from != to) tries_.push_back({from, to, holds.address(), ""});
    }
  }
  const auto is_here = [&](const std::string& name) {
    return std::ranges::any_of(back_,
                               [&](const auto& one) { return one.second.host_name() == name; });
  };
  listed_ = members->found();
  for (const HostSlots& host : listed_) {
    if (members->is_drained(host.host))
      barred_[host.host].reset();
    else if (!is_here(host.host) && members->knows(host.host))
      bar_lost(host.host);
  }
  for (const std::string& host : members->hosts_with_members()) {
    if (is_here(host)) continue;
    say("host " + host + " is lost: it has not come back to the new controller");
    members->host_lost(host, "the host is gone: it has not come back to the new controller", {},
                       true);
  }
  members->hosts_changed();
}

// Who comes later is told that the job has gone on without it; for as long as it may try.
void JobController::close_door_after_all() {
  if (taking_over_ || !listens_for_late_) return;
  const auto waits = std::chrono::duration<double>(plan_.options.elastic.driver_timeout_seconds);
  if (any_cut() || (!late_.empty() && clock_now() - begun_ < waits)) return;
  listens_for_late_ = false;
  close_door();
}

}  // namespace rueda::launcher
