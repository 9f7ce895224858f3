// CLOCK_MONOTONIC in nanoseconds: the same for all processes of a host, and what recorders, life
// pages and agents compare. 0 never comes.
#pragma once

#include <chrono>
#include <cstdint>

namespace rueda::host {

inline int64_t monotonic_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace rueda::host
