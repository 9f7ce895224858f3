#include "runtime/prepared.h"

#include <utility>

namespace rueda::runtime {

Status already_in_flight(const Work& work) {
  return {Code::kAlreadyExists,
          work.title() +
              ": submitted with the same name as another tensor that is still in flight on this "
              "rank; wait for it first, or give each its own name"};
}

Prepared::Prepared(Submission submission, std::shared_ptr<Driver> driver)
    : driver_(std::move(driver)) {
  pending_.submission = std::move(submission);
  pending_.prepared = this;
  pending_.submission.work->complete();
}

Prepared::~Prepared() { driver_->forget(&pending_.submission); }

Status Prepared::claim(const std::byte* in, std::byte* out) {
  Submission& s = pending_.submission;
  if (s.name->in_flight.exchange(true, std::memory_order_acq_rel))
    return already_in_flight(*s.work);
  // The name is free a moment before the work has ended.
  if (!s.work->done()) {
    s.name->in_flight.store(false, std::memory_order_release);
    return already_in_flight(*s.work);
  }
  s.submitted = driver_->recording() ? std::chrono::steady_clock::now()
                                     : std::chrono::steady_clock::time_point{};
  s.in = in;
  s.out = out;
  s.work->restart();
  return {};
}

Status Prepared::start(const std::byte* in, std::byte* out) {
  RUEDA_RETURN_IF_ERROR(claim(in, out));
  self_ = shared_from_this();
  driver_->start(this);
  return {};
}

Status Prepared::run(const std::byte* in, std::byte* out) {
  RUEDA_RETURN_IF_ERROR(claim(in, out));  // the caller holds it until this returns
  Work* const work = pending_.submission.work.get();
  driver_->run(this, work);
  return work->sleep();
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

}  // namespace rueda::runtime
