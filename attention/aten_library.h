// The functions of PyTorch's C shim that the kernel `aten` needs, found at run time.
#pragma once

#include <cstdint>

#include "collectives/base/status.h"

namespace rueda::attention {

// As torch/csrc/inductor/aoti_torch/c/shim.h declares them. Tensor: AtenTensorHandle.
struct AtenLibrary {
  using Tensor = struct AtenTensorOpaque*;
  int32_t (*from_blob)(void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides,
                       int64_t offset, int32_t dtype, int32_t device, int32_t index,
                       Tensor* result);
  int32_t (*release)(Tensor tensor);
  int32_t (*data)(Tensor tensor, void** result);
  int32_t (*float32)();
  int32_t (*bfloat16)();
  int32_t (*cpu)();
  int32_t (*forward)(Tensor q, Tensor k, Tensor v, double dropout, int32_t causal, Tensor* mask,
                     double* scale, Tensor* out, Tensor* lse);
  int32_t (*backward)(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,
                      double dropout, int32_t causal, Tensor* mask, double* scale, Tensor* dq,
                      Tensor* dk, Tensor* dv);
  // How many threads it starts. May be null.
  int (*threads)();
  void (*set_threads)(int count);     // of OpenMP, for the calling thread
  int (*set_mkl_threads)(int count);  // likewise; returns what it was
};

// Of the libtorch_cpu.so that this process has loaded; NotFound says what is missing.
Result<const AtenLibrary*> aten_library();

}  // namespace rueda::attention
