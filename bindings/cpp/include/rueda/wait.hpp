// Waiting in the C++ layer: a signal does not end it.
#ifndef RUEDA_WAIT_HPP_
#define RUEDA_WAIT_HPP_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "rueda/error.hpp"

namespace rueda {
inline namespace api1 {
namespace detail {

// wait(seconds left, error) as rueda_work_wait: again whenever a signal has ended it. Negative
// seconds: for ever. Throws Error.
template <typename Wait>
void wait_through_signals(double seconds, const Wait& wait) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  while (true) {
    const std::chrono::duration<double> passed = Clock::now() - start;
    rueda_error error = RUEDA_ERROR_INIT;
    const std::int32_t code =
        wait(seconds < 0 ? -1.0 : std::max(seconds - passed.count(), 0.0), &error);
    if (code != RUEDA_ABORTED) return check(code, error);
  }
}

}  // namespace detail
}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_WAIT_HPP_
