#include "runtime/negotiation/batch_planner.h"

#include <algorithm>
#include <set>

namespace rueda::negotiation {
namespace {

constexpr size_t kMaxMembers = 4096;  // a batch is one message at most

}  // namespace

bool BatchPlanner::Group::open() const {
  return std::find(states.begin(), states.end(), State::kReady) != states.end();
}

size_t BatchPlanner::Group::index(CacheId id) const {
  return static_cast<size_t>(std::find(members.begin(), members.end(), id) - members.begin());
}

void BatchPlanner::remember(const Batch& batch) {
  for (const CacheId id : batch) {
    if (last_sent_ && *last_sent_ != id) {
      successor_[*last_sent_] = id;
      predecessor_[id] = *last_sent_;
    }
    last_sent_ = id;
  }
}

// The members that are ready go out, in the batch's fixed order.
Batch BatchPlanner::send_ready(const GroupPtr& group) {
  Batch batch;
  for (size_t i = 0; i < group->members.size(); ++i) {
    if (group->states[i] != State::kReady) continue;
    group->states[i] = State::kSent;
    batch.push_back(group->members[i]);
  }
  finish_round(group.get());
  remember(batch);
  track(group);
  return batch;
}

void BatchPlanner::track(const GroupPtr& group) {
  open_.erase(std::remove(open_.begin(), open_.end(), group), open_.end());
  if (group->open()) open_.push_back(group);
}

void BatchPlanner::note_sent(const PlannedTensor& tensor) {
  tensors_[tensor.id] = tensor;
  remember({tensor.id});
}

void BatchPlanner::finish_round(Group* group) {
  const bool all_sent = std::all_of(group->states.begin(), group->states.end(),
                                    [](State state) { return state == State::kSent; });
  if (all_sent) std::fill(group->states.begin(), group->states.end(), State::kAbsent);
}

// Cuts a batch in two for good: the members for which stays(index) holds, and the others.
void BatchPlanner::split(const GroupPtr& group, const std::function<bool(size_t)>& stays) {
  auto rest = std::make_shared<Group>();
  rest->last_arrival = group->last_arrival;
  auto kept = std::make_shared<Group>();
  kept->last_arrival = group->last_arrival;
  for (size_t i = 0; i < group->members.size(); ++i) {
    Group& to = stays(i) ? *kept : *rest;
    to.members.push_back(group->members[i]);
    to.states.push_back(group->states[i]);
  }
  *group = *kept;
  for (const CacheId id : rest->members) group_of_[id] = rest;
  finish_round(group.get());
  finish_round(rest.get());
  track(group);
  track(rest);
}

// The tensors around this one in the order in which they last went out, as far as they fit together
// and belong to no batch yet. Both ways, since the second round may begin at any of them.
std::deque<CacheId> BatchPlanner::run_around(const PlannedTensor& first) const {
  std::deque<CacheId> run = {first.id};
  std::set<CacheId> seen = {first.id};
  const auto extend = [&](const std::map<CacheId, CacheId>& neighbours, bool forward) {
    for (CacheId id = first.id; !first.fuse_key.empty();) {
      const auto next = neighbours.find(id);
      if (next == neighbours.end() || group_of_.count(next->second) != 0) return;
      id = next->second;
      const auto tensor = tensors_.find(id);  // a neighbour may have been forgotten
      if (tensor == tensors_.end() || tensor->second.fuse_key != first.fuse_key ||
          !seen.insert(id).second) {
        return;
      }
      forward ? run.push_back(id) : run.push_front(id);
    }
  };
  extend(predecessor_, false);
  extend(successor_, true);
  return run;
}

// Cuts the run into buckets from its beginning. Where the cuts lie depends on the run alone, not on
// which of its tensors was ready first. The first bucket is small: what is ready first shall be
// under way while the rest is still being computed.
void BatchPlanner::form_groups(const PlannedTensor& first) {
  GroupPtr group;
  int64_t bytes = 0;
  int64_t most = std::min(first.bucket, kFirstBucket);
  for (const CacheId id : run_around(first)) {
    const int64_t more = tensors_.at(id).bytes;
    if (group != nullptr && (bytes + more > most || group->members.size() >= kMaxMembers)) {
      group = nullptr;
      most = first.bucket;
    }
    if (group == nullptr) {
      group = std::make_shared<Group>();
      bytes = 0;
    }
    group->members.push_back(id);
    group->states.push_back(State::kAbsent);
    group_of_[id] = group;
    bytes += more;
  }
}

std::vector<Batch> BatchPlanner::on_ready(const PlannedTensor& tensor, Time now) {
  tensors_[tensor.id] = tensor;
  if (group_of_.count(tensor.id) == 0) form_groups(tensor);
  GroupPtr group = group_of_.at(tensor.id);
  if (group->states[group->index(tensor.id)] == State::kSent) {
    // It comes again while others of its batch have not come at all: they do not belong together.
    split(group, [&](size_t i) { return group->states[i] == State::kSent; });
  }
  group->states[group->index(tensor.id)] = State::kReady;
  group->last_arrival = now;
  const bool complete = std::none_of(group->states.begin(), group->states.end(),
                                     [](State state) { return state == State::kAbsent; });
  if (complete) {
    const bool on_time = std::none_of(group->states.begin(), group->states.end(),
                                      [](State state) { return state == State::kSent; });
    if (on_time) group->late_rounds = 0;
    return {send_ready(group)};
  }
  if (hold_.count() == 0) return {send_ready(group)};
  track(group);
  return {};
}

std::vector<Batch> BatchPlanner::on_awaited(CacheId id,
                                            const std::function<bool(CacheId)>& submitted) {
  if (!holds(id)) return {};
  const GroupPtr group = group_of_.at(id);
  const auto comes = [&](size_t i) {
    return group->states[i] != State::kAbsent || submitted(group->members[i]);
  };
  bool all_come = true;
  std::vector<bool> stays;
  for (size_t i = 0; i < group->members.size(); ++i) {
    stays.push_back(comes(i));
    all_come = all_come && stays.back();
  }
  if (all_come) return {};  // the others are slower, that is all
  split(group, [&](size_t i) { return stays[i]; });
  const bool complete = std::none_of(group->states.begin(), group->states.end(),
                                     [](State state) { return state == State::kAbsent; });
  if (!complete) return {};
  return {send_ready(group)};
}

std::vector<Batch> BatchPlanner::on_time(Time now) {
  std::vector<Batch> batches;
  const std::vector<GroupPtr> open = open_;
  for (const GroupPtr& group : open) {
    if (group->last_arrival + hold_ > now) continue;
    if (++group->late_rounds >= 2) {
      split(group, [&](size_t i) { return group->states[i] != State::kAbsent; });
      group->late_rounds = 0;
    }
    batches.push_back(send_ready(group));
  }
  return batches;
}

std::optional<Time> BatchPlanner::next_deadline() const {
  std::optional<Time> earliest;
  for (const GroupPtr& group : open_) {
    const Time deadline = group->last_arrival + hold_;
    if (!earliest || deadline < *earliest) earliest = deadline;
  }
  return earliest;
}

bool BatchPlanner::holds(CacheId id) const {
  const auto it = group_of_.find(id);
  return it != group_of_.end() && it->second->states[it->second->index(id)] == State::kReady;
}

void BatchPlanner::forget_round(CacheId id) {
  const auto it = group_of_.find(id);
  if (it == group_of_.end()) return;
  const GroupPtr group = it->second;
  group->states[group->index(id)] = State::kAbsent;
  track(group);
}

std::vector<Batch> BatchPlanner::forget(CacheId id) {
  tensors_.erase(id);
  const auto before = predecessor_.find(id);
  const auto after = successor_.find(id);
  if (before != predecessor_.end() && after != successor_.end()) {
    successor_[before->second] = after->second;
    predecessor_[after->second] = before->second;
  }
  predecessor_.erase(id);
  successor_.erase(id);
  if (last_sent_ == id) last_sent_.reset();
  const auto it = group_of_.find(id);
  if (it == group_of_.end()) return {};
  const GroupPtr group = it->second;
  group_of_.erase(it);
  const auto at = static_cast<std::ptrdiff_t>(group->index(id));
  group->members.erase(group->members.begin() + at);
  group->states.erase(group->states.begin() + at);
  const bool complete = std::none_of(group->states.begin(), group->states.end(),
                                     [](State state) { return state == State::kAbsent; });
  if (group->open() && complete) return {send_ready(group)};
  finish_round(group.get());
  track(group);
  return {};
}

std::vector<Batch> BatchPlanner::flush() {
  std::vector<Batch> batches;
  const std::vector<GroupPtr> open = open_;
  batches.reserve(open.size());
  for (const GroupPtr& group : open) batches.push_back(send_ready(group));
  return batches;
}

}  // namespace rueda::negotiation
