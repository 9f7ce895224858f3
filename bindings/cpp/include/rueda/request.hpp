// Request: one operation, started once, or again and again.
//
//   rueda::Request sum = hvd.allreduce_async(gradient, rueda::ReduceOp::kSum, {.name = "x"});
//   ...; sum.wait();                                    // started by the call, once
//
//   rueda::Request sum = hvd.allreduce_init<float>(1000, rueda::ReduceOp::kAverage, {.name = "x"});
//   for (...) sum.run(gradient);                        // persistent: in place, again and again
//   sum.start(gradient); ...; sum.wait();               // the same, with something in between
//
// All ranks start a persistent one equally often, beside other operations in any order.
//
// Ownership: owns the handle and the results that rueda allocated (output()); borrows input and
//            output from each start to its end, nobody may touch them meanwhile.
// Threads:   one thread at a time per Request; different ones on different threads. cancel() from
//            any.
// Failure:   everything throws Error. RUEDA_ALREADY_EXISTS: the last start has not ended. After an
//            error every output is unspecified.
// End:       the destructor waits until the operation has ended, because the memory that it uses
//            usually dies next; it never throws. A lost or leaving rank ends it. It may outlive its
//            Context. detach() gives the handle up without waiting.
#ifndef RUEDA_REQUEST_HPP_
#define RUEDA_REQUEST_HPP_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rueda/error.hpp"
#include "rueda/rueda.h"
#include "rueda/tensor.hpp"

