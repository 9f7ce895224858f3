// BatchPlanner: which tensors are reduced together. Kept by the root; pure, time comes from
// outside.
//
// Idea: a training step submits the same tensors again and again. The first time each goes out as
// it gets ready. The second time the planner knows what followed it, and joins it with its
// successors into a batch (same kind, dtype, scales ..., up to the bucket's size) whose membership
// stays: the batch goes out when its last member is ready, whatever the order.
//
// Nothing waits for ever on a member that does not come:
//   a thread blocks on a member, and its rank has not submitted another
//                               ->  cut for good between the two, at once
//   nothing arrives for `hold` after the last arrival
//                               ->  the ready members go out; the second time in a row the batch is
//                                   cut for good there
//   a member comes again before the rest came at all
//                               ->  cut for good
//
//   tensor:  unknown --ready--> sent alone --again--> in a batch --ready--> held --all--> sent
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/negotiation/readiness_table.h"
#include "runtime/plan/step_plan.h"

namespace rueda::negotiation {

using plan::CacheId;
using Batch = std::vector<CacheId>;  // in the order of launch

// What the planner must know of a tensor.
struct PlannedTensor {
  CacheId id = 0;
  std::string fuse_key;  // tensors with equal keys may share a batch; "" never shares
  int64_t bytes = 0;
  int64_t bucket = 0;  // bytes of the largest batch that it may be part of, alike for equal keys
};

class BatchPlanner {
 public:
  // The first batch of a round has 1 MB at most. A tensor that is larger than its bucket goes
  // alone.
  explicit BatchPlanner(std::chrono::nanoseconds hold) : hold_(hold) {}

  // A tensor that goes out for the first time, outside any batch: learns what follows what.
  void note_sent(const PlannedTensor& tensor);
  // All ranks have it ready (note_sent came before). Returns what can go out now.
  std::vector<Batch> on_ready(const PlannedTensor& tensor, Time now);
  // A thread of some rank is blocked on `id`; submitted(s): has that rank submitted s since s
  // last went out?
  std::vector<Batch> on_awaited(CacheId id, const std::function<bool(CacheId)>& submitted);
  // Batches whose hold has passed.
  std::vector<Batch> on_time(Time now);
  std::optional<Time> next_deadline() const;
  // Ready but held back.
  bool holds(CacheId id) const;
  // The tensor's part in the round under way is forgotten (a step plan has taken it).
  void forget_round(CacheId id);
  // Nothing comes under this id any more: its batch goes on without it. It is not held. Returns
  // what can go out now.
  std::vector<Batch> forget(CacheId id);
  // Gives everything out that is held (shutdown, errors).
  std::vector<Batch> flush();

 private:
  enum class State : uint8_t { kAbsent, kReady, kSent };
  struct Group {
    std::vector<CacheId> members;
    std::vector<State> states;  // in this round
    Time last_arrival;
    int late_rounds = 0;  // rounds in a row that ended by the hold
    bool open() const;
    size_t index(CacheId id) const;
  };
  using GroupPtr = std::shared_ptr<Group>;

  static constexpr int64_t kFirstBucket = 1 << 20;
  std::deque<CacheId> run_around(const PlannedTensor& first) const;
  void form_groups(const PlannedTensor& first);
  Batch send_ready(const GroupPtr& group);
  void finish_round(Group* group);
  void split(const GroupPtr& group, const std::function<bool(size_t)>& stays);
  void remember(const Batch& batch);
  // Keeps open_ equal to the batches that hold something.
  void track(const GroupPtr& group);

  std::chrono::nanoseconds hold_;
  std::map<CacheId, PlannedTensor> tensors_;
  std::map<CacheId, GroupPtr> group_of_;
  // What went out after and before each tensor, the last time.
  std::map<CacheId, CacheId> successor_;
  std::map<CacheId, CacheId> predecessor_;
  std::optional<CacheId> last_sent_;
  std::vector<GroupPtr> open_;
};

}  // namespace rueda::negotiation
