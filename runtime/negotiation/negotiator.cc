#include "runtime/negotiation/negotiator.h"

#include <algorithm>
#include <utility>

#include "proto/negotiation_codec.h"
#include "runtime/negotiation/portions.h"

namespace rueda::negotiation {

Negotiator::Negotiator(const Config& config, GroupInfo group) : group_(std::move(group)) {
  if (group_.rank == kRoot) {
    root_ = std::make_unique<Root>(config, group_.epoch, group_.members);
    root_->enable_call_sites();
    if (group_.plans) root_->enable_plans();
  }
  if (group_.plans) {
    follower_.emplace(group_.size,
                      std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::duration<double>(config.plan_patience_seconds)));
  }
}

void Negotiator::give_up(const Status& verdict) {
  broken_ = true;
  act(action::GiveUp{verdict});
}

void Negotiator::tell(Rank to, std::string message) {
  if (!broken_) act(action::Send{to, std::move(message)});
}

// ---- submissions ----

void Negotiator::on(const event::Submit& submit) {
  const wire::Request& request = *submit.request;
  if (request.kind == CollectiveKind::kJoin) return join(request, submit.handle);
  if (const auto id = cache_.find(request))
    return on(event::SubmitCached{*id, submit.request, submit.handle, submit.now});
  if (root_left_) return refuse(submit.handle);
  if (follower_ && follower_->has_name(request.name))
    revoke(title_of(request) + " came with other properties");
  negotiate(request, submit.handle);
}

void Negotiator::on(const event::SubmitCached& submit) {
  if (root_left_) return refuse(submit.handle);
  if (follower_) {
    switch (follower_->on_ready(submit.id, submit.handle, submit.now)) {
      case plan::Follower::Taken::kEntered: ++planned_submissions_; return pass_on();
      case plan::Follower::Taken::kHeld:
        ++planned_submissions_;
        return act(action::Hold{submit.handle});
      case plan::Follower::Taken::kNo: break;
    }
  }
  if (!cache_.knows(submit.id)) return on(event::Submit{submit.request, submit.handle, submit.now});
  if (follower_ && follower_->has_name(submit.request->name))
    revoke(title_of(*submit.request) + " came with other properties");
  negotiate(submit.id, submit.handle);
}

// Said behind everything that was submitted before: after a step plan, when this rank is back.
void Negotiator::join(const wire::Request& request, OpHandle handle) {
  if (root_left_) return refuse(handle);
  pending_[request.name] = {handle, &request, nullptr, false};
  joined_ = true;
  revoke("this rank has joined");
  if (!planning()) collected_.joining = true;
}

// The root may have left because somebody else had, without whom it could not go on: that one is
// named first.
Status Negotiator::root_is_gone(const char* what) const {
  const Members& members = group_.members;
  std::string who = members.name(first_left_) + " " + members.has_left;
  if (first_left_ != kRoot) who += ", and then " + members.name(kRoot);
  return cancelled(who + ": " + what + " be agreed any more");
}

void Negotiator::refuse(OpHandle handle) {
  const Status status = root_is_gone("no operation can");
  act(action::Blame{status.message()});
  act(action::Finish{handle, status});
}

// request: stays as long as the handle.
void Negotiator::negotiate(const wire::Request& request, OpHandle handle) {
  pending_[request.name] = {handle, &request, nullptr, false};
  act(action::Asked{handle, false});
  collected_.requests.push_back(request);
  const auto company = has_company_.find(request.name);
  if (company != has_company_.end() && company->second) act(action::Hold{handle});
}

void Negotiator::negotiate(RequestId id, OpHandle handle) {
  const RequestPtr request = cache_.request(id);
  pending_[request->name] = {handle, request.get(), request, false};
  act(action::Asked{handle, true});
  collected_.cached.push_back(cache_.id_of(id));
  ++cached_submissions_;
  const auto company = has_company_.find(request->name);
  if (company != has_company_.end() && company->second) act(action::Hold{handle});
}

// Only what the root may hold back for its batch's sake concerns it.
void Negotiator::on(const event::Awaited& awaited) {
  const std::string& name = awaited.name;
  if (follower_) {
    if (const auto held = follower_->held_of(name)) return blocked_.push_back(*held);
  }
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.awaited_told) return;
  const auto company = has_company_.find(name);
  if (company == has_company_.end() || !company->second) return;
  it->second.awaited_told = true;
  collected_.awaited.push_back(name);
}

void Negotiator::on(const event::Flush& flush) {
  revoke_for_blocked();
  if (collected_.requests.empty() && collected_.cached.empty() && collected_.awaited.empty() &&
      !collected_.joining)
    return;
  send(std::exchange(collected_, {}), flush.now);
}

void Negotiator::send(wire::RequestList list, Time now) {
  if (broken_ || leaving_said_) return;
  list.epoch = group_.epoch;
  list.process_set = group_.process_set;
  list.evictions = evictions_;
  if (follower_) list.plan = follower_->stamp();
  if (is_root()) {
    const Status status = hear_requests(kRoot, list, now);
    if (!status.ok()) give_up(status);
    return;
  }
  if (root_left_) return;
  for (const wire::RequestList& portion : portions(std::move(list)))
    tell(kRoot, wire::encode(portion));
}

// ---- messages ----

// The root.
Status Negotiator::hear_requests(Rank from, const wire::RequestList& list, Time now) {
  const Status status = root_->on_requests(from, list, now);
  for (action::Arrived& arrival : root_->take_arrivals()) act(std::move(arrival));
  return status;
}

