// The root and the step plan: what goes out is watched, and what comes again and again is frozen.
#include <algorithm>

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
  auto plan = plans_.freeze();
  if (!plan) return;
  for (const wire::PlannedBatch& batch : plan->batches) {
    for (const Slot slot : batch.slots) give_to_plan(slot);
  }
  responses_.emplace_back().freeze.push_back(std::move(*plan));
}

// What ranks had submitted for the next round is theirs to submit to the plan.
void Root::give_to_plan(Slot slot) {
  const RequestPtr request = cache_->get(slot);
  // A slot that this very list hands out is not in the cache yet, nor in any list of a rank.
  if (request == nullptr) return;
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
