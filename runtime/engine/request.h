// Request: one operation of this rank, the only form in which there is one: made and checked,
// started, agreed on, run, ended. Started once, or again and again (persistent: no lock, no
// allocation, no string from then on).
//
//   made --start--> claimed (its name is in flight) --> queue --> agreement --> executor --> ended
//     ^                                                                                        |
//     +------------------------------- start, of a persistent one -----------------------------+
//
// From a start to its end the memory given with it belongs to the runtime.
// Ownership: shared by the caller's handle and, from start to end, by the request itself.
// Threads:   any may start, wait and look; one start at a time. The rest belongs to who holds the
//            progress lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/base/types.h"
#include "collectives/cuda/device.h"
#include "collectives/nccl/machine.h"
#include "proto/messages.h"
#include "runtime/engine/completion.h"
#include "runtime/engine/result_memory.h"
#include "runtime/plan/step_plan.h"

namespace rueda::engine {

class ProgressEngine;
class Request;
struct ProcessSet;
using RequestPtr = std::shared_ptr<Request>;

// A name on this rank. Shared by the table of names and the requests that have it.
struct Name {
  std::atomic<bool> in_flight{false};
};
using NamePtr = std::shared_ptr<Name>;

// "allreduce 'x': submitted with the same name as ..."
Status already_in_flight(const Completion& request);

class Request final : public Completion, public std::enable_shared_from_this<Request> {
 public:
  // progress may be null: nobody waits for it (what the runtime asks for itself).
  explicit Request(std::string title, std::shared_ptr<ProgressEngine> progress = nullptr);
  ~Request() override;

  // ---- who made it
  // Starts a persistent one with this memory. kAlreadyExists: its last start, or another operation
  // of its name, has not ended. stream: GPU tensors; what it has been given until now comes before
  // (null: the default stream).
  Status start(const std::byte* in, std::byte* out, cuda::StreamHandle stream = nullptr);
  // Start, then wait, also for the GPU. The caller's thread does the work itself where it can.
  Status run(const std::byte* in, std::byte* out, cuda::StreamHandle stream = nullptr,
             std::chrono::nanoseconds timeout = std::chrono::nanoseconds(-1));
  // The same for one that has been claimed already, or waits for a name that is in flight.
  Status run_claimed(std::chrono::nanoseconds timeout, bool waits_for_name);
  bool needs_memory() const { return element_count(announcement.shape) > 0; }
  // Results that the request owns, or the caller's memory; valid once done and ok, until the next
  // start.
  std::byte* output() const { return output_; }
  const Shape& output_shape() const { return output_shape_; }
  const std::vector<int64_t>& received_rows() const { return received_rows_; }
  // A number that the operation gives: the id of an added process set. -1: none.
  int64_t result() const { return result_; }
  // GPU tensors: where in the GPU's work the result is complete; null for others. A request ends
  // when its work has been given to the GPU.
  const cuda::EventPtr& device_end() const { return device_end_; }
  // GPU tensors: what `stream` is given from here on comes behind the end.
  Status make_wait(cuda::StreamHandle stream) const;
  // Nothing of rueda touches its memory any more, on the host or a GPU.
  bool released() const;

  // ---- what it is: set by who makes it, fixed from then on
  std::shared_ptr<ProcessSet> set;
  // Of an ordered group: how many of the queue, from this one on, are one call.
  uint32_t in_call = 1;
  enum class GroupChange : uint8_t { kNone, kOpen, kClose, kAbort };
  GroupChange group_change = GroupChange::kNone;  // of an ordered group itself
  wire::Request announcement;  // what the ranks must agree on; name is "<kind>.<name>"
  bool persistent = false;
  bool numbered = false;                   // unnamed: may wait for its number to be free
  std::vector<RequestPtr> behind;          // of its group, while it waits: all start together
  int device = -1;                         // of in and out: -1 the host, else a GPU of this process
  Rank peer = 0;                           // send, recv
  uint32_t tag = 0;                        // the same
  uint32_t tag_space = 0;                  // see Operation
  uint16_t agreed = 0;                     // see Operation
  uint32_t site = 0;                       // FlightRecorder::site
  std::shared_ptr<nccl::Machine> machine;  // of GPU tensors, else null
  std::shared_ptr<std::byte[]> own;        // a neutral contribution's memory

  // ---- one start of it
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  // null: the result is the request's own
  cuda::Mark ready;          // GPU: in and out may be used behind it
  NamePtr name;              // null: matched otherwise (send, recv), or ended for good
  std::chrono::steady_clock::time_point submitted{};  // while somebody records
  uint64_t flight = 0;  // its record in the flight recorder; 0: none yet

  // ---- who holds the progress lock
  std::chrono::steady_clock::time_point since{};  // taken from the queue
  std::optional<uint32_t> label;                  // in the timeline
  bool seen_blocked = false;  // a thread waits for it, and the agreement has yet to hear of it
  static constexpr size_t kNotHeld = ~size_t{0};
  size_t held = kNotHeld;             // place in its group's list of those that wait for an answer
  std::optional<plan::RequestId> id;  // its number in the response cache, once it has one

  Request* next() const { return next_; }
  // Takes the name, where it has one; it keeps itself from here until it ends. kAlreadyExists: as
  // start().
  Status claim();
  void keep_itself() { self_ = shared_from_this(); }
  // Uses the caller's memory as result, or allocates (64-byte aligned) when `memory` is null; null
  // where there is none. Where
  // the result is like the last start's and its memory the caller's, nothing is allocated.
  std::byte* set_output(std::byte* memory, const Shape& shape, DType dtype,
                        const std::vector<int64_t>& received_rows);
  void set_result(int64_t result) { result_ = result; }
  void set_device_end(cuda::EventPtr end) { device_end_ = std::move(end); }
  // What a result of unknown size lies in.
  void keep_device_memory(std::shared_ptr<cuda::Memory> memory) {
    device_memory_ = std::move(memory);
  }
  // The end of the start, once its name may be used again. It may be gone afterwards.
  void end(Status status);
  // A persistent one's that ran well: frees its name too; allocates nothing.
  void end_again();

 private:
  friend class RequestQueue;
  Status claim_memory(const std::byte* in, std::byte* out, cuda::StreamHandle stream);
  Status wait_for_device(const Status& ended) const;

  const std::shared_ptr<ProgressEngine> progress_;
  RequestPtr self_;  // from start to end
  Request* next_ = nullptr;
  ResultMemory owned_;
  std::shared_ptr<cuda::Memory> device_memory_;
  cuda::EventPtr device_end_;
  std::byte* output_ = nullptr;
  Shape output_shape_;
  std::vector<int64_t> received_rows_;
  int64_t result_ = -1;
};

}  // namespace rueda::engine
