// Blocks of the heap that another library's allocations get: tensors that PyTorch's backward makes
// lie where collectives read them from the beginning, and nobody copies them there.
//
// One stock for the process. It has blocks of the sizes that were asked for, as many as were asked
// for, and keeps them when the library frees them. An allocation takes one if its size is such,
// one is free, and its thread is between begin() and end(); else it goes the library's own way. A
// forked child takes none and frees none.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/base/status.h"

namespace rueda::host::lent_blocks {

// Smaller tensors travel through staging buffers wherever they lie.
constexpr size_t kLeastBytes = size_t{64} << 10;

// From now on for posix_memalign and free of a loaded library. FAILED_PRECONDITION: there is no
// heap, or the library does not call these two by name. A second call does nothing.
Status lend_to(const char* library);
// So many more blocks of this size, or fewer; sizes below kLeastBytes are ignored. They are made
// when they are needed first; those beyond go back to the heap as soon as they are free.
void expect(size_t bytes, int64_t count);
// Of the calling thread's allocations.
void begin();
// Of all threads' that have begun.
void end();

}  // namespace rueda::host::lent_blocks
