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

// What the follower asks for goes on to the owner.
void Negotiator::pass_on() {
  for (plan::Action& asked : follower_->actions())
    std::visit([this](auto& what) { act(what); }, asked);
  follower_->actions().clear();
}

void Negotiator::start_plan(const wire::StepPlan& frozen, Time now) {
  const auto refuse = [&](const std::string& why) {
    give_up(internal_error("the root froze a step plan " + why));
  };
  if (!follower_) return refuse("on a rank that follows none");
  if (planning() || frozen.generation != follower_->generation() + 1)
    return refuse("while another was in force");
  action::BeginPlan begin;
  begin.plan.generation = frozen.generation;
  std::vector<plan::Follower::Place> places;
  for (const wire::PlannedBatch& batch : frozen.batches) {
    if (batch.ids.empty()) return refuse("with an empty batch");
    for (const CacheId id : batch.ids) {
      const ResponseCache::Agreed* agreed = cache_.get(id);
      if (agreed == nullptr) return refuse("with a tensor that this rank does not know");
      begin.requests.push_back(agreed->request);
      begin.sizes.push_back(agreed->sizes);
      places.push_back({agreed->request_id, agreed->request->name});
    }
    const CollectiveKind kind = cache_.get(batch.ids.front())->request->kind;
    begin.plan.batches.push_back({kind, batch.ids, batch.protocol});
  }
  if (begin.plan.batches.empty()) return refuse("without batches");
  ++plans_;
  at_will_ = false;
  beside_ = 0;
  seen_entered_ = 0;
  blocked_.reserve(places.size());
  follower_->begin(begin.plan, places, now);
  RUEDA_INFO("coordinator", "step plan {}: {} batches, {} tensors", begin.plan.generation,
             begin.plan.batches.size(), places.size());
  const std::vector<RequestPtr> members = begin.requests;
  act(std::move(begin));
  // What waits for an answer is now the plan's: the root overlooks it.
  bool deviates = false;
  for (const RequestPtr& member : members) deviates |= !move_to_plan(*member, now);
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
  const Unanswered pending = it->second;
  pending_.erase(it);
  // Not sent yet: must not be sent any more.
  std::erase_if(collected_.cached,
                [&](CacheId sent) { return cache_.get(sent)->request_id == *id; });
  std::erase(collected_.awaited, member.name);
  ++planned_submissions_;
  if (follower_->on_ready(*id, pending.handle, now) == plan::Follower::Taken::kEntered) {
    pass_on();
  } else if (pending.awaited_told) {
    blocked_.push_back(*id);
  } else {
    act(action::Hold{pending.handle});
  }
  return true;
}

void Negotiator::revoke(const std::string& why, bool at_will) {
  if (!planning() || follower_->revoked()) return;
  at_will_ = at_will;
  follower_->revoke(why);
  pass_on();
}

// A thread waits for a batch that this rank has not entered, so it waits for something that this
// rank has not submitted, and perhaps never will: the plan's order may not hold it up.
void Negotiator::revoke_for_blocked() {
  for (const RequestId id : blocked_) {
    if (!planning() || follower_->revoked() || !follower_->holds(id)) continue;
    revoke(title_of(*cache_.request(id)) + " is waited for before its turn");
  }
  blocked_.clear();
}

// The root rank: a plan that nobody follows any more must not stand in the way of the next.
void Negotiator::replace_idle_plan(CollectiveKind kind, bool cached) {
  if (!planning() || follower_->revoked()) return;
  if (follower_->batches_entered() != seen_entered_) beside_ = 0;
  seen_entered_ = follower_->batches_entered();
  if (!cached || !plan::PlanKeeper::plannable(kind)) return;
  if (++beside_ >= kIdle) revoke("it is not followed any more", true);
}

void Negotiator::follow(const event::Tick& tick) {
  if (!planning()) return;
  follower_->on_progress(tick.plan, tick.now);
  pass_on();
}

void Negotiator::on(const event::Withdrawn& withdrawn) {
  if (!planning()) return;
  follower_->on_withdrawn(withdrawn.handles);
  if (!planning()) come_back(withdrawn.now);
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
      refuse(member.handle);
    } else {
      negotiate(member.id, member.handle);
    }
  }
  if (joined_) collected_.joining = true;
  // Even if there is nothing to ask for: the root must know that this rank is back.
  send(std::exchange(collected_, {}), now);
  if (leaving_ && !leaving_said_) say_leaving(now);
}

}  // namespace rueda::negotiation