void Negotiator::on(const event::Message& message) {
  if (broken_) return;
  const Time now = message.now;
  Status status;
  if (is_root()) {
    wire::RequestList list;
    status = wire::decode(message.bytes, &list);
    if (status.ok() && list.epoch == group_.epoch) status = hear_requests(message.from, list, now);
    if (status.ok() && list.leaving) {
      publish(now);
      wire::ResponseList answer;
      answer.epoch = group_.epoch;
      answer.process_set = group_.process_set;
      answer.left = true;
      tell(message.from, wire::encode(answer));
    }
  } else if (message.from == kRoot) {
    wire::ResponseList list;
    status = wire::decode(message.bytes, &list);
    if (status.ok() && list.epoch == group_.epoch) handle_responses(std::move(list), now);
  }
  if (!status.ok()) {
    give_up(status
                .with_message("damaged message from " + group_.members.name(message.from) + ": " +
                              status.message())
                .with_rank(group_.members.ranks[static_cast<size_t>(message.from)]));
  }
}

void Negotiator::on(const event::PeerLeft& left) {
  if (is_root()) {
    root_->on_leave(left.peer, left.now);
  } else if (left.peer == kRoot) {
    root_has_left();
  }
}

void Negotiator::on(const event::Tick& tick) {
  if (broken_) return;
  follow(tick);
  if (!is_root()) return;
  if (planning() && !follower_->revoked() && tick.now >= next_protocol_check_) {
    next_protocol_check_ = tick.now + std::chrono::seconds(1);
    if (root_->plan_is_stale(tick.now)) on(event::Retune{});
  }
  check_stalls(tick);
  publish(tick.now);
}

void Negotiator::on(const event::CmaAvailable& cma) {
  if (is_root()) root_->protocols().set_cma_available(cma.available);
}

void Negotiator::on(const event::Measured& m) {
  if (is_root()) root_->protocols().measured(m.kind, m.bytes, m.protocol, m.ns, m.now);
}

std::optional<Time> Negotiator::next_deadline(uint64_t finished) const {
  const std::optional<Time> root = root_deadline();
  const std::optional<Time> plan = plan_deadline(finished);
  return root && (!plan || *root < *plan) ? root : plan;
}

std::optional<Time> Negotiator::root_deadline() const {
  return broken_ || !is_root() ? std::nullopt : root_->next_deadline();
}

std::optional<Time> Negotiator::plan_deadline(uint64_t finished) const {
  return broken_ || !follower_ ? std::nullopt : follower_->next_deadline(finished);
}

// The root: what was decided goes to all ranks, itself included.
void Negotiator::publish(Time now) {
  while (!broken_) {
    auto list = root_->take_responses(now);
    if (!list) return;
    tell_everyone(std::move(*list), now);
  }
}

void Negotiator::tell_everyone(wire::ResponseList list, Time now) {
  list.process_set = group_.process_set;
  for (wire::ResponseList& portion : portions(std::move(list))) {
    if (group_.size > 1) tell(action::Send::kEveryone, wire::encode(portion));
    handle_responses(std::move(portion), now);
  }
}

void Negotiator::on(const event::Sites& sites) {
  wire::RequestList answer;
  answer.call_sites = sites.sites;
  send(std::move(answer), sites.now);
}

void Negotiator::check_stalls(const event::Tick& tick) {
  const auto reports = root_->check_stalls(tick.now, tick.launcher_knows);
  if (reports.empty()) return;
  wire::ResponseList list;
  list.epoch = group_.epoch;
  for (const auto& report : reports) {
    if (!report.warning.empty()) act(action::Warn{report.warning});
    list.stalls.push_back(report.stall);
  }
  tell_everyone(std::move(list), tick.now);
}

// ---- the end ----

void Negotiator::on(const event::Leave& leave) {
  if (leaving_) return;
  leaving_ = true;
  on(event::Flush{leave.now});
  if (broken_) return;
  revoke("this rank leaves");
  if (!planning()) say_leaving(leave.now);  // else when it is back
}

void Negotiator::say_leaving(Time now) {
  if (is_root()) {
    root_->on_leave(kRoot, now);
    publish(now);
    wire::ResponseList farewell;
    farewell.epoch = group_.epoch;
    farewell.process_set = group_.process_set;
    farewell.left = true;
    farewell.left_before = root_->first_left();
    if (group_.size > 1) tell(action::Send::kEveryone, wire::encode(farewell));
    root_left_ = true;
  } else if (!root_left_) {
    wire::RequestList list;
    list.leaving = true;
    send(std::move(list), now);
  }
  leaving_said_ = true;
}

void Negotiator::root_has_left(Rank first) {
  if (root_left_) return;
  root_left_ = true;
  if (first > kRoot && first < group_.size && first != group_.rank) first_left_ = first;
  revoke("the root has left");
  if (leaving_) return;  // the answer to this rank's own leaving
  const Status status = root_is_gone("the operation cannot");
  if (!idle()) act(action::Blame{status.message()});
  for (const auto& [name, pending] : std::exchange(pending_, {}))
    act(action::Finish{pending.handle, status});
  collected_ = {};
}

void Negotiator::drop(const Status& status) {
  for (const auto& [name, pending] : std::exchange(pending_, {}))
    act(action::Finish{pending.handle, status});
  collected_ = {};
  if (!follower_) return;
  for (const plan::Follower::Member& member : follower_->drop())
    act(action::Finish{member.handle, status});
}

void Negotiator::on(const event::Drop& end) { drop(end.status); }

void Negotiator::on(const event::BreakDown& end) {
  broken_ = true;
  drop(end.verdict);
}

}  // namespace rueda::negotiation
