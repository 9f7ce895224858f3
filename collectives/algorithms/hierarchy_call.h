// One call of a hierarchy: a state machine that a Task drives.
#pragma once

#include <memory>
#include <utility>

#include "collectives/algorithms/hierarchy.h"

namespace rueda::algorithms {

class HierarchyCall {
 public:
  HierarchyCall(Hierarchy* hierarchy, direct::Group group, uint64_t call)
      : h_(*hierarchy), map_(hierarchy->map()), group_(std::move(group)), call_(call) {}
  virtual ~HierarchyCall() = default;
  // Does what can be done now; sets *moved if anything was, and *done at the end.
  virtual Status step(bool* moved, bool* done) = 0;

 protected:
  // A job of this host's ranks. Where this rank is alone there the caller does the work itself.
  static bool ended(const shm::Job& job) { return job.done; }
  void start(shm::Channel* channel, shm::Job* job) {
    channel->prepare(job);
    channel->start(job);
  }
  Status channel_failure() const {
    if (h_.down() == nullptr) return {};
    return h_.down()->failure().ok() ? h_.up()->failure() : h_.down()->failure();
  }
  bool alone() const { return h_.down() == nullptr; }
  Rank transport_rank(Rank member) const { return group_.members[static_cast<size_t>(member)]; }

  Hierarchy& h_;
  const HostMap& map_;
  direct::Group group_;
  uint64_t call_;
};

Task drive_call(std::unique_ptr<HierarchyCall> call);

}  // namespace rueda::algorithms
