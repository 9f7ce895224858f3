#include "runtime/negotiation/root.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "collectives/base/stall_limit.h"
#include "runtime/negotiation/portions.h"

namespace rueda::negotiation {
namespace {

std::chrono::nanoseconds seconds(double value) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(value));
}

}  // namespace

Root::Root(const Config& config, uint64_t epoch, Members members)
    : config_(config),
      epoch_(epoch),
      members_(std::move(members)),
      table_(members_, config.horovod_strict),
      planner_(seconds(config.fusion_hold_seconds)),
      plans_(static_cast<Rank>(members_.size())),
      protocols_(config.shm_protocol),
      ids_(static_cast<size_t>(config.cache_capacity), members_.size()),
      sizes_(static_cast<size_t>(config.cache_capacity)) {
  wire::Request join;
  join.kind = CollectiveKind::kJoin;
  join.name = kJoinName;
  join_request_ = std::make_shared<const wire::Request>(std::move(join));
}

Status Root::on_requests(Rank rank, const wire::RequestList& list, Time now) {
  if (!plans_.on_stamp(rank, list.plan))
    return {Code::kDataLoss, "step plan " + std::to_string(list.plan) + " cannot be"};
  if (!plans_.in_force()) ids_.end_plan();
  if (!ids_.on_handled(rank, list.evictions)) {
    return {Code::kDataLoss,
            std::to_string(list.evictions) + " ids forgotten, of which nobody was told"};
  }
  for (const wire::Request& request : list.requests) {
    RUEDA_RETURN_IF_ERROR(add(rank, std::make_shared<const wire::Request>(request), now));
  }
  for (const CacheId id : list.cached) RUEDA_RETURN_IF_ERROR(add_cached(rank, id, now));
  fail_split_groups(now);
  for (const std::string& name : list.awaited) {
    // It follows its submission. What is neither waiting nor held has gone out meanwhile: that a
    // thread waits must not be kept for the tensor's next round.
    if (!table_.submitted(rank, name) && !held_id(name)) continue;
    awaited_[name].push_back(rank);
    recheck_awaited(name, now);
  }
  for (const wire::CallSite& site : list.call_sites) call_sites_.on_answer(rank, site);
  if (list.joining && plans_.is_back(rank)) on_join(rank, now);
  if (list.leaving) on_leave(rank, now);
  return {};
}

// The rank's part is played by neutral contributions from here on. Its own requests have all come
// before; while it has not come back from a step plan some of them may not, so then it says this
// again.
void Root::on_join(Rank rank, Time now) {
  if (table_.has_joined(rank) || table_.has_left(rank)) return;
  last_joined_ = rank;
  ids_.on_silent(rank);
  for (Decision& decision : table_.join(rank)) decide(std::move(decision), now);
  fail_split_groups(now);
  if (auto decision = table_.add(rank, join_request_, now)) decide(std::move(*decision), now);
}

// All have joined, or some rank never will.
void Root::decide_join(const Decision& decision, Time now) {
  // What is held is ready on all ranks: it goes out while the neutral contributions are there.
  for (const Batch& batch : planner_.flush()) add_batch(batch, now);
  release_fresh();
  table_.end_join();
  ids_.on_end_join();
  if (!decision.status.ok()) return add_error(decision);
  wire::Response response;
  response.kind = CollectiveKind::kJoin;
  response.last_joined = last_joined_;
  response.entries.emplace_back().name = kJoinName;
  responses_.push_back(std::move(response));
}

Status Root::add_cached(Rank rank, CacheId id, Time now) {
  const RequestPtr request = ids_.meaning(rank, id);
  if (request == nullptr) return {Code::kDataLoss, "unknown cache id " + std::to_string(id)};
  switch (plans_.place(rank, id)) {
    case plan::PlanKeeper::Place::kRoot: return add(rank, request, now, id);
    case plan::PlanKeeper::Place::kPlan: return {};
    case plan::PlanKeeper::Place::kWrong: break;
  }
  return {Code::kDataLoss, title_of(*request) + " is in the step plan"};
}

Status Root::add(Rank rank, const RequestPtr& request, Time now, std::optional<CacheId> id) {
  const std::string name = request->name;
  if (request->kind == CollectiveKind::kAlltoall && request->splits.size() != members_.size()) {
    return {Code::kDataLoss,
            title_of(name) + " has " + std::to_string(request->splits.size()) + " splits"};
  }
  arrivals_.push_back({request, rank, false, {}, now});
  if (auto decision = table_.add(rank, request, now, id)) {
    if (decision->status.ok()) {
      arrivals_.back().last = true;
      arrivals_.back().before = decision->before;
    }
    decide(std::move(*decision), now);
    recheck_awaited(name, now);
  } else {
    conflicts_.on_waiting(name, now);
  }
  return {};
}

