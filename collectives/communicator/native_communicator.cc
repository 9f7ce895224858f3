#include "collectives/communicator/native_communicator.h"

#include <algorithm>

#include "collectives/base/check.h"

namespace rueda::communicator {
namespace {

class JobDone : public Waiter {
 public:
  explicit JobDone(const AllreduceJob* job) : job_(job) {}
  bool ready() override { return job_->done; }
  void await_resume() {}

 private:
  const AllreduceJob* job_;
};

Task wait_for(std::shared_ptr<AllreduceJob> job) {
  co_await JobDone(job.get());
  co_return Status();
}

}  // namespace

NativeCommunicator::NativeCommunicator(NativeGroup group) : group_(std::move(group)) {
  const auto me = std::find(group_.members.begin(), group_.members.end(), group_.transport->rank());
  RUEDA_CHECK(me != group_.members.end(), "this rank is a member");
  rank_ = static_cast<Rank>(me - group_.members.begin());
  if (size() > 1 && group_.arenas.size() == group_.members.size()) {
    windows_.emplace(rank_, group_.arenas, group_.ringers);
  }
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

Task NativeCommunicator::allreduce(std::vector<Part> parts, DType dtype, ReduceOp op,
                                   const Scaling& scaling) {
  const direct::Group group = next_call();
  if (!windows_) return direct::allreduce(group, PartList(parts), dtype, op, scaling);
  auto job = std::make_shared<AllreduceJob>(PartList(parts), dtype, op, scaling);
  windows_->start(job);
  return wait_for(std::move(job));
}

Task NativeCommunicator::reducescatter(const std::byte* in, std::byte* out,
                                       std::vector<int64_t> counts, DType dtype, ReduceOp op,
                                       const Scaling& scaling) {
  return direct::reduce_scatter(next_call(), in, out, std::move(counts), dtype, op, scaling);
}

Task NativeCommunicator::allgather(std::vector<direct::GatherPart> parts) {
  return direct::allgather(next_call(), std::move(parts));
}

Task NativeCommunicator::broadcast(Rank root, std::vector<direct::BroadcastPart> parts) {
  return direct::broadcast(next_call(), root, std::move(parts));
}

Task NativeCommunicator::alltoall(const std::byte* in, std::byte* out,
                                  std::vector<int64_t> send_bytes,
                                  std::vector<int64_t> recv_bytes) {
  return direct::alltoall(next_call(), in, out, std::move(send_bytes), std::move(recv_bytes));
}

void NativeCommunicator::abandon() {
  if (windows_) windows_->abandon();
}

}  // namespace rueda::communicator
