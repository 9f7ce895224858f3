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
    std::vector<uint32_t> ids;
    for (const wire::ResponseEntry& entry : response.entries) {
      const auto id = static_cast<CacheId>(entry.cache_id);
      if (entry.cache_id >= 0 && cache_->get(id)->reduce_op != ReduceOp::kAdasum) ids.push_back(id);
    }
    const bool whole = response.error.empty() && ids.size() == response.entries.size();
    plans_.on_batch(response.kind, whole ? ids : std::vector<uint32_t>{});
  }
  if (table_.anyone_has_joined()) return;  // who has joined follows no plan
  // A tensor whose error is held back for its call sites waits on every rank, and the table has
  // forgotten it. A freeze would take it into the plan, where its error finds it no more; it would
  // come back as a new request, and meet other ranks' next round. The error goes out first: then
  // the freeze may follow it, in the same list.
  if (call_sites_.asking()) return;
  const auto cycle = plans_.candidate();
  if (!cycle || !groups_are_whole(*cycle) || !protocols_are_settled(*cycle)) return;
  wire::StepPlan plan = plans_.freeze(*cycle);
  for (wire::PlannedBatch& batch : plan.batches) {
    const RequestPtr first = cache_->get(batch.ids.front());
    if (first->device < 0)
      batch.protocol = protocols_.settled_protocol(first->kind, bytes_of_batch(batch.ids));
    for (const CacheId id : batch.ids) give_to_plan(id);
  }
  last_plan_ = plan;
  responses_.emplace_back().freeze.push_back(std::move(plan));
}

// A group of which one part has run and the other is negotiated would wait for itself. So it is
// planned in one batch or not at all: the full cache may have left one out, the threshold may have
// cut it.
bool Root::groups_are_whole(const std::vector<std::vector<uint32_t>>& cycle) const {
  for (const auto& batch : cycle) {
    std::map<std::string, std::set<CacheId>> members;
    for (const CacheId id : batch) {
      const RequestPtr request = cache_->get(id);
      if (request == nullptr) return false;
      if (!request->group.empty()) members[request->group].insert(id);
    }
    for (const auto& [group, ids] : members) {
      if (ids.size() != cache_->get(*ids.begin())->group_size) return false;
    }
  }
  return true;
}

int64_t Root::bytes_of_batch(const std::vector<uint32_t>& ids) const {
  int64_t bytes = 0;
  for (const CacheId id : ids) bytes += bytes_of(*cache_->get(id));
  return bytes;
}

// The plan fixes the protocols, so they are chosen before. GPU tensors have none.
bool Root::protocols_are_settled(const std::vector<std::vector<uint32_t>>& cycle) const {
  return std::all_of(cycle.begin(), cycle.end(), [&](const auto& batch) {
    const RequestPtr first = cache_->get(batch.front());
    return first->device >= 0 || protocols_.settled(first->kind, bytes_of_batch(batch));
  });
}

bool Root::plan_is_stale(Time now) const {
  const auto& batches = last_plan_.batches;
  return plans_.in_force() && std::any_of(batches.begin(), batches.end(), [&](const auto& batch) {
           const RequestPtr first = cache_->get(batch.ids.front());
           return first->device < 0 &&
                  protocols_.stale(first->kind, bytes_of_batch(batch.ids), now);
         });
}

// What ranks had submitted for the next round is theirs to submit to the plan.
void Root::give_to_plan(CacheId id) {
  const RequestPtr request = cache_->get(id);
  planner_.forget_round(id);
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
