// Timeline: what happened to every tensor when, as Chrome trace events in Horovod's layout (one row
// per tensor).
//
// Phases: NEGOTIATE_<KIND> from submission to the agreed batch, <KIND> from there to the end. The
// file is an array that viewers accept unclosed, so it is readable after a crash too. Threads: one,
// the coordinator.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <unordered_map>

#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::runtime {

class Timeline {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Empty path: writes nothing. "{rank}" in it is replaced; without it only rank 0 writes.
  static Result<Timeline> open(const std::string& path, Rank rank);

  bool enabled() const { return file_ != nullptr; }
  void phase(const std::string& tensor, const std::string& name, Time begin, Time end,
             int64_t bytes, int64_t batch);

 private:
  struct Close {
    void operator()(std::FILE* file) const;
  };
  int row(const std::string& tensor);

  std::unique_ptr<std::FILE, Close> file_;
  Time origin_ = std::chrono::steady_clock::now();
  std::unordered_map<std::string, int> rows_;
};

// "…" with quotes, as JSON wants it; bytes that are not UTF-8 become '?'.
std::string json_quoted(const std::string& text);

}  // namespace rueda::runtime
