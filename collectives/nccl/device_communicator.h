// DeviceCommunicator: the collectives of one group on GPU tensors, by NCCL, in the order of
// streams.
//
// A collective ends when its work has been given to the GPU: the host waits for no GPU. What is to
// come before it (the caller's stream) and where its end is seen are events (StreamOrder, which
// every start needs).
//
//   first start:  infos (version, GPU, NCCL's id) go to all ranks by messages -> checked alike ->
//                 NCCL begins without blocking -> ready
//   every start:  own stream waits for `ready` -> one NCCL group -> `done` is recorded
//
// Threads: who holds the progress lock. Failure: kFailedPrecondition and kUnimplemented are the
// same on all ranks and leave everything as it was; others end the group, as for every
// communicator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/desc/communicator.h"
#include "collectives/desc/script.h"
#include "collectives/desc/transfers.h"
#include "collectives/nccl/block.h"
#include "collectives/nccl/machine.h"
#include "collectives/nccl/peer_info.h"
#include "collectives/nccl/reduction.h"
#include "collectives/nccl/session.h"

namespace rueda::nccl {

// What stands before and behind one start on the GPU. Lives until it has ended.
struct StreamOrder {
  int device = 0;                 // its tensors' GPU
  std::vector<cuda::Mark> ready;  // inputs are complete behind these
  cuda::EventPtr done;            // set when it has ended well: outputs are complete behind it
};

struct DeviceGroup {
  transport::Transport* transport = nullptr;  // borrowed
  std::vector<Rank> members;                  // the transport's ranks
  std::vector<std::string> names;             // of the members
  transport::Tag tag = 0;  // of what the ranks tell each other before; no other communicator's
  std::shared_ptr<nccl::Machine> machine;
  bool packs = true;  // takes memory to pack tensors in, where there are kernels
};

// What a process set is given of the communicator of all ranks.
struct SplitPart {
  bool known = false;                      // the split is over
  std::shared_ptr<nccl::Session> session;  // null: there is none, the set connects its ranks itself
};

// How a call of a DeviceCommunicator ends that is alike on all ranks and has touched nothing: its
// batch alone ends with it.
inline bool is_refusal(const Status& status) {
  return status.code() == Code::kFailedPrecondition || status.code() == Code::kUnimplemented;
}

class DeviceCommunicator final : public Communicator {
 public:
  explicit DeviceCommunicator(DeviceGroup group);
  ~DeviceCommunicator() override;

  Rank rank() const override { return rank_; }
  Rank size() const override { return static_cast<Rank>(group_.members.size()); }
  // Allreduce, reduce, reducescatter, allgather, broadcast and alltoall. Reductions that NCCL has
  // not are rueda's kernel's. What neither can do is refused by a start, alike on all ranks: only
  // when they have met is known what all of them can.
  Result<std::unique_ptr<Collective>> init(CollectiveDesc desc) override;

  // Splitting parts off. Nobody can hang in NCCL's split, because all ranks have a place for it in
  // one order of starts: the place is reserved where all of them are at the same point of what they
  // agree on, and taken by a start of split() or skip(). Empty: nothing was started yet, so there
  // is nothing to split.
  std::optional<uint64_t> reserve();
  // Waits for the GPU, not on the host. key: this rank's place in the part; empty: it is not in it.
  // A failure ends this group.
  std::unique_ptr<Collective> split(uint64_t place, std::optional<int> key, std::string what,
                                    std::shared_ptr<SplitPart> part);
  std::unique_ptr<Collective> skip(uint64_t place);
  // Of a parent, on all ranks alike, before the first start, which waits until it is known.
  void use_part(std::shared_ptr<SplitPart> part) { part_ = std::move(part); }

  // All ranks are at the same point of what they agree on: with the next start they make the pool's
  // blocks windows that have come on all of them since.
  void agree_on_windows() { windows_due_ = true; }
  // Memory that its NCCL communicator was told of.
  Registrations::Totals registered() const {
    return session_ ? session_->registered() : Registrations::Totals();
  }

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
  Script run(std::vector<Stage> stages, std::span<const Part> tensors);
  Script refuse(Status status);
  Script split_off(std::optional<int> key, std::string what, std::shared_ptr<SplitPart> part);
  Status prepare(const StreamOrder& order, std::span<const Part> tensors);
  void register_tensors(std::span<const Part> tensors);
  bool registers() const { return group_.machine->options().registers != Registers::kNone; }
  Script make_script(const CollectiveDesc& desc, std::span<const Part> tensors);
  Script allreduce(const CollectiveDesc& desc, std::span<const Part> tensors);
  Script adasum(const CollectiveDesc& desc, std::span<const Part> tensors);
  Script combine(const CollectiveDesc& desc, std::span<const Part> tensors, const Status& lacks);
  Script reduce(const CollectiveDesc& desc, std::span<const Part> tensors);
  Script reducescatter(const CollectiveDesc& desc, std::span<const Part> tensors);
  Script allgather(const CollectiveDesc& desc, std::span<const Part> tensors);
  Script broadcast(const CollectiveDesc& desc, std::span<const Part> tensors);
  Script alltoall(const CollectiveDesc& desc, std::span<const Part> tensors);
  Result<std::byte*> scratch(size_t bytes);
  Status copy(nccl::Session& session, const std::vector<cuda::kernels::Table>& tables,
              cuda::kernels::Format format) const;
  template <typename Type>
  void exchange(Transfers* moves, std::vector<Type>* all);
  nccl::PeerInfo own_info(int device);
  Status begin(const std::vector<nccl::PeerInfo>& infos);

  DeviceGroup group_;
  Rank rank_ = 0;
  uint64_t calls_ = 0;  // started
  uint64_t turn_ = 0;   // whose calls of NCCL come next
  std::shared_ptr<const cuda::kernels::Library> kernels_;
  Block buffer_;                // of packed tensors; no data: not every rank can pack
  bool registered_ = false;     // the buffer, with NCCL, as far as it can
  bool windows_ = false;        // all ranks can make windows,
  bool window_buffer_ = false;  // of their buffers too
  bool windows_due_ = false;
  // Of Adasum and of rueda's own reductions; the last is in use, freeing the others would wait for
  // the GPU.
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