namespace rueda {
inline namespace api1 {

class [[nodiscard]] Request {
 public:
  using Seconds = std::chrono::duration<double>;

  // Takes over a handle; `dtype` is that of input and results. Persistent ones: so many elements of
  // each.
  Request(rueda_request* handle, std::int32_t dtype, std::size_t inputs = 0,
          std::size_t outputs = 0)
      : handle_(handle), dtype_(dtype), inputs_(inputs), outputs_(outputs) {}

  // True when it has ended, well or not, or was never started. Never blocks.
  bool test() const { return rueda_request_test(handle()) != 0; }

  // Waits until what was started last has ended; throws Error when it ended badly. Signals do not
  // end the wait.
  void wait() const { wait_until_ended(-1.0); }
  // The same for at most `timeout`; then throws Error with RUEDA_DEADLINE_EXCEEDED, which says what
  // is missing, and the operation goes on: wait again, or keep its memory alive.
  void wait(Seconds timeout) const {
    wait_until_ended(timeout.count() > 0 ? timeout.count() : 0.0);
  }

  // Calls back once, when what was started last ends; at once if it has. From any thread: short,
  // never waiting for anything of rueda, and it may not throw.
  void on_end(std::function<void()> callback) const {
    auto* const given = new std::function<void()>(std::move(callback));
    rueda_error error = RUEDA_ERROR_INIT;
    const std::int32_t code = rueda_request_on_end(handle(), &Request::call_back, given, &error);
    if (code != RUEDA_OK) delete given;
    detail::check(code, error);
  }
  // For poll and epoll: readable whenever test() is true. This Request's own.
  int event_fd() const {
    std::int32_t fd = -1;
    rueda_error error = RUEDA_ERROR_INIT;
    detail::check(rueda_request_event_fd(handle(), &fd, &error), error);
    return fd;
  }

  // ---- persistent ones
  // Never blocks for a peer.
  template <Input In, InOut Out>
  void start(In&& input, Out&& output) {
    const auto [in, out] = memory(detail::view(input), detail::view(output));
    rueda_error error = RUEDA_ERROR_INIT;
    detail::check(rueda_request_start(handle(), in, out, nullptr, &error), error);
  }
  // In place.
  template <InOut R>
  void start(R&& data) {
    start(data, data);
  }
  // Start and wait: the fastest way to a small result. Signals do not end the wait.
  template <Input In, InOut Out>
  void run(In&& input, Out&& output) {
    const auto [in, out] = memory(detail::view(input), detail::view(output));
    rueda_error error = RUEDA_ERROR_INIT;
    const std::int32_t code = rueda_request_run(handle(), in, out, nullptr, -1.0, &error);
    if (code == RUEDA_ABORTED) return wait();
    detail::check(code, error);
  }
  template <InOut R>
  void run(R&& data) {
    run(data, data);
  }
  // Elements of the input, and of this rank's output.
  std::size_t input_size() const { return inputs_; }
  std::size_t output_size() const { return outputs_; }

  // ---- results, once wait() has returned
  // allgather, alltoall and reducescatter own theirs where no output was given, else this is the
  // caller's. Valid as long as this Request, until its next start.
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
  Shape shape() const { return shape_and_data(nullptr); }
  // Rows that came from each rank (alltoall, allgather).
  Shape rows_by_rank() const {
    Shape rows(static_cast<std::size_t>(std::max(rueda_request_rows(handle(), nullptr, 0), 0)));
    rueda_request_rows(handle(), rows.data(), static_cast<std::int32_t>(rows.size()));
    return rows;
  }
  // The number that the operation gives (rueda_request_result).
  std::int64_t result() const { return rueda_request_result(handle()); }

  // Ends an attention call on this rank soon, with RUEDA_CANCELLED; its peers get an error when
  // this rank leaves. Other operations throw RUEDA_UNIMPLEMENTED.
  void cancel() const {
    rueda_error error = RUEDA_ERROR_INIT;
    detail::check(rueda_request_cancel(handle(), &error), error);
  }
  // Gives the handle up: the operation goes on, and its memory must stay valid until it has ended,
  // at the latest until the context has been shut down.
  void detach() && { rueda_request_release(handle_.release()); }

  // The C handle, still this Request's; null where it was moved from.
  rueda_request* get() const { return handle_.get(); }

 private:
  struct Release {
    void operator()(rueda_request* request) const {
      while (rueda_request_wait(request, -1.0, nullptr) == RUEDA_ABORTED) {
      }
      rueda_request_release(request);
    }
  };

  rueda_request* handle() const {
    if (handle_ == nullptr) throw Error(RUEDA_FAILED_PRECONDITION, "this Request was moved from");
    return handle_.get();
  }
  static void call_back(void* user) {
    const std::unique_ptr<std::function<void()>> callback(
        static_cast<std::function<void()>*>(user));
    (*callback)();
  }
  template <typename T, typename U>
  std::pair<const void*, void*> memory(std::span<T> input, std::span<U> output) const {
    if (dtype_of<T> != dtype_ || dtype_of<U> != dtype_)
      throw Error(RUEDA_INVALID_ARGUMENT, "the element type is not the request's");
    expect(input.size(), inputs_, "input");
    expect(output.size(), outputs_, "output");
    return {input.data(), output.data()};
  }
  static void expect(std::size_t size, std::size_t wanted, const char* what) {
    if (size == wanted) return;
    throw Error(RUEDA_INVALID_ARGUMENT, std::string(what) + " has " + std::to_string(size) +
                                            " elements, the request is for " +
                                            std::to_string(wanted));
  }
  // Again whenever a signal has ended the wait. Negative seconds: for ever.
  void wait_until_ended(double seconds) const {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    while (true) {
      const Seconds passed = Clock::now() - begin;
      const double left = seconds < 0 ? -1.0 : std::max(seconds - passed.count(), 0.0);
      rueda_error error = RUEDA_ERROR_INIT;
      const std::int32_t code = rueda_request_wait(handle(), left, &error);
      if (code != RUEDA_ABORTED) return detail::check(code, error);
    }
  }
  Shape shape_and_data(void** data) const {
    const std::int32_t ndim = rueda_request_output(handle(), data, nullptr, 0);
    if (ndim < 0) {
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "output(): the operation has not ended well; call wait() first");
    }
    Shape extents(static_cast<std::size_t>(ndim));
    rueda_request_output(handle(), nullptr, extents.data(), ndim);
    return extents;
  }

  std::unique_ptr<rueda_request, Release> handle_;
  std::int32_t dtype_;
  std::size_t inputs_;
  std::size_t outputs_;
};

// Waits until one of these has ended, well or not, whose end nobody has been told yet, by this
// function or by its own wait() or run(); gives its place: its wait() says how it ended. Each end
// is told once. Nothing: none is left; what was never started or moved from is passed over. Signals
// do not end the wait. Throws Error with RUEDA_DEADLINE_EXCEEDED when `timeout` has passed.
inline std::optional<std::size_t> wait_any(std::span<const Request> requests,
                                           std::optional<Request::Seconds> timeout = {}) {
  using Clock = std::chrono::steady_clock;
  std::vector<rueda_request*> handles;
  handles.reserve(requests.size());
  for (const Request& request : requests) handles.push_back(request.get());
  const auto begin = Clock::now();
  while (true) {
    double left = -1.0;
    if (timeout) left = std::max((*timeout - (Clock::now() - begin)).count(), 0.0);
    std::int64_t index = -1;
    rueda_error error = RUEDA_ERROR_INIT;
    const std::int32_t code =
        rueda_request_wait_any(handles.data(), handles.size(), left, &index, &error);
    if (index >= 0) return static_cast<std::size_t>(index);
    if (code == RUEDA_OK) return std::nullopt;
    if (code != RUEDA_ABORTED) detail::check(code, error);
  }
}

}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_REQUEST_HPP_
