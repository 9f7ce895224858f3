// NativeCommunicator: shared memory windows where all members share a host, direct messages else.
//
// The choice is a function of the members and their links alone, the same on all ranks.
#pragma once

#include <memory>
#include <optional>

#include "collectives/communicator/communicator.h"
#include "collectives/communicator/window_pipeline.h"

namespace rueda::communicator {

// What the members have in common; built by bootstrap.
struct NativeGroup {
  transport::Transport* transport = nullptr;  // borrowed, outlives the communicator
  std::vector<Rank> members;                  // the transport's ranks
  uint32_t process_set = 0;
  // By group rank; empty unless every member can map every other's.
  std::vector<std::shared_ptr<transport::Arena>> arenas;
  std::vector<transport::Ringer> ringers;
};

class NativeCommunicator final : public Communicator {
 public:
  explicit NativeCommunicator(NativeGroup group);

  Rank rank() const override { return rank_; }
  Rank size() const override { return static_cast<Rank>(group_.members.size()); }
  Task allreduce(std::vector<Part> parts, DType dtype, ReduceOp op,
                 const Scaling& scaling) override;
  Task reducescatter(const std::byte* in, std::byte* out, std::vector<int64_t> counts, DType dtype,
                     ReduceOp op, const Scaling& scaling) override;
  Task allgather(std::vector<direct::GatherPart> parts) override;
  Task broadcast(Rank root, std::vector<direct::BroadcastPart> parts) override;
  Task alltoall(const std::byte* in, std::byte* out, std::vector<int64_t> send_bytes,
                std::vector<int64_t> recv_bytes) override;
  bool progress() override { return windows_ ? windows_->progress() : false; }
  void abandon() override;
  uint64_t window_bytes() const override { return windows_ ? windows_->bytes_reduced() : 0; }

 private:
  // A fresh tag space for the next call.
  direct::Group next_call();

  NativeGroup group_;
  Rank rank_ = 0;
  uint64_t calls_ = 0;
  std::optional<WindowPipeline> windows_;
};

}  // namespace rueda::communicator
