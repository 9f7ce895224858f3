// Engine: distributed attention of one rank, on its Runtime. Calls run on threads that it keeps
// (workers.h) and can be waited for, tested and aborted.
//
// Threads:   any. All ranks of a process set start their calls in the same order.
// Failure:   what fails on one rank alone (a kernel, memory, a stream) ends everything on all ranks
//            (Runtime::fail), with its rank and reason: the others wait for its messages.
// Ownership: borrows the kernels, the runtime, which outlives every call, and a call's tensors
//            until it has ended.
// End:       the destructor waits for calls under way; shut the runtime down first, so that they
//            end. In a forked child it waits for nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "attention/decode.h"
#include "attention/device_calls.h"
#include "attention/host_calls.h"
#include "runtime/engine/completion.h"

namespace rueda::attention {

// One forward or backward under way: a request of its own kind.
class Call final : public engine::Completion {
 public:
  Call() : Completion("attention") {}
  // Ends the call on this rank soon; its peers get an error when this rank leaves. What it would
  // have written is unspecified.
  void abort() { aborted_->store(true, std::memory_order_relaxed); }
  // Bytes that the call had taken for itself at most; once done.
  int64_t workspace() const { return workspace_; }

 private:
  friend class Engine;
  int64_t workspace_ = 0;
  Status outcome_;
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
};
using CallPtr = std::shared_ptr<Call>;

class Engine {
 public:
  // runtime null: rank 0 of 1. check_programs: before a plan runs for the first time, all ranks'
  // programs are checked (program_check.h); a call whose programs are wrong fails.
  Engine(engine::Runtime* runtime, const Kernels* kernels, bool check_programs = false)
      : runtime_(runtime), kernels_(kernels), check_programs_(check_programs) {}
  ~Engine();

  // The plan of this rank for a process set; spec.ranks is set to its size.
  Result<AttentionPlan> plan(AttentionSpec spec, uint32_t process_set = 0) const;
  // plan, saved and what the tensors point to live until the call has ended. threads 0: what this
  // host has for each of its ranks. inline: on the calling thread; done when it returns.
  Result<CallPtr> forward(std::shared_ptr<const AttentionPlan> plan, uint32_t process_set,
                          int threads, const ForwardTensors& tensors, std::shared_ptr<Saved> saved,
                          bool inline_call = false);
  Result<CallPtr> backward(std::shared_ptr<const AttentionPlan> plan, uint32_t process_set,
                           int threads, const BackwardTensors& tensors,
                           std::shared_ptr<const Saved> saved, bool inline_call = false);
  // A call on tensors of a GPU (device_calls.h), on the calling thread: what it computes has been
  // given to the kernels' stream when it returns. *under_way: an error, and messages of it may
  // still use its memory.
  Status run(const AttentionPlan& plan, uint32_t process_set, bool backward,
             const DeviceKernels& kernels, bool* under_way);
  // Without a job: that of all ranks of one process, as run_virtual().
  Status run(std::span<const AttentionPlan* const> plans, bool backward, cuda::DevicePtr device,
             const DeviceKernels& kernels, std::vector<int64_t>* sent);
  // spec.ranks and spec.rank are set to those of the process set. Inline where it has one rank.
  Result<CallPtr> decode(DecodeSpec spec, uint32_t process_set, int threads,
                         const DecodeTensors& tensors);
  // The same on a GPU's tensors, as run().
  Status decode(DecodeSpec spec, uint32_t process_set, const DeviceKernels& kernels,
                bool* under_way);
  // That compute, or wait for the next call.
  int64_t threads() const { return workers_.threads(); }

 private:
  using Body = std::function<Status(Link*, const Means&)>;
  // What the ranks of a call have agreed on.
  struct Meeting {
    Rank rank, ranks;
    uint64_t hash;
  };
  static Meeting meeting(const AttentionPlan& plan, bool backward);
  Result<CallPtr> start(const AttentionPlan& plan, uint32_t process_set, int threads, bool backward,
                        Body body, bool inline_call);
  // A decode whose ranks are known, and what is wrong with it on this one.
  struct Decode {
    DecodeSpec spec;
    Status wrong;
    Meeting meeting;
  };
  Result<Decode> meet(DecodeSpec spec, uint32_t process_set, bool on_device) const;
  Result<CallPtr> start(const Meeting& meeting, uint32_t process_set, int threads, Body body,
                        bool inline_call);
  int threads_of(int asked) const;
  Status check_once(const AttentionPlan& plan, bool keeps_out);

  engine::Runtime* const runtime_;
  const Kernels* const kernels_;
  const bool check_programs_;
  std::set<std::pair<uint64_t, bool>> checked_;  // hashes of plans, and keeps_out
  std::mutex mutex_;
  std::map<uint32_t, uint32_t> calls_;  // of each process set, by its serial number
  // Of calls that failed while messages were under way: their memory must stay.
  std::vector<std::shared_ptr<Link>> left_over_;
  int running_ = 0;
  std::condition_variable ended_;
  Workers workers_;  // ends first
};

}  // namespace rueda::attention
