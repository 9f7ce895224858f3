// NvtxRanges: what a rank does, for a profiler that listens through NVTX (Nsight Systems, for
// example), as ranges of the domain "rueda". Ranges of start and end, which may overlap and end on
// another thread.
//
// Threads: any. The profiler's functions are called on the caller's thread.
// End:     ranges that are open stay open; a profiler draws them up to the end.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/observe/timeline/event.h"
#include "runtime/observe/timeline/nvtx_functions.h"

namespace rueda::timeline {

class NvtxRanges {
 public:
  // library: the profiler's, as NVTX_INJECTION64_PATH names it; "": nobody listens. One that cannot
  // be opened is a warning, and nobody listens. A process has one profiler: the first named.
  explicit NvtxRanges(const std::string& library);
  ~NvtxRanges();

  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

  bool on() const { return domain_ != nullptr; }

  // While on(). bytes: shown beside it.
  nvtx::RangeId begin(const std::string& name, int64_t bytes) const;
  void end(nvtx::RangeId range) const;
  // Ends the last open one of this name; an end without a beginning is nothing.
  void mark(const std::string& name, Mark mark);

 private:
  nvtx::Domain domain_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<std::string, std::vector<nvtx::RangeId>> open_;
};

}  // namespace rueda::timeline
