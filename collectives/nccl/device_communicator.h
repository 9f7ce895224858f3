// DeviceCommunicator: the collectives of one group on GPU tensors, by NCCL, in the order of
// streams.
//
// A task ends when its work has been given to the GPU: the host waits for no GPU. What is to come
// before it (the caller's stream) and where its end is seen are events (StreamOrder).
//
//   first call:  infos (version, GPU, NCCL's id) go to all ranks by messages -> checked alike -> NCCL
//                begins without blocking -> ready
//   every call:  own stream waits for `ready` -> one NCCL group -> `done` is recorded
//
// Threads: the coordinator. Failure: kFailedPrecondition and kUnimplemented are the same on all
// ranks and leave everything as it was; others end the group, as for every communicator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/desc/communicator.h"
#include "collectives/nccl/machine.h"
#include "collectives/nccl/peer_info.h"
#include "collectives/nccl/reduction.h"
#include "collectives/nccl/session.h"

namespace rueda::nccl {

// What stands before and behind one call on the GPU. Lives until its task has ended.
struct StreamOrder {
  int device = 0;                 // its tensors' GPU
  std::vector<cuda::Mark> ready;  // inputs are complete behind these
  cuda::EventPtr done;  // set when the task has ended well: outputs are complete behind it
};

struct DeviceGroup {
  transport::Transport* transport = nullptr;  // borrowed
  std::vector<Rank> members;                  // the transport's ranks
  std::vector<std::string> names;             // of the members
  uint32_t process_set = 0;
  uint32_t number = 0;  // of this communicator among the set's: each has an NCCL of its own
  std::shared_ptr<nccl::Machine> machine;
};

// What a process set is given of the communicator of all ranks.
struct SplitPart {
  bool known = false;                      // the split is over
  std::shared_ptr<nccl::Session> session;  // null: there is none, the set connects its ranks itself
};

// How a call of a DeviceCommunicator ends that is alike on all ranks and has touched nothing: its
// batch alone ends with it.
inline bool is_refusal(const Status& status) {
  return status.code() == rueda::Code::kFailedPrecondition ||
         status.code() == rueda::Code::kUnimplemented;
}

class DeviceCommunicator final : public Communicator {
 public:
  explicit DeviceCommunicator(DeviceGroup group);
  ~DeviceCommunicator() override;

  Rank rank() const override { return rank_; }
  Rank size() const override { return static_cast<Rank>(group_.members.size()); }
  // Of the next call; every call needs one.
  void order_next(StreamOrder* order) { order_ = order; }
  Task allreduce(std::vector<Part> parts, DType dtype, ReduceOp op,
                 const Scaling& scaling) override;
  Task reducescatter(const std::byte* in, std::byte* out, std::vector<int64_t> counts, DType dtype,
                     ReduceOp op, const Scaling& scaling) override;
  Task allgather(std::vector<GatherPart> parts) override;
  Task broadcast(Rank root, std::vector<BroadcastPart> parts) override;
  Task alltoall(const std::byte* in, std::byte* out, std::vector<int64_t> bytes) override;

  // Splitting parts off. Nobody can hang in NCCL's split, because all ranks have a place for it in
  // one order of calls: the place is reserved where all of them are at the same point of what they
  // agree on, and taken by split() or skip(). Empty: no call was made yet, so there is nothing to
  // split.
  std::optional<uint64_t> reserve();
  // Waits for the GPU, not on the host. key: this rank's place in the part; empty: it is not in it.
  // A failure ends this group.
  Task split(uint64_t place, std::optional<int> key, std::string what,
             std::shared_ptr<SplitPart> part);
  Task skip(uint64_t place) { return refuse(place, {}); }
  // Of a parent, on all ranks alike, before the first call, which waits until it is known.
  void use_part(std::shared_ptr<SplitPart> part) { part_ = std::move(part); }

  bool progress() override { return false; }
  void abandon() override;
  // The GPU that this group uses; `first` before it has used any.
  int device(int first) const { return device_ < 0 ? first : device_; }
  Result<std::shared_ptr<cuda::Memory>> allocate(int device, size_t bytes);
  // What was given to the GPU is done.
  bool idle() const { return !session_ || session_->idle(); }
  // It has an NCCL communicator.
  bool uses_gpu() const { return session_ != nullptr; }
  // NCCL is connecting the ranks.
  bool starting() const { return starting_; }
  // An error of work that was given to the GPU before: the group has ended.
  Status health() const;

 private:
  using Calls = std::function<Status(nccl::Session&)>;
  // A group of NCCL's calls, and what comes behind it in the stream; either may be empty.
  struct Stage {
    Calls calls;
    Calls after;
  };
  Task run(uint64_t turn, StreamOrder* order, std::vector<Stage> stages);
  Task refuse(uint64_t turn, Status status);
  Task start(Calls calls, Calls after = {});
  Task adasum(std::vector<Part> parts, DType dtype, double factor);
  Result<std::byte*> scratch(size_t bytes);
  Status copy(nccl::Session& session, const std::vector<cuda::kernels::Table>& tables,
              cuda::kernels::Format format) const;
  nccl::PeerInfo own_info(int device);
  Status begin(const std::vector<nccl::PeerInfo>& infos);

  DeviceGroup group_;
  Rank rank_ = 0;
  StreamOrder* order_ = nullptr;
  uint64_t calls_ = 0;  // made
  uint64_t turn_ = 0;   // whose calls of NCCL come next
  std::shared_ptr<const cuda::kernels::Library> kernels_;
  std::shared_ptr<std::byte> buffer_;  // of packed tensors; null: not every rank can pack
  bool registered_ = false;            // with NCCL, as far as it can
  // Of Adasum; the last is in use, freeing the others would wait for the GPU.
  std::vector<std::shared_ptr<cuda::Memory>> scratch_;
  std::shared_ptr<nccl::Session> session_;
  std::shared_ptr<SplitPart> part_;  // until the start
  bool splits_ = false;              // all ranks' NCCL can
  int capability_ = 0;               // of the weakest GPU: 90 is 9.0
  int device_ = -1;
  Status refused_;  // at the start, on all ranks alike
  bool abandoned_ = false;
  bool starting_ = false;
};

}  // namespace rueda::nccl
