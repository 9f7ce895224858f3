// The root and the step plan: what goes out is watched, and what comes again and again is frozen.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "runtime/negotiation/root.h"

namespace rueda::negotiation {

// Behind everything that has been decided, so that a rank which handles the freeze has launched all
// that went before.
void Root::freeze_plan() {
  for (const wire::Response& response : responses_) {
    std::vector<uint32_t> slots;
    for (const wire::ResponseEntry& entry : response.entries) {
      if (entry.cache_slot >= 0) slots.push_back(static_cast<uint32_t>(entry.cache_slot));
    }
    const bool whole = response.error.empty() && slots.size() == response.entries.size();
    plans_.on_batch(response.kind, whole ? slots : std::vector<uint32_t>{});
  }
  const auto cycle = plans_.candidate();
  if (!cycle || !groups_are_whole(*cycle)) return;
  wire::StepPlan plan = plans_.freeze(*cycle);
  for (const wire::PlannedBatch& batch : plan.batches) {
    for (const Slot slot : batch.slots) give_to_plan(slot);
  }
  responses_.emplace_back().freeze.push_back(std::move(plan));
}

// A group whose one member were planned and the other negotiated would wait for itself: the full
// cache may have left one out.
bool Root::groups_are_whole(const std::vector<std::vector<uint32_t>>& cycle) const {
  std::map<std::string, std::set<Slot>> members;
  for (const auto& batch : cycle) {
    for (const Slot slot : batch) {
      const RequestPtr request = cache_->get(slot);
      if (request == nullptr) return false;
      if (!request->group.empty()) members[request->group].insert(slot);
    }
  }
  return std::all_of(members.begin(), members.end(), [&](const auto& group) {
    return group.second.size() == cache_->get(*group.second.begin())->group_size;
  });
}

// What ranks had submitted for the next round is theirs to submit to the plan.
void Root::give_to_plan(Slot slot) {
  const RequestPtr request = cache_->get(slot);
  planner_.forget_round(slot);
  wanted_.erase(request->name);
  if (table_.withdraw(request)) {
    told_.erase(request->name);
    conflicts_.on_decided(request->name);
  }
  const auto group = groups_.find(request->group);
  if (group == groups_.end()) return;
  auto& ready = group->second;
  const auto same = [&](const Decision& decision) { return decision.request() == *request; };
  ready.erase(std::remove_if(ready.begin(), ready.end(), same), ready.end());
  if (ready.empty()) groups_.erase(group);
}

}  // namespace rueda::negotiation