void Root::on_leave(Rank rank, Time now) {
  if (table_.has_left(rank)) return;
  if (first_left_ == 0) first_left_ = rank;
  plans_.stop();
  ids_.on_silent(rank);
  call_sites_.close();
  tell_answered(now);
  for (Decision& decision : table_.leave(rank)) decide(std::move(decision), now);
  fail_split_groups(now);
  // What is held is ready on all ranks, the leaver included: it goes out before the leaver's
  // answer.
  for (const Batch& batch : planner_.flush()) add_batch(batch, now);
}

// Ranks are told that they disagree once each has said where it called.
void Root::ask_where(Decision decision, Time now) {
  decision.disagreement = false;
  std::vector<Rank> senders;
  for (size_t place = 0; place < decision.by_rank.size(); ++place) {
    if (decision.by_rank[place] != nullptr) senders.push_back(static_cast<Rank>(place));
  }
  const std::string name = decision.request().name;
  call_sites_.ask({name}, {senders}, members_.size(), now, std::move(decision));
}

void Root::ask_where(KindConflicts::Conflict conflict, Time now) {
  const auto names = conflict.wire_names;
  const auto senders = conflict.senders;
  call_sites_.ask(names, senders, members_.size(), now, std::move(conflict));
}

void Root::tell_answered(Time now) {
  for (CallSites::Answered& answered : call_sites_.take_answered(now)) {
    if (auto* decision = std::get_if<Decision>(&answered.about)) {
      decision->status = table_.agreement_of(*decision, answered.sites.front());
      decide(std::move(*decision), now);
    } else {
      const auto& conflict = std::get<KindConflicts::Conflict>(answered.about);
      // What has changed meanwhile is looked at again.
      if (conflicts_.stands(conflict)) fail_conflict(conflict, answered.sites, now);
    }
  }
}

void Root::fail_conflict(const KindConflicts::Conflict& conflict, const CallSites::Sites& sites,
                         Time now) {
  const Status status = KindConflicts::status_of(conflict, members_, sites);
  for (const std::string& name : conflict.wire_names) {
    if (auto decision = table_.fail(name, status)) decide(std::move(*decision), now);
  }
}

void Root::decide(Decision decision, Time now) {
  if (decision.disagreement && asks_call_sites_) return ask_where(std::move(decision), now);
  const wire::Request& request = decision.request();
  told_.erase(request.name);
  if (request.kind == CollectiveKind::kJoin) return decide_join(decision, now);
  if (!decision.absent.empty()) table_.refresh(kJoinName, now);  // it stalls nothing
  conflicts_.on_decided(request.name);
  if (!decision.status.ok()) {
    for (const RequestPtr& sent : decision.by_rank) {
      if (sent != nullptr && !sent->group.empty())
        failed_groups_.emplace(sent->group, decision.status);
    }
  }
  if (!decision.status.ok()) return add_error(decision);
  if (has_sizes(request.kind) && decision.absent.empty() && IdTable::cacheable(request))
    sizes_.on_round(decision.by_rank);
  if (!request.group.empty()) return decide_group(std::move(decision));
  if (const auto id = known_id(decision)) return add_ready(std::move(decision), *id, now);
  fresh_.push_back(std::move(decision));
}

// The members of a grouped call go out together.
void Root::decide_group(Decision decision) {
  const std::string name = decision.request().group;
  const uint32_t size = decision.request().group_size;
  std::vector<Decision>& ready = groups_[name];
  ready.push_back(std::move(decision));
  if (ready.size() < size) return;
  for (Decision& member : ready) fresh_.push_back(std::move(member));
  groups_.erase(name);
}

// ... or fail together, with the first error of any: members that are ready and members that wait
// for other ranks. Called when a whole message has been taken, so that a group's members are all
// there. A failed member may belong to another group on another rank; then that group fails too.
void Root::fail_split_groups(Time now) {
  while (!failed_groups_.empty()) {
    const auto failed = failed_groups_.begin();
    const std::string group = failed->first;
    const Status status = failed->second;
    failed_groups_.erase(failed);
    if (const auto ready = groups_.find(group); ready != groups_.end()) {
      for (Decision& member : ready->second) {
        member.status = status;
        member.of_group = true;
        add_error(member);
      }
      groups_.erase(ready);
    }
    for (const std::string& name : table_.members_of(group)) {
      auto decision = table_.fail(name, status);
      if (!decision) continue;
      decision->of_group = true;
      decide(std::move(*decision), now);
    }
  }
}

