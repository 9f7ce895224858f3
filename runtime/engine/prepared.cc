#include "runtime/engine/prepared.h"

#include <utility>

namespace rueda::engine {

Status already_in_flight(const Work& work) {
  return {Code::kAlreadyExists,
          work.title() +
              ": submitted with the same name as another tensor that is still in flight on this "
              "rank; wait for it first, or give each its own name"};
}

Prepared::Prepared(Submission submission, std::shared_ptr<ProgressEngine> driver,
                   std::shared_ptr<nccl::Machine> machine)
    : progress_(std::move(driver)), machine_(std::move(machine)), stream_(submission.ready.stream) {
  pending_.submission = std::move(submission);
  pending_.prepared = this;
  pending_.submission.work->complete();
}

Prepared::~Prepared() { progress_->forget(&pending_.submission); }

Status Prepared::claim(const std::byte* in, std::byte* out, cuda::StreamHandle stream) {
  Submission& s = pending_.submission;
  if (s.name->in_flight.exchange(true, std::memory_order_acq_rel))
    return already_in_flight(*s.work);
  // The name is free a moment before the work has ended.
  if (!s.work->done()) {
    s.name->in_flight.store(false, std::memory_order_release);
    return already_in_flight(*s.work);
  }
  if (s.device >= 0) {
    const Status marked = machine_->mark_again(&s.ready, stream);
    if (!marked.ok()) {
      s.name->in_flight.store(false, std::memory_order_release);
      return {marked.code(), title() + ": " + marked.message()};
    }
  }
  s.submitted = progress_->recording() ? std::chrono::steady_clock::now()
                                       : std::chrono::steady_clock::time_point{};
  s.in = in;
  s.out = out;
  s.work->restart();
  return {};
}

Status Prepared::start(const std::byte* in, std::byte* out, cuda::StreamHandle stream) {
  RUEDA_RETURN_IF_ERROR(claim(in, out, stream));
  self_ = shared_from_this();
  progress_->start(this);
  return {};
}

Status Prepared::run(const std::byte* in, std::byte* out, cuda::StreamHandle stream) {
  RUEDA_RETURN_IF_ERROR(claim(in, out, stream));  // the caller holds it until this returns
  Work* const work = pending_.submission.work.get();
  progress_->run(this, work);
  const Status& ended = work->sleep();
  if (ended.ok() && work->device_end() != nullptr) return work->device_end()->wait();
  return ended;
}

Status Prepared::make_wait(cuda::StreamHandle stream) const {
  const Work& work = *pending_.submission.work;
  if (!work.done()) return failed_precondition(work.title() + " has not ended: wait for it first");
  RUEDA_RETURN_IF_ERROR(work.status());
  return work.device_end() == nullptr ? Status() : work.device_end()->make_wait(stream);
}

Submission Prepared::as_submission() {
  Submission copy = pending_.submission;
  copy.keep = std::move(self_);
  return copy;
}

void Prepared::complete() {
  const auto keep = std::move(self_);
  Submission& s = pending_.submission;
  s.name->in_flight.store(false, std::memory_order_release);
  s.work->complete();
}

}  // namespace rueda::engine
