#include "runtime/negotiation/negotiator.h"

#include <algorithm>
#include <utility>

#include "proto/negotiation_codec.h"
#include "runtime/negotiation/portions.h"

namespace rueda::negotiation {

Negotiator::Negotiator(const Config& config, GroupInfo group, Effects* effects,
                       plan::PlanChannel* channel)
    : group_(std::move(group)),
      effects_(effects),
      cache_(static_cast<size_t>(config.cache_capacity)) {
  if (group_.rank == kRoot) {
    root_ = std::make_unique<Root>(config, group_.epoch, group_.members, &cache_);
    root_->explain_with([this] { return effects_->explanation(); });
    root_->enable_call_sites();
    if (channel != nullptr) root_->enable_plans();
  }
  if (channel != nullptr) {
    follower_.emplace(channel, group_.size,
                      std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::duration<double>(config.plan_patience_seconds)));
  }
}

// ---- submissions ----

void Negotiator::submit(const wire::Request& request, Ticket ticket, Time now) {
  if (request.kind == CollectiveKind::kJoin) return join(request, ticket);
  if (const auto id = cache_.find(request)) return submit_cached(*id, ticket, now);
  if (root_left_) return refuse(ticket);
  if (follower_ && follower_->has_name(request.name))
    revoke(title_of(request) + " came with other properties");
  negotiate(request, std::nullopt, ticket);
}

void Negotiator::submit_cached(CacheId id, Ticket ticket, Time now) {
  if (root_left_) return refuse(ticket);
  if (follower_ && follower_->has(id)) {
    ++planned_submissions_;
    if (!follower_->submit(id, ticket, now) && effects_->may_hold(ticket)) blocked_.push_back(id);
    return;
  }
  const RequestPtr request = cache_.get(id);
  if (follower_ && follower_->has_name(request->name))
    revoke(title_of(*request) + " came with other properties");
  negotiate(*request, id, ticket);
}

// Said behind everything that was submitted before: after a step plan, when this rank is back.
void Negotiator::join(const wire::Request& request, Ticket ticket) {
  if (root_left_) return refuse(ticket);
  pending_[request.name] = {ticket, &request, false};
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

void Negotiator::refuse(Ticket ticket) {
  const Status status = root_is_gone("no operation can");
  effects_->blame(status.message());
  effects_->finish(ticket, status);
}

// request: stays as long as the ticket.
void Negotiator::negotiate(const wire::Request& request, std::optional<CacheId> id, Ticket ticket) {
  Pending& pending = pending_[request.name];
  pending = {ticket, &request, false};
  effects_->asked(ticket, id.has_value());
  if (id) {
    collected_.cached.push_back(*id);
    ++cached_submissions_;
  } else {
    collected_.requests.push_back(request);
  }
  const auto company = has_company_.find(request.name);
  if (company != has_company_.end() && company->second && effects_->may_hold(ticket)) {
    pending.wanted_told = true;
    collected_.wanted.push_back(request.name);
  }
}

// Only what the root may hold back for its batch's sake concerns it.
void Negotiator::wanted(const std::string& name) {
  if (follower_) {
    const auto id = follower_->id_of(name);
    if (id && follower_->holds(*id)) return blocked_.push_back(*id);
  }
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.wanted_told) return;
  const auto company = has_company_.find(name);
  if (company == has_company_.end() || !company->second) return;
  it->second.wanted_told = true;
  collected_.wanted.push_back(name);
}

void Negotiator::wanted(CacheId id) {
  if (follower_ && follower_->holds(id)) return blocked_.push_back(id);
  if (const RequestPtr request = cache_.get(id)) wanted(request->name);
}

bool Negotiator::flush(Time now) {
  const bool revoked = revoke_for_blocked();
  if (collected_.requests.empty() && collected_.cached.empty() && collected_.wanted.empty() &&
      !collected_.joining)
    return revoked;
  send(std::exchange(collected_, {}), now);
  return true;
}

void Negotiator::send(wire::RequestList list, Time now) {
  if (broken_ || leaving_said_) return;
  list.epoch = group_.epoch;
  list.process_set = group_.process_set;
  if (follower_) list.plan = follower_->stamp();
  if (is_root()) {
    const Status status = root_->on_requests(kRoot, list, now);
    if (!status.ok()) effects_->give_up(status);
    return;
  }
  if (root_left_) return;
  for (const wire::RequestList& portion : portions(std::move(list))) {
    effects_->send_control(kRoot, wire::encode(portion));
  }
}

