// The root and the step plan: what goes out is watched, and what comes again and again is frozen.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "runtime/negotiation/root.h"

namespace rueda::negotiation {

void Root::on_plan_end(uint64_t cycles, bool at_will) {
  plans_.on_end(cycles, at_will);
  sizes_.end_plan(cycles);
}

// What could be planned: batches whose members all have ids that will stand for them next time too.
void Root::watch(const wire::Response& response) {
  std::vector<CacheId> ids;
  for (const wire::ResponseEntry& entry : response.entries) {
    const auto id = static_cast<CacheId>(entry.cache_id);
    if (!response.error.empty() || entry.cache_id < 0) return plans_.on_batch(response.kind, {});
    const wire::Request& request = *first_of(id);
    const bool changes = has_sizes(request.kind) && !sizes_.is_steady(request.name);
    if (changes || request.reduce_op == ReduceOp::kAdasum)
      return plans_.on_batch(response.kind, {});
    ids.push_back(id);
  }
  plans_.on_batch(response.kind, ids);
}

// Behind everything that has been decided, so that a rank which handles the freeze has launched all
// that went before.
void Root::freeze_plan() {
  for (const wire::Response& response : responses_) watch(response);
  if (table_.anyone_has_joined()) return;  // who has joined follows no plan
  // A tensor whose error is held back for its call sites waits on every rank, and the table has
  // forgotten it. A freeze would take it into the plan, where its error finds it no more; it would
  // come back as a new request, and meet other ranks' next round. The error goes out first: then
  // the freeze may follow it, in the same list.
  if (call_sites_.asking()) return;
  const auto cycle = plans_.candidate();
  if (!cycle || !groups_are_whole(*cycle) || !sizes_are_steady(*cycle) ||
      !protocols_are_settled(*cycle)) {
    return;
  }
  wire::StepPlan plan = plans_.freeze(*cycle);
  std::vector<CacheId> ids;
  std::vector<std::string> with_sizes;
  for (wire::PlannedBatch& batch : plan.batches) {
    const RequestPtr& first = first_of(batch.ids.front());
    if (first->device < 0)
      batch.protocol = protocols_.settled_protocol(first->kind, bytes_of_batch(batch.ids));
    for (const CacheId id : batch.ids) {
      ids.push_back(id);
      if (has_sizes(first->kind)) with_sizes.push_back(name_of(id));
      give_to_plan(id);
    }
  }
  ids_.begin_plan(ids);
  sizes_.begin_plan(with_sizes);
  last_plan_ = plan;
  responses_.emplace_back().freeze.push_back(std::move(plan));
}

// A group of which one part has run and the other is negotiated would wait for itself. So it is
// planned in one batch or not at all: one may have been left out for want of an id, the threshold
// may have cut it.
bool Root::groups_are_whole(const Cycle& cycle) const {
  for (const auto& batch : cycle) {
    std::map<std::string, std::set<CacheId>> members;
    for (const CacheId id : batch) {
      if (ids_.get(id) == nullptr) return false;
      if (!first_of(id)->group.empty()) members[first_of(id)->group].insert(id);
    }
    for (const auto& [group, ids] : members) {
      if (ids.size() != first_of(*ids.begin())->group_size) return false;
    }
  }
  return true;
}

// The plan pairs operations of one name by what each rank asks. Where a rank asks the same for
// several agreements, its second could meet another's third; and of one that is ready, or asked
// for, beside the plan some ranks would take their part to the plan. So a name has one agreement
// here, and it is the last that all ranks have asked for.
bool Root::sizes_are_steady(const Cycle& cycle) const {
  const auto is_steady = [this](CacheId id) {
    const std::string& name = name_of(id);
    return !has_sizes(first_of(id)->kind) ||
           (sizes_.is_steady(name) && sizes_.is_last(name, ids_.get(id)->requests));
  };
  return std::all_of(cycle.begin(), cycle.end(), [&](const auto& batch) {
    return std::all_of(batch.begin(), batch.end(), is_steady);
  });
}

int64_t Root::bytes_of_batch(const std::vector<CacheId>& ids) const {
  int64_t bytes = 0;
  for (const CacheId id : ids) bytes += ids_.get(id)->bytes;
  return bytes;
}

// The plan fixes the protocols, so they are chosen before. GPU tensors have none.
bool Root::protocols_are_settled(const Cycle& cycle) const {
  return std::all_of(cycle.begin(), cycle.end(), [&](const auto& batch) {
    const RequestPtr& first = first_of(batch.front());
    return first->device >= 0 || protocols_.settled(first->kind, bytes_of_batch(batch));
  });
}

bool Root::plan_is_stale(Time now) const {
  const auto& batches = last_plan_.batches;
  return plans_.in_force() && std::any_of(batches.begin(), batches.end(), [&](const auto& batch) {
           const RequestPtr& first = first_of(batch.ids.front());
           return first->device < 0 &&
                  protocols_.stale(first->kind, bytes_of_batch(batch.ids), now);
         });
}

// What ranks had submitted for the next round is theirs to submit to the plan.
void Root::give_to_plan(CacheId id) {
  const Requests& requests = ids_.get(id)->requests;
  const wire::Request& request = *requests.first();
  planner_.forget_round(id);
  awaited_.erase(request.name);
  if (table_.withdraw(requests)) {
    told_.erase(request.name);
    conflicts_.on_decided(request.name);
  }
  const auto group = groups_.find(request.group);
  if (group == groups_.end()) return;
  auto& ready = group->second;
  std::erase_if(ready, [&](const Decision& member) { return requests.are(member.by_rank); });
  if (ready.empty()) groups_.erase(group);
}

}  // namespace rueda::negotiation
