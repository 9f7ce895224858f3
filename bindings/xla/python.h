// What a call has to know of the Python that runs it, without Python: two functions that it gives.
//
// JAX's C++ makes a ValueError of what fails in a program that the thread of Python's runs itself.
// Where Python can raise the error that JAX has for it as soon as the program has ended, the
// program goes on instead, with whatever its results hold, and starts no more collectives.
#pragma once

#include <cstdint>

namespace rueda::xla::python {

// Whether Python has called XLA in this thread, so that it waits until the program has ended.
bool is_caller();

// Whether Python raises this error when the program of this thread has ended.
bool raises(int32_t code, const char* message);

// Whether a call of this thread's program has failed which Python is to raise.
bool has_failed();

}  // namespace rueda::xla::python
