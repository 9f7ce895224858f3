// Few: a queue of at most N objects in memory of its own. Allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "collectives/base/check.h"

namespace rueda::mpi {

template <typename T, size_t N>
class Few {
 public:
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  T& front() { return items_[first_]; }
  T& operator[](size_t index) { return items_[(first_ + index) % N]; }
  void push_back(T item) {
    RUEDA_CHECK(count_ < N, "more than there may be");
    items_[(first_ + count_++) % N] = std::move(item);
  }
  T pop_front() {
    T item = std::exchange(items_[first_], T());
    first_ = (first_ + 1) % N;
    --count_;
    return item;
  }

 private:
  std::array<T, N> items_{};
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace rueda::mpi
