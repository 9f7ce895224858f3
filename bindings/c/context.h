// What stands behind the C ABI's handles, and the helpers of its functions.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "attention/engine.h"
#include "bindings/c/include/rueda/rueda.h"
#include "collectives/base/status.h"
#include "runtime/engine/runtime.h"

namespace rueda::c_abi {

// What should_stop keeps between calls. Its memory must outlive a vote under way: the runtime has
// ended before it is destroyed.
struct StopVote {
  std::mutex mutex;
  std::shared_ptr<rueda::engine::Prepared> prepared;
  bool under_way = false;
  bool agreed = false;
  int32_t value = 0;
};

}  // namespace rueda::c_abi

struct rueda_context {
  // Made with the first attention; ends when the runtime has, whose end ends its calls.
  std::mutex attention_mutex;
  std::unique_ptr<rueda::attention::Engine> attention;
  rueda::c_abi::StopVote stop;
  std::string preemption_signals;
  std::unique_ptr<rueda::engine::Runtime> runtime;
  // Told what this rank did, when it has left; may be empty.
  std::function<void(const rueda::wire::RankSummary&)> tell_summary;
  int64_t heap_bytes = 0;  // as configured
  uint64_t process;        // rueda::fork_generation() of its creator: a forked child may not use it
};

struct rueda_work {
  std::shared_ptr<rueda::engine::Work> work;
};

namespace rueda::c_abi {

// Fills in `error` (may be null) and returns the code.
int32_t report(const Status& status, rueda_error* error);

// Ok if the context can be used from here.
Status check(const rueda_context* context);
// Is this the process in which that generation was made, and no fork of it?
Status check_process(uint64_t process);

// Runs a function that may allocate; nothing is thrown across the ABI.
template <typename Function>
int32_t guarded(rueda_error* error, Function function) {
  try {
    return report(function(), error);
  } catch (const std::bad_alloc&) {
    return report({Code::kResourceExhausted, "out of memory"}, error);
  } catch (const std::exception& e) {
    return report(internal_error(e.what()), error);
  }
}

// An Operation from the C struct, which may be of an older, shorter version.
// with_memory: input and output are given with it.
Result<engine::Operation> convert(const rueda_op* op, bool with_memory = true);

// Negative: without limit. More than a century is without limit too.
std::chrono::nanoseconds to_nanoseconds(double seconds);

}  // namespace rueda::c_abi
