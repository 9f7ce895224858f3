// DriverApi: the calls of this machine's CUDA driver, opened at run time.
//
// Ownership: shared by all that use it; stays open until the process ends.
// Threads:   any.
// Failure:   FailedPrecondition says what is missing and what to do.
#pragma once

#include <memory>
#include <string>

#include "collectives/base/status.h"
#include "collectives/cuda/functions.h"

namespace rueda::cuda {

class DriverApi {
 public:
  // path: "" for the system's libcuda.so.1 (RUEDA_CUDA_DRIVER).
  static Result<std::shared_ptr<const DriverApi>> open(const std::string& path);

  const Functions* operator->() const { return &functions_; }
  // 13000 is CUDA 13.0.
  int version() const { return version_; }
  // Ok, or what the driver says of its error: "cuEventRecord: CUDA_ERROR_... (text)".
  Status check(Code code, const char* call) const;

 private:
  Functions functions_;
  int version_ = 0;
};

}  // namespace rueda::cuda
