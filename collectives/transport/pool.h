// Pool: objects that are used, given back and used again. Allocates only where more are in use than
// ever before, and keeps what it has until it ends.
//
// Ownership: owns all, those in use too. An object comes as it was given back. Threads: one.
#pragma once

#include <deque>
#include <vector>

namespace rueda::transport {

template <typename T>
class Pool {
 public:
  T* take() {
    if (free_.empty()) {
      T* object = &all_.emplace_back();
      if (free_.capacity() < all_.size())
        free_.reserve(2 * all_.size());  // giving back never fails
      return object;
    }
    T* object = free_.back();
    free_.pop_back();
    return object;
  }
  void give_back(T* object) { free_.push_back(object); }
  // From now on there are at least so many, those in use too.
  void reserve(size_t count) {
    free_.reserve(count);
    while (all_.size() < count) free_.push_back(&all_.emplace_back());
  }
  // How many are in use.
  size_t in_use() const { return all_.size() - free_.size(); }

 private:
  std::deque<T> all_;  // whose addresses stay
  std::vector<T*> free_;
};

}  // namespace rueda::transport
