#include "runtime/engine/request.h"

#include <utility>

#include "runtime/engine/progress_engine.h"

namespace rueda::engine {

Status already_in_flight(const Completion& request) {
  return {Code::kAlreadyExists,
          request.title() +
              ": submitted with the same name as another tensor that is still in flight on this "
              "rank; wait for it first, or give each its own name"};
}

Request::Request(std::string title, std::shared_ptr<ProgressEngine> progress)
    : Completion(std::move(title), progress), progress_(std::move(progress)) {
  complete();  // nothing is under way
}

Request::~Request() {
  if (name != nullptr) progress_->forget(this);
}

Status Request::claim() {
  if (name != nullptr && name->in_flight.exchange(true, std::memory_order_acq_rel))
    return already_in_flight(*this);
  // The name is free a moment before the last start has ended.
  if (!done()) {
    if (name != nullptr) name->in_flight.store(false, std::memory_order_release);
    return already_in_flight(*this);
  }
  restart();
  device_end_ = nullptr;
  keep_itself();
  return {};
}

Status Request::claim_memory(const std::byte* from, std::byte* to, cuda::StreamHandle stream) {
  if (!persistent) {
    return failed_precondition(title() +
                               ": it was started for once; make a persistent request to start "
                               "one again and again");
  }
  RUEDA_RETURN_IF_ERROR(claim());
  flight = 0;
  if (device >= 0) {
    const Status marked = machine->mark_again(&ready, stream);
    if (!marked.ok()) {
      if (name != nullptr) name->in_flight.store(false, std::memory_order_release);
      end(marked.with_message(title() + ": " + marked.message()));
      return status();
    }
  }
  submitted = progress_->recording() ? std::chrono::steady_clock::now()
                                     : std::chrono::steady_clock::time_point{};
  in = from;
  out = to;
  return {};
}

Status Request::start(const std::byte* from, std::byte* to, cuda::StreamHandle stream) {
  RUEDA_RETURN_IF_ERROR(claim_memory(from, to, stream));
  Request* const self = this;
  progress_->start({&self, 1});
  return {};
}

Status Request::run(const std::byte* from, std::byte* to, cuda::StreamHandle stream,
                    std::chrono::nanoseconds timeout) {
  RUEDA_RETURN_IF_ERROR(check_may_wait());
  RUEDA_RETURN_IF_ERROR(claim_memory(from, to, stream));
  return run_claimed(timeout, false);
}

Status Request::run_claimed(std::chrono::nanoseconds timeout, bool waits_for_name) {
  Helper::Deadline deadline;
  if (timeout.count() >= 0) deadline = std::chrono::steady_clock::now() + timeout;
  if (!waits_for_name) progress_->run(this, deadline);
  if (!deadline) return wait_for_device(sleep());
  const auto left = *deadline - std::chrono::steady_clock::now();
  return wait_for_device(wait(std::max(left, std::chrono::nanoseconds(0))));
}

Status Request::wait_for_device(const Status& ended) const {
  if (ended.ok() && device_end_ != nullptr) return device_end_->wait();
  return ended;
}

Status Request::make_wait(cuda::StreamHandle stream) const {
  if (!done()) return failed_precondition(title() + " has not ended: wait for it first");
  RUEDA_RETURN_IF_ERROR(status());
  return device_end_ == nullptr ? Status() : device_end_->make_wait(stream);
}

bool Request::released() const {
  if (!done()) return false;
  if (device_end_ == nullptr) return true;
  const auto reached = device_end_->query();
  return !reached.ok() || reached.value();  // a GPU that answers with errors does nothing more
}

std::byte* Request::set_output(std::byte* memory, const Shape& shape, DType dtype,
                               const std::vector<int64_t>& received_rows) {
  if (memory == nullptr) {
    const size_t bytes = static_cast<size_t>(element_count(shape)) * size_of(dtype);
    owned_ = ResultMemory(bytes);
    memory = owned_.data();
  }
  output_ = memory;
  output_shape_ = shape;
  received_rows_ = received_rows;
  return memory;
}

void Request::end(Status status) {
  const RequestPtr keep = std::move(self_);
  complete(std::move(status));
}

void Request::end_again() {
  const RequestPtr keep = std::move(self_);
  if (name != nullptr) name->in_flight.store(false, std::memory_order_release);
  complete();
}

}  // namespace rueda::engine
