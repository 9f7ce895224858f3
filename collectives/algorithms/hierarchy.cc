#include "collectives/algorithms/hierarchy.h"

#include <utility>

#include "collectives/algorithms/hierarchy_call.h"

namespace rueda::algorithms {
namespace {

// Suspends while a call cannot move.
class Steps : public Waiter {
 public:
  Steps(HierarchyCall* call, bool* done) : call_(call), done_(done) {}
  bool ready() override {
    bool moved = false;
    status_ = call_->step(&moved, done_);
    return moved || *done_ || !status_.ok();
  }
  Status await_resume() { return status_; }

 private:
  HierarchyCall* call_;
  bool* done_;
  Status status_;
};

}  // namespace

Task drive_call(std::unique_ptr<HierarchyCall> call) {
  bool done = false;
  while (!done) {
    const Status status = co_await Steps(call.get(), &done);
    RUEDA_CO_RETURN_IF_ERROR(status);
  }
  co_return Status();
}

Hierarchy::Hierarchy(HostMap map, const shm::ChannelGroup& local, size_t first_channel,
                     std::optional<DType> wire, std::optional<Exchange> exchange)
    : map_(std::move(map)), wire_(wire), exchange_(exchange) {
  if (map_.local_size() == 1) return;
  down_ = std::make_unique<shm::Channel>(local, first_channel);
  up_ = std::make_unique<shm::Channel>(local, first_channel + 1);
}

// Products and extremes are not what people mean by compressed gradients.
std::optional<DType> Hierarchy::wire_of(DType dtype, ReduceOp op) const {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  return dtype == DType::kFloat32 && sums ? wire_ : std::nullopt;
}

bool Hierarchy::progress() {
  if (!down_) return false;
  bool moved = down_->progress();
  moved |= up_->progress();
  return moved;
}

bool Hierarchy::idle() const { return !down_ || (down_->idle() && up_->idle()); }

void Hierarchy::abandon() {
  if (!down_) return;
  down_->abandon();
  up_->abandon();
}

shm::Channel::Bytes Hierarchy::channel_totals() const {
  shm::Channel::Bytes sum;
  for (const shm::Channel* channel : {down_.get(), up_.get()}) {
    if (channel == nullptr) continue;
    sum.total += channel->bytes().total;
    sum.in_place += channel->bytes().in_place;
    sum.cma += channel->bytes().cma;
  }
  return sum;
}

}  // namespace rueda::algorithms
