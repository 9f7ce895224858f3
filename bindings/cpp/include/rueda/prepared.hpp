// Prepared: an operation that is checked and named once and started again and again.
//
//   rueda::Prepared sum = hvd.prepare_allreduce<float>(1000, rueda::ReduceOp::kAverage,
//                                                      {.name = "gradient"});
//   for (...) sum.run(gradient);                        // in place
//   sum.start(gradient); ...; sum.wait();               // the same, with something in between
//
// The name may not be empty. All ranks start it equally often, beside other operations in any
// order.
//
// Ownership: owns the handle; borrows input and output from each start to its end, nobody may touch
//            them meanwhile.
// Threads:   one thread at a time per Prepared; different ones on different threads.
// Failure:   everything throws Error. RUEDA_ALREADY_EXISTS: the last start has not ended. After an
//            error every output is unspecified.
// End:       the destructor waits for a start that is under way, because its memory usually dies
//            next; it never throws. It may outlive its Context; starts then end with an Error.
#ifndef RUEDA_PREPARED_HPP_
#define RUEDA_PREPARED_HPP_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "rueda/error.hpp"
#include "rueda/rueda.h"
#include "rueda/tensor.hpp"
#include "rueda/wait.hpp"

namespace rueda {
inline namespace api1 {

class [[nodiscard]] Prepared {
 public:
  using Seconds = std::chrono::duration<double>;

  // Takes over a handle from rueda_prepare; inputs and outputs have so many elements of `dtype`.
  Prepared(rueda_prepared* handle, std::int32_t dtype, std::size_t inputs, std::size_t outputs)
      : handle_(handle), dtype_(dtype), inputs_(inputs), outputs_(outputs) {}
  Prepared(Prepared&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        dtype_(other.dtype_),
        inputs_(other.inputs_),
        outputs_(other.outputs_) {}
  Prepared& operator=(Prepared&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(dtype_, other.dtype_);
    std::swap(inputs_, other.inputs_);
    std::swap(outputs_, other.outputs_);
    return *this;
  }
  ~Prepared() {
    if (handle_ == nullptr) return;
    while (rueda_prepared_wait(handle_, -1.0, nullptr) == RUEDA_ABORTED) {
    }
    rueda_prepared_release(handle_);
  }

  // Starts it. Never blocks for a peer.
  template <Input In, InOut Out>
  void start(In&& input, Out&& output) {
    const auto [in, out] = memory(detail::view(input), detail::view(output));
    rueda_error error = RUEDA_ERROR_INIT;
    detail::check(rueda_start(handle(), in, out, &error), error);
  }
  // In place.
  template <InOut R>
  void start(R&& data) {
    start(data, data);
  }

  // How the last start ended, as Work::wait; returns at once if there was none.
  void wait() const { wait_until_ended(-1.0); }
  void wait(Seconds timeout) const {
    wait_until_ended(timeout.count() > 0 ? timeout.count() : 0.0);
  }
  // True when no start is under way. Never blocks.
  bool poll() const { return rueda_prepared_poll(handle()) != 0; }

  // Start and wait: the fastest way to a small result. Signals do not end the wait.
  template <Input In, InOut Out>
  void run(In&& input, Out&& output) {
    const auto [in, out] = memory(detail::view(input), detail::view(output));
    rueda_error error = RUEDA_ERROR_INIT;
    detail::check(rueda_run_prepared(handle(), in, out, &error), error);
  }
  template <InOut R>
  void run(R&& data) {
    run(data, data);
  }

  // Elements of the input, and of this rank's output.
  std::size_t input_size() const { return inputs_; }
  std::size_t output_size() const { return outputs_; }

 private:
  rueda_prepared* handle() const {
    if (handle_ == nullptr) throw Error(RUEDA_FAILED_PRECONDITION, "this Prepared was moved from");
    return handle_;
  }
  template <typename T, typename U>
  std::pair<const void*, void*> memory(std::span<T> input, std::span<U> output) const {
    if (dtype_of<T> != dtype_ || dtype_of<U> != dtype_)
      throw Error(RUEDA_INVALID_ARGUMENT, "the element type is not the one that was prepared");
    expect(input.size(), inputs_, "input");
    expect(output.size(), outputs_, "output");
    return {input.data(), output.data()};
  }
  static void expect(std::size_t size, std::size_t prepared, const char* what) {
    if (size == prepared) return;
    throw Error(RUEDA_INVALID_ARGUMENT, std::string(what) + " has " + std::to_string(size) +
                                            " elements, prepared were " + std::to_string(prepared));
  }
  void wait_until_ended(double seconds) const {
    detail::wait_through_signals(seconds, [this](double left, rueda_error* error) {
      return rueda_prepared_wait(handle(), left, error);
    });
  }

  rueda_prepared* handle_;
  std::int32_t dtype_;
  std::size_t inputs_;
  std::size_t outputs_;
};

}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_PREPARED_HPP_