// ---- messages ----

void Negotiator::on_message(Rank from, std::string_view message, Time now) {
  if (broken_) return;
  Status status;
  if (is_root()) {
    wire::RequestList list;
    status = wire::decode(message, &list);
    if (status.ok() && list.epoch == group_.epoch) status = root_->on_requests(from, list, now);
    if (status.ok() && list.leaving) {
      publish(now);
      wire::ResponseList answer;
      answer.epoch = group_.epoch;
      answer.process_set = group_.process_set;
      answer.left = true;
      effects_->send_control(from, wire::encode(answer));
    }
  } else if (from == kRoot) {
    wire::ResponseList list;
    status = wire::decode(message, &list);
    if (status.ok() && list.epoch == group_.epoch) handle_responses(list, now);
  }
  if (!status.ok()) {
    effects_->give_up({status.code(), "damaged message from " + group_.members.name(from) + ": " +
                                          status.message()});
  }
}

void Negotiator::on_peer_left(Rank peer, Time now) {
  if (is_root()) {
    root_->on_leave(peer, now);
  } else if (peer == kRoot) {
    root_has_left();
  }
}

bool Negotiator::on_time(Time now) {
  if (broken_) return false;
  bool moved = follow(now);
  if (!is_root()) return moved;
  if (planning() && !follower_->revoked() && now >= next_protocol_check_) {
    next_protocol_check_ = now + std::chrono::seconds(1);
    if (root_->plan_is_stale(now)) retune();
  }
  moved |= check_stalls(now);
  return publish(now) || moved;
}

std::optional<Time> Negotiator::next_deadline() const {
  const std::optional<Time> root = root_deadline();
  const std::optional<Time> plan = plan_deadline();
  return root && (!plan || *root < *plan) ? root : plan;
}

std::optional<Time> Negotiator::root_deadline() const {
  return broken_ || !is_root() ? std::nullopt : root_->next_deadline();
}

std::optional<Time> Negotiator::plan_deadline() const {
  return broken_ || !follower_ ? std::nullopt : follower_->next_deadline();
}

// The root: what was decided goes to all ranks, itself included.
bool Negotiator::publish(Time now) {
  if (broken_) return false;
  bool told = false;
  while (auto list = root_->take_responses(now)) {
    tell_everyone(std::move(*list), now);
    told = true;
    if (broken_) break;
  }
  return told;
}

void Negotiator::tell_everyone(wire::ResponseList list, Time now) {
  list.process_set = group_.process_set;
  for (const wire::ResponseList& portion : portions(std::move(list))) {
    const std::string message = wire::encode(portion);
    for (Rank peer = 1; peer < group_.size; ++peer) effects_->send_control(peer, message);
    handle_responses(portion, now);
  }
}

void Negotiator::handle_responses(const wire::ResponseList& list, Time now) {
  for (const wire::Response& response : list.responses) {
    if (response.freeze.empty()) {
      handle_response(response);
    } else {
      start_plan(response.freeze.front(), now);
    }
    if (broken_) return;
  }
  for (const wire::Stall& stall : list.stalls) handle_stall(stall);
  say_where(list.where, now);
  if (list.left) root_has_left(list.left_before);
}

