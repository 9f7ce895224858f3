// Library: librueda_cuda.so, opened at run time. It is absent where rueda was built without nvcc;
// whoever wants a kernel does without it then.
//
// Ownership: shared by all that use it; stays open until the process ends.
// Threads:   any, with the device's context current.
// Failure:   FailedPrecondition says why there are no kernels.
#pragma once

#include <memory>
#include <string>

#include "collectives/base/status.h"
#include "collectives/cuda/kernels/functions.h"

namespace rueda::cuda::kernels {

class Library {
 public:
  // named: a file (RUEDA_CUDA_KERNELS); "": librueda_cuda.so beside this library; "none": no
  // kernels. The device's context must be current: kernels that cannot run on it are refused here.
  static Result<std::shared_ptr<const Library>> open(const std::string& named);

  const KernelFunctions* operator->() const { return functions_; }
  // Ok, or what the CUDA runtime says of its error.
  Status check(int error, const char* kernel) const;

 private:
  const KernelFunctions* functions_ = nullptr;
};

}  // namespace rueda::cuda::kernels
