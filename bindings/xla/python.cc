#include "bindings/xla/python.h"

#include <rueda/rueda.h>

#include <atomic>

namespace rueda::xla::python {
namespace {

using StateOfThread = void* (*)();                // PyGILState_GetThisThreadState
using Raise = int32_t (*)(int32_t, const char*);  // takes Python's lock

std::atomic<StateOfThread> state_of_thread = nullptr;
std::atomic<Raise> raise_later = nullptr;
thread_local bool is_raised_later = false;

}  // namespace

bool is_caller() {
  const StateOfThread state = state_of_thread.load(std::memory_order_relaxed);
  return state != nullptr && state() != nullptr;
}

bool raises(int32_t code, const char* message) {
  const Raise raise = raise_later.load(std::memory_order_relaxed);
  is_raised_later = raise != nullptr && raise(code, message) != 0;
  return is_raised_later;
}

bool has_failed() { return is_raised_later; }

}  // namespace rueda::xla::python

extern "C" {

// `state_of_thread`: Python's state of the thread that calls, NULL where there is none. `raise`: 1
// if Python raises the error once the program of the thread that calls has ended.
RUEDA_API void rueda_xla_use_python(void* (*state_of_thread)(void),
                                    int32_t (*raise)(int32_t code, const char* message)) {
  rueda::xla::python::raise_later = raise;
  rueda::xla::python::state_of_thread = state_of_thread;
}

// The error of this thread's program has been raised.
RUEDA_API void rueda_xla_has_raised(void) { rueda::xla::python::is_raised_later = false; }
}
