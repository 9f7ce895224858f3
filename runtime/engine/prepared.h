// Prepared: an operation that is checked and named once and started again and again.
//
// Starting it takes no lock and allocates nothing. From a start to its end the memory given belongs
// to the runtime.
// Ownership: shared by the caller's handle and, while it is under way, by the runtime.
// Threads:   any may start and wait; one start at a time.
#pragma once

#include <chrono>
#include <memory>

#include "collectives/nccl/machine.h"
#include "runtime/engine/progress_engine.h"
#include "runtime/engine/submission.h"

namespace rueda::engine {

// "allreduce 'x': submitted with the same name as ..."
Status already_in_flight(const Work& work);

class Prepared : public std::enable_shared_from_this<Prepared> {
 public:
  // submission: as for a single operation, with its name, without memory.
  // machine: of GPU tensors, else null.
  Prepared(Submission submission, std::shared_ptr<ProgressEngine> driver,
           std::shared_ptr<nccl::Machine> machine);

  ~Prepared();

  // kAlreadyExists: the last start, or another operation of this name, has not ended.
  // stream: GPU tensors; what it has been given until now comes before (null: the default stream).
  Status start(const std::byte* in, std::byte* out, cuda::StreamHandle stream = nullptr);
  // How the last start ended; ok if there was none. As Work::wait.
  Status wait(std::chrono::nanoseconds timeout) { return pending_.submission.work->wait(timeout); }
  // Start, then wait without limit, also for the GPU. The caller's thread does the work itself
  // where it can.
  Status run(const std::byte* in, std::byte* out, cuda::StreamHandle stream = nullptr);
  // GPU tensors: what `stream` is given from here on comes behind the last start's end.
  Status make_wait(cuda::StreamHandle stream) const;
  const std::string& title() const { return pending_.submission.work->title(); }
  bool needs_memory() const { return element_count(pending_.submission.request.shape) > 0; }
  bool done() const { return pending_.submission.work->done(); }
  // Nothing of rueda touches the memory of the last start any more, on the host or a GPU.
  bool released() const { return pending_.submission.work->released(); }
  // Of the operation as it was prepared: for starts that name none.
  cuda::StreamHandle stream() const { return stream_; }

  // ---- who holds the progress lock
  Prepared* next() const { return next_; }
  Pending* pending() { return &pending_; }
  // As a single operation, for the way through the negotiation. The name stays in flight.
  Submission as_submission();
  void complete();  // well; allocates nothing

  size_t held = kNotHeld;  // place in the coordinator's list of those that may be held back
  static constexpr size_t kNotHeld = ~size_t{0};
  static constexpr uint32_t kNoCacheId = ~uint32_t{0};
  uint32_t id = kNoCacheId;  // its number in the response cache, once it has one

 private:
  friend class SubmissionQueue;
  Status claim(const std::byte* in, std::byte* out, cuda::StreamHandle stream);

  Pending pending_;
  std::shared_ptr<ProgressEngine> progress_;
  std::shared_ptr<nccl::Machine> machine_;
  const cuda::StreamHandle stream_;
  std::shared_ptr<const Prepared> self_;  // while under way
  Prepared* next_ = nullptr;
};

}  // namespace rueda::engine
