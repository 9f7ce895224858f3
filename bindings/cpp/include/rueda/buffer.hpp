// Buffer<T>: an array in memory that the ranks of this host share; collectives on it need no copy.
//
//   rueda::Buffer<float> gradient(hvd, 1000);            // zeros
//   hvd.allreduce(gradient, rueda::ReduceOp::kAverage, {.name = "gradient"});
//
// Ownership: owns its memory, also after the Context was shut down.
// Threads:   as an array.
// Failure:   Error with RUEDA_RESOURCE_EXHAUSTED when memory is short (RUEDA_HEAP_BYTES).
#ifndef RUEDA_BUFFER_HPP_
#define RUEDA_BUFFER_HPP_

#include <cstddef>
#include <limits>
#include <utility>

#include "rueda/error.hpp"
#include "rueda/rueda.h"
#include "rueda/tensor.hpp"

namespace rueda {
inline namespace api1 {

template <Element T>
class Buffer {
 public:
  Buffer() = default;
  // `hvd` is a Context; it need not live as long as the buffer.
  template <typename Context>
  Buffer(const Context& hvd, std::size_t size) : size_(size) {
    if (size > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw Error(RUEDA_RESOURCE_EXHAUSTED, "Buffer: more bytes than can be addressed");
    rueda_error error = RUEDA_ERROR_INIT;
    void* memory = nullptr;
    detail::check(rueda_alloc(hvd.handle(), size * sizeof(T), &memory, &error), error);
    data_ = static_cast<T*>(memory);
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { rueda_free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](std::size_t index) { return data_[index]; }
  const T& operator[](std::size_t index) const { return data_[index]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_BUFFER_HPP_
