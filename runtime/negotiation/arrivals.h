// Arrivals: hears on the root when ranks submit. Nothing is decided by it.
#pragma once

#include <chrono>

#include "proto/messages.h"

namespace rueda::negotiation {

class Arrivals {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual void arrived(const wire::Request& request, Rank rank, Time now) = 0;
  // It was the last; the one before it had come at `before`.
  virtual void complete(Rank rank, Time before, Time now) = 0;

 protected:
  ~Arrivals() = default;
};

}  // namespace rueda::negotiation
