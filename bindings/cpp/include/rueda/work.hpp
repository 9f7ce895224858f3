// Work: one submitted operation that may still be under way.
//
// Ownership: owns the handle and the results that rueda allocated (output()); borrows the caller's
//            input and output, which nobody may touch until the work has ended.
// Threads:   one thread at a time per Work; different Works on different threads.
// Failure:   wait() throws Error. After an error every output is unspecified.
// End:       the destructor waits until the work has ended, because the memory that it uses usually
//            dies next; it never throws. A lost or leaving rank ends the work. detach() gives the
//            handle up without waiting.
#ifndef RUEDA_WORK_HPP_
#define RUEDA_WORK_HPP_

#include <chrono>
#include <span>
#include <utility>

#include "rueda/error.hpp"
#include "rueda/rueda.h"
#include "rueda/tensor.hpp"
#include "rueda/wait.hpp"

namespace rueda {
inline namespace api1 {

class [[nodiscard]] Work {
 public:
  using Seconds = std::chrono::duration<double>;

  // Takes over a handle from rueda_submit; `dtype` is that of the results.
  Work(rueda_work* handle, std::int32_t dtype) : handle_(handle), dtype_(dtype) {}
  Work(Work&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), dtype_(other.dtype_) {}
  Work& operator=(Work&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(dtype_, other.dtype_);
    return *this;
  }
  ~Work() {
    if (handle_ == nullptr) return;
    while (rueda_work_wait(handle_, -1.0, nullptr) == RUEDA_ABORTED) {
    }
    rueda_work_release(handle_);
  }

  // True when the work has ended, well or not. Never blocks.
  bool poll() const { return rueda_work_poll(handle()) != 0; }

  // Waits until the work has ended; throws Error when it ended badly. Signals do not end the wait.
  void wait() const { wait_until_ended(-1.0); }
  // The same for at most `timeout`; then throws Error with RUEDA_DEADLINE_EXCEEDED, which says what
  // is missing, and the work goes on: wait again, or keep its memory alive.
  void wait(Seconds timeout) const {
    wait_until_ended(timeout.count() > 0 ? timeout.count() : 0.0);
  }

  // The results, once wait() has returned: allgather, alltoall and reducescatter own theirs, for
  // the others this is the caller's own output. Valid as long as this Work.
  template <Element T>
  std::span<const T> output() const {
    if (dtype_of<T> != dtype_) {
      throw Error(RUEDA_INVALID_ARGUMENT, "output(): the element type is not the operation's");
    }
    void* data = nullptr;
    const Shape extents = shape_and_data(&data);
    std::size_t count = 1;
    for (const std::int64_t extent : extents) count *= static_cast<std::size_t>(extent);
    return {static_cast<const T*>(data), count};
  }
  // The shape of the results, once wait() has returned.
  Shape shape() const { return shape_and_data(nullptr); }
  // Rows that came from each rank (alltoall, allgather), once wait() has returned.
  Shape rows_by_rank() const {
    Shape rows(static_cast<std::size_t>(rueda_work_received_splits(handle(), nullptr, 0)));
    rueda_work_received_splits(handle(), rows.data(), static_cast<std::int32_t>(rows.size()));
    return rows;
  }

  // The number that the operation gives, once wait() has returned (rueda_work_result).
  std::int64_t result() const { return rueda_work_result(handle()); }

  // Gives the handle up: the operation goes on, and its memory must stay valid until it has ended,
  // at the latest until the context has been shut down.
  void detach() && { rueda_work_release(std::exchange(handle_, nullptr)); }

 private:
  rueda_work* handle() const {
    if (handle_ == nullptr) throw Error(RUEDA_FAILED_PRECONDITION, "this Work was moved from");
    return handle_;
  }
  void wait_until_ended(double seconds) const {
    detail::wait_through_signals(seconds, [this](double left, rueda_error* error) {
      return rueda_work_wait(handle(), left, error);
    });
  }
  Shape shape_and_data(void** data) const {
    const std::int32_t ndim = rueda_work_output(handle(), data, nullptr, 0);
    if (ndim < 0) {
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "output(): the work has not ended well; call wait() first");
    }
    Shape extents(static_cast<std::size_t>(ndim));
    rueda_work_output(handle(), nullptr, extents.data(), ndim);
    return extents;
  }

  rueda_work* handle_;
  std::int32_t dtype_;
};

}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_WORK_HPP_
