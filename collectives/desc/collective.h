// CollectiveDesc: what a collective is. Collective: one that is prepared once and started again and
// again, as MPI's persistent collectives are (MPI 4.0, section 6.12).
//
//   init(desc) ---> Collective     sizes, shards, buffers and messages are settled here; this may
//                                  allocate
//   tensors()                      where the memory of the next start lies
//   start() ---> test() ... until done() ---> start() ...      neither allocates
//
// Every rank of the group describes it alike and starts the group's collectives in the same order.
//
// Ownership: borrows the tensors' memory from a start to its end. Its end in the middle (the
//            destructor) leaves no memory of a tensor in use, as far as this rank is concerned. It
//            must not outlive its communicator.
// Threads:   one, the communicator's.
// Failure:   after an error every output of that start is unspecified. One that is no refusal ends
//            the communicator.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/desc/parts.h"
#include "collectives/desc/scaling.h"
#include "collectives/desc/stage_times.h"

namespace rueda {

namespace nccl {
struct StreamOrder;
}

// How large tensors in private memory move inside a host. Agreed by all ranks.
enum class ShmProtocol : uint8_t { kStaged = 0, kCma = 1 };

struct CollectiveDesc {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DType dtype = DType::kUInt8;  // kUInt8 where bytes are only moved; counts are bytes then
  ReduceOp op = ReduceOp::kSum;
  Scaling scaling;
  Rank root = 0;  // broadcast, reduce; of the group
  // Fused into one; reducescatter, alltoall, send and recv have one, a barrier none.
  size_t tensors = 1;
  // Elements, by kind:
  //   allreduce, broadcast   tensors          of each tensor; so has reduce, which is of GPUs alone
  //   allgather              tensors x ranks  each rank's block of each tensor
  //   reducescatter          ranks            each rank's shard; the input has their sum
  //   alltoall               ranks x ranks    from row to column; blocks lie end to end, by rank
  std::vector<int64_t> counts;
  ShmProtocol protocol = ShmProtocol::kStaged;
  // It ends on no rank before it has begun on all, and touches nothing that another start would
  // need before that: a step plan's, which may be withdrawn.
  bool meets = false;

  // Elements of a tensor that this rank reads and writes.
  int64_t input_count(size_t tensor, Rank rank, Rank ranks) const;
  int64_t output_count(size_t tensor, Rank rank, Rank ranks) const;
};

// What belongs to one start alone.
struct CallContext {
  StageTimes* times = nullptr;  // filled in while it runs, as far as the communicator can tell
  // Of GPU tensors: what stands before and behind it in streams.
  nccl::StreamOrder* order = nullptr;
};

class Collective {
 public:
  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  const CollectiveDesc& desc() const { return desc_; }
  // One for each tensor: `in` and `out` are to be filled in before each start. The same memory is
  // allowed for allreduce and broadcast; an allgather's input may be its own block of the output.
  std::span<Part> tensors() { return parts_; }
  std::span<const Part> tensors() const { return parts_; }

  // Begins once more. Not before the last start has ended.
  virtual void start(const CallContext& context) = 0;
  // Goes on as far as it can without waiting. True if it moved.
  virtual bool advance() = 0;
  // MPI_Test: goes on, and says whether it has ended.
  bool test() {
    if (!done_) advance();
    return done_;
  }
  bool done() const { return done_; }
  // How the last start ended.
  const Status& status() const { return status_; }

 protected:
  explicit Collective(CollectiveDesc desc) : desc_(std::move(desc)) {
    for (size_t i = 0; i < desc_.tensors; ++i) parts_.push_back({nullptr, nullptr, part_count(i)});
  }

  bool done_ = true;
  Status status_;
  CollectiveDesc desc_;
  std::vector<Part> parts_;

 private:
  int64_t part_count(size_t tensor) const {
    const bool by_tensor = desc_.kind == CollectiveKind::kAllreduce ||
                           desc_.kind == CollectiveKind::kBroadcast ||
                           desc_.kind == CollectiveKind::kReduce;
    return by_tensor ? desc_.counts[tensor] : 0;
  }
};

}  // namespace rueda
