#include "bindings/tensorflow/forms.h"

#include <rueda/rueda.h>

#include "bindings/tensorflow/tensorflow_c.h"

namespace rueda::tensorflow {

Form find_form(int dtype) {
  switch (dtype) {
    case kBool: return {RUEDA_BOOL, 1};
    case kInt8: return {RUEDA_INT8, 1};
    case kUint8: return {RUEDA_UINT8, 1};
    case kInt16: return {RUEDA_INT16, 2};
    case kUint16: return {RUEDA_UINT16, 2};
    case kInt32: return {RUEDA_INT32, 4};
    case kUint32: return {RUEDA_UINT32, 4};
    case kInt64: return {RUEDA_INT64, 8};
    case kUint64: return {RUEDA_UINT64, 8};
    case kHalf: return {RUEDA_FLOAT16, 2};
    case kBfloat16: return {RUEDA_BFLOAT16, 2};
    case kFloat: return {RUEDA_FLOAT32, 4};
    case kDouble: return {RUEDA_FLOAT64, 8};
    case kComplex64: return {RUEDA_COMPLEX64, 8};
    case kComplex128: return {RUEDA_COMPLEX128, 16};
    case kFloat8E4M3FN: return {RUEDA_FLOAT8_E4M3FN, 1};
    case kFloat8E5M2: return {RUEDA_FLOAT8_E5M2, 1};
    default: return {};
  }
}

}  // namespace rueda::tensorflow