void Negotiator::handle_response(const wire::Response& response) {
  std::vector<Pending> members;
  std::vector<Ticket> tickets;
  // The members taken so far wait again, so that they end with the verdict too.
  const auto give_up = [&](const std::string& why) {
    const Status verdict = internal_error(why);
    for (const Pending& member : members) {
      if (member.request != nullptr) {
        pending_[member.request->name] = member;
      } else {
        effects_->finish(member.ticket, verdict);  // a neutral contribution
      }
    }
    effects_->give_up(verdict);
  };
  for (const wire::ResponseEntry& entry : response.entries) {
    RequestPtr known;
    if (entry.cache_id >= 0) known = cache_.get(static_cast<CacheId>(entry.cache_id));
    if (known == nullptr && entry.name.empty())
      return give_up("the root named a tensor that this rank does not know");
    const std::string& name = entry.name.empty() ? known->name : entry.name;
    const bool absent =
        std::find(entry.absent.begin(), entry.absent.end(), group_.rank) != entry.absent.end();
    const auto it = absent ? pending_.end() : pending_.find(name);
    if (it == pending_.end() && !absent) {
      if (!response.error.empty()) continue;  // this rank did not wait for it
      return give_up("the root answered " + title_of(name) + ", which this rank has not submitted");
    }
    const bool is_new = known == nullptr && entry.cache_id >= 0 && response.error.empty();
    if (absent) {
      if (known == nullptr && !entry.neutral.empty())
        known = std::make_shared<const wire::Request>(entry.neutral.front());
      if (known == nullptr) return give_up("the root does not say what " + title_of(name) + " is");
      members.push_back({effects_->neutral(*known), nullptr, false});
    } else {
      if (is_new) known = std::make_shared<const wire::Request>(*it->second.request);
      members.push_back(it->second);
      pending_.erase(it);
    }
    if (is_new) cache_.put(static_cast<CacheId>(entry.cache_id), known);
    // With its name: the root has just met it and may put it into a batch next time.
    if (entry.cache_id >= 0 && known != nullptr)
      has_company_[known->name] = !entry.name.empty() || response.entries.size() > 1;
    tickets.push_back(members.back().ticket);
  }
  if (response.kind == CollectiveKind::kJoin) joined_ = false;
  if (members.empty()) return;
  if (!response.error.empty()) {
    // Somebody has left, or has not come in time: the launcher shall know why this rank fails.
    if (response.error_code == Code::kCancelled || response.error_code == Code::kDeadlineExceeded)
      effects_->blame(response.error);
    for (const Ticket ticket : tickets)
      effects_->finish(ticket, {response.error_code, response.error});
    return;
  }
  effects_->launch(response, tickets);
  if (is_root()) replace_idle_plan(response);
}

void Negotiator::handle_stall(const wire::Stall& stall) {
  const auto it = pending_.find(stall.name);
  if (it == pending_.end()) return;
  std::string missing;
  for (const Rank rank : stall.missing) {
    if (rank < 0 || rank >= group_.size) continue;
    missing += (missing.empty() ? "" : ", ") + group_.members.name(rank);
  }
  const std::string known = effects_->explanation();
  effects_->note(it->second.ticket,
                 "not yet submitted by " + missing + (known.empty() ? "" : "\n" + known));
}

// Ranks disagree about these names: the error is to say where each called.
void Negotiator::say_where(const std::vector<std::string>& names, Time now) {
  wire::RequestList answer;
  for (const std::string& name : names) {
    const auto it = pending_.find(name);
    if (it != pending_.end())
      answer.call_sites.push_back({name, effects_->call_site(it->second.ticket)});
  }
  if (!answer.call_sites.empty()) send(std::move(answer), now);
}

bool Negotiator::check_stalls(Time now) {
  const auto reports = root_->check_stalls(now);
  if (reports.empty()) return false;
  wire::ResponseList list;
  list.epoch = group_.epoch;
  for (const auto& report : reports) {
    if (!report.warning.empty()) effects_->warn(report.warning);
    list.stalls.push_back(report.stall);
  }
  tell_everyone(std::move(list), now);
  return true;
}

// ---- the end ----

void Negotiator::leave(Time now) {
  if (leaving_) return;
  leaving_ = true;
  flush(now);
  if (broken_) return;
  revoke("this rank leaves");
  if (!planning()) say_leaving(now);  // else when it is back
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
    const std::string message = wire::encode(farewell);
    for (Rank peer = 1; peer < group_.size; ++peer) effects_->send_control(peer, message);
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
  if (!idle()) effects_->blame(status.message());
  for (const auto& [name, pending] : std::exchange(pending_, {}))
    effects_->finish(pending.ticket, status);
  collected_ = {};
}

void Negotiator::drop(const Status& status) {
  for (const auto& [name, pending] : std::exchange(pending_, {}))
    effects_->finish(pending.ticket, status);
  collected_ = {};
  if (!follower_) return;
  for (const plan::Follower::Member& member : follower_->drop())
    effects_->finish(member.ticket, status);
}

void Negotiator::break_down(const Status& verdict) {
  broken_ = true;
  drop(verdict);
}

}  // namespace rueda::negotiation
