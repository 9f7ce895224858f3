// Work: one submitted operation, from submission to its end.
//
// Ends exactly once per start. From then on the user's memory is not touched.
// Ownership: shared by the caller (a handle) and the coordinator; results of unknown size
// (allgather, alltoall) belong to
//            it. Threads: any may wait and poll; the coordinator completes.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/cuda/device.h"
#include "runtime/engine/blocked_clock.h"
#include "runtime/engine/result_memory.h"

namespace rueda::engine {

class Work;

// Who makes works end, as a blocked thread sees it.
class Helper {
 public:
  virtual ~Helper() = default;
  // A thread waits for a work that may be held back.
  virtual void wake() = 0;
  // The calling thread is blocked on the work: it may do the coordinator's work itself for a while.
  // Returns when the work has ended or sleeping is better.
  virtual void help(Work* work) = 0;
  // Threads that sleep until a work ends say so here.
  BlockedClock blocked;
};

class Work {
 public:
  // title: "allreduce 'fc1.weight'". helper may be null: the waiting thread just sleeps.
  explicit Work(std::string title, std::shared_ptr<Helper> helper = nullptr)
      : title_(std::move(title)), helper_(std::move(helper)) {}

  const std::string& title() const { return title_; }
  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  // Negative timeout: without limit. kDeadlineExceeded: the wait ended, the work goes on. kAborted:
  // a signal interrupted the wait. Otherwise how the work ended.
  Status wait(std::chrono::nanoseconds timeout);
  // How it ended; for who has helped already. Signals do not end this wait.
  const Status& sleep();
  // Valid once done().
  const Status& status() const { return status_; }

  // Results that the work owns; valid once done and ok.
  std::byte* output() const { return output_; }
  const Shape& output_shape() const { return output_shape_; }
  const std::vector<int64_t>& received_rows() const { return received_rows_; }
  // GPU tensors: where in the GPU's work the result is complete; null for others. A work ends when
  // its work has been given to the GPU.
  const cuda::EventPtr& device_end() const { return device_end_; }
  // Nothing of rueda touches its memory any more, on the host or a GPU.
  bool released() const;
  // A number that the operation gives: the id of an added process set. -1: none.
  int64_t result() const { return result_; }

  // ---- the coordinator's side
  // Begins anew a work that has ended or has never begun. Nobody else may use it meanwhile.
  void restart();
  // Uses the caller's memory as result, or allocates (64-byte aligned) when `memory` is null.
  std::byte* set_output(std::byte* memory, Shape shape, DType dtype,
                        std::vector<int64_t> received_rows);
  void set_result(int64_t result) { result_ = result; }
  void set_device_end(cuda::EventPtr end) { device_end_ = std::move(end); }
  // What a result of unknown size lies in.
  void keep_device_memory(std::shared_ptr<cuda::Memory> memory) {
    device_memory_ = std::move(memory);
  }
  void complete(Status status);
  // Ends well; allocates nothing.
  void complete();
  // What is missing, for the text of a passed deadline.
  void set_note(std::string note);
  // The root may keep this tensor waiting for its batch. True if somebody waits already; later
  // waits wake.
  bool mark_holdable();
  bool wanted() const { return wanted_.load(std::memory_order_seq_cst); }
  // A thread waits, and the agreement should know if that holds something up.
  void want();

 private:
  enum State : uint32_t { kPending = 0, kAwaited = 1, kDone = 2 };
  Status sleep_until(std::optional<std::chrono::steady_clock::time_point> deadline,
                     std::chrono::nanoseconds timeout);

  std::string title_;
  std::shared_ptr<Helper> helper_;
  std::atomic<uint32_t> state_{kPending};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> holdable_{false};
  Status status_;
  ResultMemory owned_;
  cuda::EventPtr device_end_;
  std::shared_ptr<cuda::Memory> device_memory_;
  std::byte* output_ = nullptr;
  Shape output_shape_;
  std::vector<int64_t> received_rows_;
  int64_t result_ = -1;
  std::mutex note_mutex_;
  std::string note_;
};

}  // namespace rueda::engine
