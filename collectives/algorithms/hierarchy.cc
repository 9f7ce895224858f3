#include "collectives/algorithms/hierarchy.h"

#include <utility>

#include "collectives/algorithms/hierarchy_call.h"
#include "collectives/algorithms/meeting.h"

namespace rueda::algorithms {
namespace {

// Suspends while no machine can move.
class Steps : public Waiter {
 public:
  Steps(HierarchyCall* call, HierarchyCall* meeting) : machines_{call, meeting} {
    ended_[1] = meeting == nullptr;
  }
  bool ready() override {
    bool moved = false;
    for (size_t i = 0; i < 2 && status_.ok(); ++i) {
      if (!ended_[i]) status_ = machines_[i]->step(&moved, &ended_[i]);
    }
    return moved || ended() || !status_.ok();
  }
  Status await_resume() { return status_; }
  bool ended() const { return ended_[0] && ended_[1]; }

 private:
  HierarchyCall* machines_[2];
  bool ended_[2] = {false, false};
  Status status_;
};

// meeting: beside the collective; null: its data sees to that.
Script drive(std::unique_ptr<HierarchyCall> machine, std::unique_ptr<HierarchyCall> meeting) {
  for (Status last;;) {
    Call call = co_await next_call(last);
    machine->start(call);
    if (meeting) meeting->start(call);
    Steps steps(machine.get(), meeting.get());
    do {
      last = co_await steps;
    } while (last.ok() && !steps.ended());
  }
}

}  // namespace

Hierarchy::Hierarchy(const direct::Group& group, HostMap map, const shm::ChannelGroup& local,
                     size_t first_channel, std::optional<DType> wire,
                     std::optional<Exchange> exchange)
    : group_(group), map_(std::move(map)), wire_(wire), exchange_(exchange) {
  if (map_.local_size() == 1) return;
  scatter_ = std::make_unique<shm::Channel>(local, first_channel);
  gather_ = std::make_unique<shm::Channel>(local, first_channel + 1);
}

Script Hierarchy::script(const CollectiveDesc& desc, std::span<const Part> tensors) {
  std::unique_ptr<HierarchyCall> meeting;
  if (desc.meets && !meets_by_itself(desc, group_.size()))
    meeting = hierarchical_meeting(this, desc, tensors);
  switch (desc.kind) {
    case CollectiveKind::kAllreduce:
      return drive(hierarchical_allreduce(this, desc, tensors), std::move(meeting));
    case CollectiveKind::kReducescatter:
      return drive(hierarchical_reducescatter(this, desc, tensors), std::move(meeting));
    case CollectiveKind::kAllgather:
      return drive(hierarchical_allgather(this, desc, tensors), std::move(meeting));
    case CollectiveKind::kBroadcast:
      return drive(hierarchical_broadcast(this, desc, tensors), std::move(meeting));
    default: return drive(hierarchical_meeting(this, desc, tensors), nullptr);
  }
}

// Products and extremes are not what people mean by compressed gradients.
std::optional<DType> Hierarchy::wire_of(DType dtype, ReduceOp op) const {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  return dtype == DType::kFloat32 && sums ? wire_ : std::nullopt;
}

bool Hierarchy::progress() {
  if (!scatter_) return false;
  bool moved = scatter_->progress();
  moved |= gather_->progress();
  return moved;
}

bool Hierarchy::idle() const { return !scatter_ || (scatter_->idle() && gather_->idle()); }

void Hierarchy::watch(shm::ArrivalWatch* watch) {
  if (!scatter_) return;
  arrivals_.emplace(&map_, watch);
  scatter_->watch(&*arrivals_);
}

void Hierarchy::abandon() {
  if (!scatter_) return;
  scatter_->abandon();
  gather_->abandon();
}

void Hierarchy::begin_generation(uint64_t generation) {
  calls_ = 0;
  scatter_turns_.reset();
  gather_turns_.reset();
  if (!scatter_) return;
  scatter_->begin_generation(generation);
  gather_->begin_generation(generation);
}

void Hierarchy::end_generation() {
  if (!scatter_) return;
  scatter_->end_generation();
  gather_->end_generation();
}

shm::Channel::Bytes Hierarchy::channel_totals() const {
  shm::Channel::Bytes sum;
  if (scatter_) sum += scatter_->bytes();
  if (gather_) sum += gather_->bytes();
  return sum;
}

}  // namespace rueda::algorithms
