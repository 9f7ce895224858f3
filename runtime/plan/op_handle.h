// OpHandle: what a pending operation is to its owner. The agreement carries it and gives it back,
// and never looks inside.
#pragma once

#include <compare>

namespace rueda::plan {

class OpHandle {
 public:
  OpHandle() = default;
  explicit OpHandle(void* of) : of_(of) {}
  // What the owner made it of.
  template <typename T>
  T* as() const {
    return static_cast<T*>(of_);
  }
  auto operator<=>(const OpHandle&) const = default;

 private:
  void* of_ = nullptr;
};

}  // namespace rueda::plan
