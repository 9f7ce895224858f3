// What rueda uses of TensorFlow's C API, with its names: of ops.h, kernels.h, tf_tensor.h and
// tf_status.h in tensorflow/c. The functions are found in the process, where TensorFlow is already.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
// To a std::function<void()> that is gone when the kernel returns: to be copied before.
struct TF_AsyncOpKernelDoneCallback;
}

namespace rueda::tensorflow {

// TF_DataType; TensorFlow writes these numbers to files, so they do not change.
enum DataType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kComplex128 = 18,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
  kFloat8E5M2 = 24,
  kFloat8E4M3FN = 25,
};

// result, name without TF_, arguments
#define RUEDA_TF_FUNCTIONS(X)                                                                \
  X(TF_Status*, NewStatus, (void))                                                           \
  X(void, DeleteStatus, (TF_Status*))                                                        \
  X(void, SetStatus, (TF_Status*, int code, const char* message))                            \
  X(int, GetCode, (const TF_Status*))                                                        \
  X(const char*, Message, (const TF_Status*))                                                \
  X(TF_Tensor*, NewTensor,                                                                   \
    (int dtype, const int64_t* dims, int ndim, void* data, size_t bytes,                     \
     void (*release)(void* data, size_t bytes, void* user), void* user))                     \
  X(void, DeleteTensor, (TF_Tensor*))                                                        \
  X(int, TensorType, (const TF_Tensor*))                                                     \
  X(int, NumDims, (const TF_Tensor*))                                                        \
  X(int64_t, Dim, (const TF_Tensor*, int))                                                   \
  X(size_t, TensorByteSize, (const TF_Tensor*))                                              \
  X(void*, TensorData, (const TF_Tensor*))                                                   \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char* name))                     \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                       \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))               \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))              \
  X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                 \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction,                                      \
    (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))              \
  X(int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                    \
  X(TF_ShapeHandle*, NewShapeHandle, (void))                                                 \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                              \
  X(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))               \
  X(void, ShapeInferenceContextGetInput,                                                     \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                           \
  X(void, ShapeInferenceContextSetOutput,                                                    \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                           \
  X(void, ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))     \
  X(TF_KernelBuilder*, NewKernelBuilder,                                                     \
    (const char* op, const char* device, void* (*)(TF_OpKernelConstruction*),                \
     void (*)(void*, TF_OpKernelContext*), void (*)(void*)))                                 \
  X(TF_KernelBuilder*, NewAsyncKernelBuilder,                                                \
    (const char* op, const char* device, void* (*)(TF_OpKernelConstruction*),                \
     void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*)(void*)))  \
  X(void, RegisterKernelBuilder, (const char* name, TF_KernelBuilder*, TF_Status*))          \
  X(void, OpKernelConstruction_GetAttrSize,                                                  \
    (TF_OpKernelConstruction*, const char*, int32_t* list_size, int32_t* bytes, TF_Status*)) \
  X(void, OpKernelConstruction_GetAttrInt64,                                                 \
    (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))                           \
  X(void, OpKernelConstruction_GetAttrString,                                                \
    (TF_OpKernelConstruction*, const char*, char*, size_t, TF_Status*))                      \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))              \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                        \
  X(int64_t, GetIterId, (TF_OpKernelContext*))                                               \
  X(int, NumInputs, (TF_OpKernelContext*))                                                   \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                     \
  X(void, SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))               \
  X(TF_Tensor*, AllocateOutput,                                                              \
    (TF_OpKernelContext*, int index, int dtype, const int64_t* dims, int ndim, size_t bytes, \
     TF_Status*))

struct Functions {
#define RUEDA_TF_MEMBER(result, name, arguments) result(*name) arguments;
  RUEDA_TF_FUNCTIONS(RUEDA_TF_MEMBER)
#undef RUEDA_TF_MEMBER
};

// Filled in by find_functions().
extern Functions tf;

// Looks for them in the process; the name of one that is not there, or nullptr.
const char* find_functions();

// A TF_Status with an owner.
class Status {
 public:
  Status() : status_(tf.NewStatus()) {}
  Status(int code, const char* message) : Status() { tf.SetStatus(status_, code, message); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  ~Status() { tf.DeleteStatus(status_); }

  TF_Status* get() { return status_; }
  bool ok() const { return tf.GetCode(status_) == 0; }

 private:
  TF_Status* status_;
};

}  // namespace rueda::tensorflow
