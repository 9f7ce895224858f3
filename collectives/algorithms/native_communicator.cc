#include "collectives/algorithms/native_communicator.h"

#include <algorithm>
#include <utility>

#include "collectives/algorithms/adasum.h"
#include "collectives/base/check.h"

namespace rueda::algorithms {
namespace {

class JobEnd : public Waiter {
 public:
  JobEnd(const shm::Job* job, const shm::Channel* channel) : job_(job), channel_(channel) {}
  bool ready() override { return job_->done || !channel_->failure().ok(); }
  Status await_resume() { return job_->done ? Status() : channel_->failure(); }

 private:
  const shm::Job* job_;
  const shm::Channel* channel_;
};

Task wait_for(std::shared_ptr<shm::Job> job, const shm::Channel* channel) {
  const Status status = co_await JobEnd(job.get(), channel);
  co_return status;
}

}  // namespace

NativeCommunicator::NativeCommunicator(NativeGroup group) : group_(std::move(group)) {
  const auto me = std::find(group_.members.begin(), group_.members.end(), group_.transport->rank());
  RUEDA_CHECK(me != group_.members.end(), "this rank is a member");
  rank_ = static_cast<Rank>(me - group_.members.begin());
  if (size() > 1 && group_.arenas.size() == group_.members.size()) {
    const shm::ChannelGroup channels{rank_, group_.arenas, group_.heaps, group_.ringers};
    for (size_t number = 0; number < channels_.size(); ++number)
      channels_[number] = std::make_unique<shm::Channel>(channels, group_.first_channel + number);
    return;
  }
  if (group_.host_of.empty()) return;
  HostMap map(group_.host_of, rank_);
  if (map.hosts() < 2) return;
  has_levels_ = map.has_levels();
  hierarchy_ = std::make_unique<Hierarchy>(std::move(map), group_.local, group_.first_channel,
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

Task NativeCommunicator::run_in_channel(std::shared_ptr<shm::Job> job) {
  shm::Channel& channel = *channels_[0];
  job->protocol = protocol_;
  job->times = std::exchange(times_, nullptr);
  channel.prepare(job.get());
  jobs_.push_back(job);
  channel.start(job.get());
  return wait_for(std::move(job), &channel);
}

Task NativeCommunicator::allreduce(std::vector<Part> parts, DType dtype, ReduceOp op,
                                   const Scaling& scaling) {
  const direct::Group group = next_call();
  if (op == ReduceOp::kAdasum) {
    return adasum(group, std::move(parts), dtype, scaling.prescale * scaling.finish.factor);
  }
  if (hierarchy_) return hierarchy_->allreduce(group, std::move(parts), dtype, op, scaling);
  if (!channels_[0]) return direct::allreduce(group, PartList(parts), dtype, op, scaling);
  auto job = std::make_shared<shm::Job>();
  job->kind = CollectiveKind::kAllreduce;
  job->dtype = dtype;
  job->op = op;
  job->scaling = scaling;
  job->parts = std::move(parts);
  return run_in_channel(std::move(job));
}

Task NativeCommunicator::reducescatter(const std::byte* in, std::byte* out,
                                       std::vector<int64_t> counts, DType dtype, ReduceOp op,
                                       const Scaling& scaling) {
  const direct::Group group = next_call();
  if (has_levels_) {
    return hierarchy_->reducescatter(group, in, out, std::move(counts), dtype, op, scaling);
  }
  if (!channels_[0])
    return direct::reduce_scatter(group, in, out, std::move(counts), dtype, op, scaling);
  auto job = std::make_shared<shm::Job>();
  job->kind = CollectiveKind::kReducescatter;
  job->dtype = dtype;
  job->op = op;
  job->scaling = scaling;
  job->parts = {{in, out, 0}};
  job->counts = std::move(counts);
  return run_in_channel(std::move(job));
}

Task NativeCommunicator::allgather(std::vector<GatherPart> parts) {
  const direct::Group group = next_call();
  if (has_levels_) return hierarchy_->allgather(group, std::move(parts));
  if (!channels_[0]) return direct::allgather(group, std::move(parts));
  auto job = std::make_shared<shm::Job>();
  job->kind = CollectiveKind::kAllgather;
  for (const GatherPart& part : parts) {
    job->parts.push_back({part.in, part.out, 0});
    job->counts.insert(job->counts.end(), part.bytes.begin(), part.bytes.end());
  }
  return run_in_channel(std::move(job));
}

Task NativeCommunicator::broadcast(Rank root, std::vector<BroadcastPart> parts) {
  const direct::Group group = next_call();
  if (has_levels_) return hierarchy_->broadcast(group, root, std::move(parts));
  if (!channels_[0]) return direct::broadcast(group, root, std::move(parts));
  auto job = std::make_shared<shm::Job>();
  job->kind = CollectiveKind::kBroadcast;
  job->root = root;
  for (const BroadcastPart& part : parts) job->parts.push_back({part.in, part.out, part.bytes});
  return run_in_channel(std::move(job));
}

Task NativeCommunicator::alltoall(const std::byte* in, std::byte* out, std::vector<int64_t> bytes) {
  const direct::Group group = next_call();
  if (!channels_[0]) {
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
  auto job = std::make_shared<shm::Job>();
  job->kind = CollectiveKind::kAlltoall;
  job->parts = {{in, out, 0}};
  job->counts = std::move(bytes);
  return run_in_channel(std::move(job));
}

bool NativeCommunicator::progress() {
  if (hierarchy_) return hierarchy_->progress();
  if (!channels_[0]) return false;
  const bool moved = channels_[0]->progress();
  while (!jobs_.empty() && jobs_.front()->done) jobs_.pop_front();
  return moved;
}

bool NativeCommunicator::waits_for_channels() const {
  if (hierarchy_) return !hierarchy_->idle();
  for (const auto& channel : channels_) {
    if (channel && !channel->idle()) return true;
  }
  return false;
}

void NativeCommunicator::abandon() {
  if (hierarchy_) hierarchy_->abandon();
  for (const auto& channel : channels_) {
    if (channel) channel->abandon();
  }
  jobs_.clear();
}

shm::Channel::Bytes NativeCommunicator::channel_totals() const {
  if (hierarchy_) return hierarchy_->channel_totals();
  shm::Channel::Bytes sum;
  for (const auto& channel : channels_) {
    if (!channel) continue;
    sum.total += channel->bytes().total;
    sum.in_place += channel->bytes().in_place;
    sum.cma += channel->bytes().cma;
  }
  return sum;
}

}  // namespace rueda::algorithms
