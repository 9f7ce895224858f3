// The negotiator and the step plan: into it, along it, and back.
#include <algorithm>

#include "collectives/base/log.h"
#include "runtime/negotiation/negotiator.h"

namespace rueda::negotiation {
namespace {

// Batches that could be planned beside a plan that stands still: the program has gone on to
// something else.
constexpr int kIdle = 32;

}  // namespace

void Negotiator::start_plan(const wire::StepPlan& frozen, Time now) {
  const auto refuse = [&](const std::string& why) {
    effects_->give_up(internal_error("the root froze a step plan " + why));
  };
  if (!follower_) return refuse("on a rank that follows none");
  if (planning() || frozen.generation != follower_->generation() + 1)
    return refuse("while another was in force");
  plan::StepPlan plan;
  plan.generation = frozen.generation;
  std::vector<RequestPtr> members;
  std::vector<const wire::Request*> requests;
  for (const wire::PlannedBatch& batch : frozen.batches) {
    for (const CacheId id : batch.ids) {
      members.push_back(cache_.get(id));
      if (members.back() == nullptr) return refuse("with a tensor that this rank does not know");
      requests.push_back(members.back().get());
    }
    if (batch.ids.empty()) return refuse("with an empty batch");
    plan.batches.push_back({cache_.get(batch.ids.front())->kind, batch.ids, batch.protocol});
  }
  if (plan.batches.empty()) return refuse("without batches");
  ++plans_;
  at_will_ = false;
  beside_ = 0;
  seen_entered_ = 0;
  blocked_.reserve(members.size());
  follower_->begin(plan, requests, now);
  RUEDA_INFO("coordinator", "step plan {}: {} batches, {} tensors", plan.generation,
             plan.batches.size(), members.size());
  // What waits for an answer is now the plan's: the root overlooks it.
  bool deviates = false;
  for (size_t i = 0; i < members.size(); ++i) deviates |= !move_to_plan(*members[i], now);
  if (deviates) revoke("a tensor came with other properties");
  if (leaving_) revoke("this rank leaves");
  if (joined_) revoke("this rank has joined");
}

// False: something else waits under this name.
bool Negotiator::move_to_plan(const wire::Request& member, Time now) {
  const auto it = pending_.find(member.name);
  if (it == pending_.end()) return true;
  const auto id = cache_.find(*it->second.request);
  if (!id || !follower_->has(*id)) return false;
  const Pending pending = it->second;
  pending_.erase(it);
  // Not sent yet: must not be sent any more.
  auto& cached = collected_.cached;
  cached.erase(std::remove(cached.begin(), cached.end(), *id), cached.end());
  auto& wanted = collected_.wanted;
  wanted.erase(std::remove(wanted.begin(), wanted.end(), member.name), wanted.end());
  ++planned_submissions_;
  if (!follower_->submit(*id, pending.ticket, now) &&
      (pending.wanted_told || effects_->may_hold(pending.ticket))) {
    blocked_.push_back(*id);
  }
  return true;
}

void Negotiator::revoke(const std::string& why, bool at_will) {
  if (!planning() || follower_->revoked()) return;
  at_will_ = at_will;
  follower_->revoke(why);
}

// A thread waits for a batch that this rank has not entered, so it waits for something that this
// rank has not submitted, and perhaps never will: the plan's order may not hold it up.
bool Negotiator::revoke_for_blocked() {
  bool revoked = false;
  for (const CacheId id : blocked_) {
    if (!planning() || follower_->revoked() || !follower_->holds(id)) continue;
    revoke(title_of(*cache_.get(id)) + " is waited for before its turn");
    revoked = true;
  }
  blocked_.clear();
  return revoked;
}

// The root rank: a plan that nobody follows any more must not stand in the way of the next.
void Negotiator::replace_idle_plan(const wire::Response& response) {
  if (!planning() || follower_->revoked()) return;
  if (follower_->batches_entered() != seen_entered_) beside_ = 0;
  seen_entered_ = follower_->batches_entered();
  if (response.entries.front().cache_id < 0 || !plan::PlanKeeper::plannable(response.kind)) return;
  if (++beside_ >= kIdle) revoke("it is not followed any more", true);
}

bool Negotiator::follow(Time now) {
  if (!planning()) return false;
  const bool revoked = follower_->revoked();
  if (follower_->poll(now)) {
    come_back(now);
    return true;
  }
  return follower_->revoked() != revoked;
}

// Negotiation goes on at the first batch that not all ranks have entered.
void Negotiator::come_back(Time now) {
  ++revocations_;
  RUEDA_INFO("coordinator", "step plan {} ended: {}", follower_->generation(), follower_->why());
  if (is_root()) {
    const uint64_t cycles = follower_->batches_entered() / follower_->batches_in_cycle();
    root_->on_plan_end(cycles, at_will_);
  }
  blocked_.clear();
  for (const plan::Follower::Member& member : follower_->take_back()) {
    if (root_left_ && !leaving_) {
      refuse(member.ticket);
    } else {
      negotiate(*cache_.get(member.id), member.id, member.ticket);
    }
  }
  if (joined_) collected_.joining = true;
  // Even if there is nothing to ask for: the root must know that this rank is back.
  send(std::exchange(collected_, {}), now);
  if (leaving_ && !leaving_said_) say_leaving(now);
}

}  // namespace rueda::negotiation