void Root::add_error(const Decision& decision) {
  const wire::Request& request = decision.request();
  const Status& status = decision.status;
  awaited_.erase(request.name);
  wire::Response response;
  response.kind = request.kind;
  response.error = status.message();
  response.error_code = status.code();
  response.error_rank = static_cast<uint32_t>(status.facts().rank + 1);
  response.error_of_group = decision.of_group;
  wire::ResponseEntry& entry = response.entries.emplace_back();
  entry.name = request.name;
  // What these submit, perhaps before they hear of this, is their next one.
  for (size_t place = 0; place < decision.by_rank.size(); ++place) {
    if (decision.by_rank[place] == nullptr) entry.absent.push_back(static_cast<Rank>(place));
  }
  responses_.push_back(std::move(response));
}

std::optional<CacheId> Root::held_id(const std::string& name) const {
  const auto id = id_of_.find(name);
  if (id == id_of_.end() || !planner_.holds(id->second)) return std::nullopt;
  return id->second;
}

// A thread is blocked on a tensor that the planner may hold back for the sake of others that this
// rank never submits.
void Root::recheck_awaited(const std::string& name, Time now) {
  const auto awaited = awaited_.find(name);
  if (awaited == awaited_.end()) return;
  const std::optional<CacheId> id = held_id(name);
  if (!id) return;
  const std::vector<Rank> ranks = awaited->second;
  for (const Rank rank : ranks) {
    const auto submitted = [&](CacheId other) { return table_.submitted(rank, name_of(other)); };
    for (const Batch& batch : planner_.on_awaited(*id, submitted)) add_batch(batch, now);
    if (!planner_.holds(*id)) break;
  }
}

std::optional<wire::ResponseList> Root::take_responses(Time now) {
  for (const Batch& batch : planner_.on_time(now)) add_batch(batch, now);
  for (auto& conflict : conflicts_.due(table_, members_, now)) {
    if (asks_call_sites_) {
      ask_where(std::move(conflict), now);
    } else {
      fail_conflict(conflict, {}, now);
    }
  }
  tell_answered(now);
  fail_split_groups(now);
  release_fresh();
  wire::ResponseList list;
  list.evicted = forget_evicted(now);
  list.where = call_sites_.take_questions();
  if (responses_.empty() && list.where.empty()) return std::nullopt;
  if (!responses_.empty()) freeze_plan();
  list.epoch = epoch_;
  list.responses.swap(responses_);
  ids_.next_list();
  return list;
}

std::optional<Time> Root::next_deadline() const {
  std::optional<Time> deadline = planner_.next_deadline();
  if (const auto conflict = conflicts_.next_deadline();
      conflict && (!deadline || *conflict < *deadline)) {
    deadline = conflict;
  }
  if (const auto answers = call_sites_.next_deadline();
      answers && (!deadline || *answers < *deadline))
    deadline = answers;
  if (!table_.empty() && (!deadline || next_stall_check_ < *deadline)) deadline = next_stall_check_;
  return deadline;
}

std::vector<Root::Report> Root::check_stalls(Time now, const std::string& known) {
  std::vector<Report> reports;
  if (!stalls_due(now)) return reports;
  const double stall = config_.stall_check_seconds;
  const auto [give_up, reason] = stall_limit(config_);
  // Ranks are told early, so that a passed deadline can say who is missing; the log speaks after
  // the stall time.
  const double tell = stall > 0 ? std::min(1.0, stall) : 1.0;
  double period = tell;
  if (give_up > 0) period = std::min(period, give_up);
  next_stall_check_ = now + seconds(period);
  for (const Waiting& waiting : table_.waiting()) {
    const double age = std::chrono::duration<double>(now - waiting.since).count();
    std::string missing;
    for (const Rank rank : waiting.missing) {
      missing += (missing.empty() ? "" : ", ") + members_.name(rank);
    }
    if (give_up > 0 && age >= give_up) {
      const Status status = deadline_exceeded(fmt::format(
          "{} was submitted by {} but not by {} for {:.0f} s ({}){}{}", title_of(waiting.name),
          members_.list(waiting.ready), missing, age, reason, known.empty() ? "" : "\n", known));
      if (auto decision = table_.fail(waiting.name, status)) decide(std::move(*decision), now);
      continue;
    }
    Told& told = told_[waiting.name];
    Report report;
    report.stall = {waiting.name, {waiting.missing.begin(), waiting.missing.end()}, age};
    if (stall > 0 && age >= std::max(stall, told.next_warning)) {
      told.next_warning = 2 * age;
      report.warning =
          fmt::format("stalled: {} was submitted by {} {:.0f} s ago, still missing: {}",
                      title_of(waiting.name), members_.list(waiting.ready), age, missing);
    } else if (told.ranks || age < tell) {
      continue;
    }
    told.ranks = true;
    reports.push_back(std::move(report));
  }
  fail_split_groups(now);
  return reports;
}

}  // namespace rueda::negotiation
