// Library: NCCL, opened at run time.
//
// Ownership: shared by all that use it; stays open until the process ends.
// Threads:   any.
// Failure:   FailedPrecondition lists where it was looked for, and why each place did not do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/nccl/functions.h"
#include "collectives/nccl/search.h"

namespace rueda::nccl {

class Library {
 public:
  // The first candidate that can be opened and has all that is needed.
  static Result<std::shared_ptr<const Library>> open(const std::vector<Candidate>& candidates);
  // For this process: RUEDA_NCCL_LIBRARY is `named`.
  static Result<std::shared_ptr<const Library>> find(const std::string& named);

  const Functions* operator->() const { return &functions_; }
  const Functions& functions() const { return functions_; }
  int version() const { return version_; }  // 22809 is 2.28.9
  const std::string& path() const { return path_; }
  const std::string& origin() const { return origin_; }
  // "NCCL 2.28.9 (/usr/lib/libnccl.so.2, the system's)"
  std::string describe() const;
  // Ok, or NCCL's own text: "ncclAllReduce: unhandled system error: <its last error>". kInProgress
  // is ok here. comm may be null.
  Status check(ResultCode code, const char* call, Handle comm = nullptr) const;

 private:
  static Result<std::shared_ptr<const Library>> open(const Candidate& candidate);

  Functions functions_;
  int version_ = 0;
  std::string path_;
  std::string origin_;
};

// "2.28.9"
std::string version_text(int version);

}  // namespace rueda::nccl
