#include "collectives/communicator/native_communicator.h"

#include <algorithm>
#include <utility>

#include "collectives/base/check.h"
#include "collectives/communicator/adasum.h"

namespace rueda::communicator {
namespace {

class JobEnd : public Waiter {
 public:
  JobEnd(const Job* job, const Lane* lane) : job_(job), lane_(lane) {}
  bool ready() override { return job_->done || !lane_->failure().ok(); }
  Status await_resume() { return job_->done ? Status() : lane_->failure(); }

 private:
  const Job* job_;
  const Lane* lane_;
};

Task wait_for(std::shared_ptr<Job> job, const Lane* lane) {
  const Status status = co_await JobEnd(job.get(), lane);
  co_return status;
}

}  // namespace

NativeCommunicator::NativeCommunicator(NativeGroup group) : group_(std::move(group)) {
  const auto me = std::find(group_.members.begin(), group_.members.end(), group_.transport->rank());
  RUEDA_CHECK(me != group_.members.end(), "this rank is a member");
  rank_ = static_cast<Rank>(me - group_.members.begin());
  if (size() > 1 && group_.arenas.size() == group_.members.size()) {
    const LaneGroup lanes{rank_, group_.arenas, group_.heaps, group_.ringers};
    for (size_t number = 0; number < lanes_.size(); ++number)
      lanes_[number] = std::make_unique<Lane>(lanes, group_.first_lane + number);
    return;
  }
  if (group_.host_of.empty()) return;
  HostMap map(group_.host_of, rank_);
  if (map.hosts() < 2) return;
  has_levels_ = map.has_levels();
  hierarchy_ = std::make_unique<Hierarchy>(std::move(map), group_.local, group_.first_lane,
                                           group_.wire, group_.exchange);
}

direct::Group NativeCommunicator::next_call() {
  direct::Group group;
  group.transport = group_.transport;
  group.members = group_.members;
  group.rank = rank_;
  // | 1 bit rendezvous (0) | 15 bits process set | 40 bits call | 8 bits of the algorithm |
  group.tag = (uint64_t{group_.process_set} << 48) | ((calls_++ & 0xff'ffff'ffffull) << 8);
  return group;
}

Task NativeCommunicator::run_in_lane(std::shared_ptr<Job> job) {
  Lane& lane = *lanes_[0];
  job->road = road_;
  job->times = std::exchange(times_, nullptr);
  lane.prepare(job.get());
  jobs_.push_back(job);
  lane.start(job.get());
  return wait_for(std::move(job), &lane);
}

Task NativeCommunicator::allreduce(std::vector<Part> parts, DType dtype, ReduceOp op,
                                   const Scaling& scaling) {
  const direct::Group group = next_call();
  if (op == ReduceOp::kAdasum) {
    return adasum(group, std::move(parts), dtype, scaling.prescale * scaling.finish.factor);
  }
  if (hierarchy_) return hierarchy_->allreduce(group, std::move(parts), dtype, op, scaling);
  if (!lanes_[0]) return direct::allreduce(group, PartList(parts), dtype, op, scaling);
  auto job = std::make_shared<Job>();
  job->kind = CollectiveKind::kAllreduce;
  job->dtype = dtype;
  job->op = op;
  job->scaling = scaling;
  job->parts = std::move(parts);
  return run_in_lane(std::move(job));
}

Task NativeCommunicator::reducescatter(const std::byte* in, std::byte* out,
                                       std::vector<int64_t> counts, DType dtype, ReduceOp op,
                                       const Scaling& scaling) {
  const direct::Group group = next_call();
  if (has_levels_) {
    return hierarchy_->reducescatter(group, in, out, std::move(counts), dtype, op, scaling);
  }
  if (!lanes_[0])
    return direct::reduce_scatter(group, in, out, std::move(counts), dtype, op, scaling);
  auto job = std::make_shared<Job>();
  job->kind = CollectiveKind::kReducescatter;
  job->dtype = dtype;
  job->op = op;
  job->scaling = scaling;
  job->parts = {{in, out, 0}};
  job->counts = std::move(counts);
  return run_in_lane(std::move(job));
}

Task NativeCommunicator::allgather(std::vector<direct::GatherPart> parts) {
  const direct::Group group = next_call();
  if (has_levels_) return hierarchy_->allgather(group, std::move(parts));
  if (!lanes_[0]) return direct::allgather(group, std::move(parts));
  auto job = std::make_shared<Job>();
  job->kind = CollectiveKind::kAllgather;
  for (const direct::GatherPart& part : parts) {
    job->parts.push_back({part.in, part.out, 0});
    job->counts.insert(job->counts.end(), part.bytes.begin(), part.bytes.end());
  }
  return run_in_lane(std::move(job));
}

Task NativeCommunicator::broadcast(Rank root, std::vector<direct::BroadcastPart> parts) {
  const direct::Group group = next_call();
  if (has_levels_) return hierarchy_->broadcast(group, root, std::move(parts));
  if (!lanes_[0]) return direct::broadcast(group, root, std::move(parts));
  auto job = std::make_shared<Job>();
  job->kind = CollectiveKind::kBroadcast;
  job->root = root;
  for (const direct::BroadcastPart& part : parts)
    job->parts.push_back({part.in, part.out, part.bytes});
  return run_in_lane(std::move(job));
}

Task NativeCommunicator::alltoall(const std::byte* in, std::byte* out, std::vector<int64_t> bytes) {
  const direct::Group group = next_call();
  if (!lanes_[0]) {
    const auto ranks = group_.members.size();
    const auto me = static_cast<size_t>(rank_);
    std::vector<int64_t> send;
    std::vector<int64_t> receive;
    for (size_t peer = 0; peer < ranks; ++peer) {
      send.push_back(bytes[me * ranks + peer]);
      receive.push_back(bytes[peer * ranks + me]);
    }
    return direct::alltoall(group, in, out, std::move(send), std::move(receive));
  }
  auto job = std::make_shared<Job>();
  job->kind = CollectiveKind::kAlltoall;
  job->parts = {{in, out, 0}};
  job->counts = std::move(bytes);
  return run_in_lane(std::move(job));
}

bool NativeCommunicator::progress() {
  if (hierarchy_) return hierarchy_->progress();
  if (!lanes_[0]) return false;
  const bool moved = lanes_[0]->progress();
  while (!jobs_.empty() && jobs_.front()->done) jobs_.pop_front();
  return moved;
}

bool NativeCommunicator::waits_for_lanes() const {
  if (hierarchy_) return !hierarchy_->idle();
  for (const auto& lane : lanes_) {
    if (lane && !lane->idle()) return true;
  }
  return false;
}

void NativeCommunicator::abandon() {
  if (hierarchy_) hierarchy_->abandon();
  for (const auto& lane : lanes_) {
    if (lane) lane->abandon();
  }
  jobs_.clear();
}

Lane::Bytes NativeCommunicator::lane_totals() const {
  if (hierarchy_) return hierarchy_->lane_totals();
  Lane::Bytes sum;
  for (const auto& lane : lanes_) {
    if (!lane) continue;
    sum.total += lane->bytes().total;
    sum.in_place += lane->bytes().in_place;
    sum.pulled += lane->bytes().pulled;
  }
  return sum;
}

}  // namespace rueda::communicator
