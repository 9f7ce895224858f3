// One collective of a hierarchy: a state machine that a script drives, prepared once.
#pragma once

#include <memory>
#include <utility>

#include "collectives/algorithms/hierarchy.h"

namespace rueda::algorithms {

class HierarchyCall {
 public:
  virtual ~HierarchyCall() = default;
  // A call begins: all that the last one left is set anew.
  void start(const Call& call) {
    tag_ = call.tag;
    call_ = h_.next_call();
    begin();
  }
  // Does what can be done now; sets *moved if anything was, and *done at the end.
  virtual Status step(bool* moved, bool* done) = 0;

 protected:
  HierarchyCall(Hierarchy* hierarchy, const CollectiveDesc& desc, std::span<const Part> tensors)
      : h_(*hierarchy),
        map_(hierarchy->map()),
        group_(hierarchy->group()),
        desc_(desc),
        tensors_(tensors) {}
  virtual void begin() = 0;

  Status channel_failure() const {
    if (alone()) return {};
    const Status& failure = h_.scatter_channel()->failure();
    return failure.ok() ? h_.gather_channel()->failure() : failure;
  }
  bool alone() const { return h_.scatter_channel() == nullptr; }
  Rank transport_rank(Rank member) const { return group_.member(member); }
  // In a channel of this host's ranks; null where this rank is alone there, who does the work
  // itself.
  std::unique_ptr<shm::ChannelOp> channel_op(shm::Channel* channel, CollectiveDesc desc) const {
    if (channel == nullptr) return nullptr;
    return std::make_unique<shm::ChannelOp>(channel, std::move(desc));
  }

  Hierarchy& h_;
  const HostMap& map_;
  const direct::Group& group_;
  const CollectiveDesc& desc_;
  std::span<const Part> tensors_;
  transport::Tag tag_ = 0;
  uint64_t call_ = 0;
};

// hierarchy_reduce.cc
std::unique_ptr<HierarchyCall> hierarchical_allreduce(Hierarchy* hierarchy,
                                                      const CollectiveDesc& desc,
                                                      std::span<const Part> tensors);
std::unique_ptr<HierarchyCall> hierarchical_reducescatter(Hierarchy* hierarchy,
                                                          const CollectiveDesc& desc,
                                                          std::span<const Part> tensors);
// hierarchy_move.cc
std::unique_ptr<HierarchyCall> hierarchical_allgather(Hierarchy* hierarchy,
                                                      const CollectiveDesc& desc,
                                                      std::span<const Part> tensors);
std::unique_ptr<HierarchyCall> hierarchical_broadcast(Hierarchy* hierarchy,
                                                      const CollectiveDesc& desc,
                                                      std::span<const Part> tensors);
// hierarchy_meeting.cc
std::unique_ptr<HierarchyCall> hierarchical_meeting(Hierarchy* hierarchy,
                                                    const CollectiveDesc& desc,
                                                    std::span<const Part> tensors);

}  // namespace rueda::algorithms
