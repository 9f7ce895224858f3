#include "bindings/tensorflow/forms.h"

#include <rueda/rueda.h>

#include "bindings/tensorflow/tensorflow_c.h"

namespace rueda::tensorflow {

Form find_form(int dtype) {
  switch (dtype) {
    case kBool: return {RUEDA_BOOL, 1, 1};
    case kInt8: return {RUEDA_INT8, 1, 1};
    case kUint8: return {RUEDA_UINT8, 1, 1};
    case kInt16:
    case kUint16: return {RUEDA_INT16, 1, 2};
    case kInt32:
    case kUint32: return {RUEDA_INT32, 1, 4};
    case kInt64:
    case kUint64: return {RUEDA_INT64, 1, 8};
    case kHalf: return {RUEDA_FLOAT16, 1, 2};
    case kBfloat16: return {RUEDA_BFLOAT16, 1, 2};
    case kFloat: return {RUEDA_FLOAT32, 1, 4};
    case kDouble: return {RUEDA_FLOAT64, 1, 8};
    case kComplex64: return {RUEDA_FLOAT32, 2, 8};
    case kComplex128: return {RUEDA_FLOAT64, 2, 16};
    case kFloat8E4M3FN: return {RUEDA_FLOAT8_E4M3FN, 1, 1};
    case kFloat8E5M2: return {RUEDA_FLOAT8_E5M2, 1, 1};
    default: return {};
  }
}

bool can_reduce(int dtype, int32_t reduce_op, bool is_scaled) {
  switch (dtype) {
    case kUint16:
    case kUint32:
    case kUint64: return !is_scaled && (reduce_op == RUEDA_SUM || reduce_op == RUEDA_PRODUCT);
    case kComplex64:
    case kComplex128: return reduce_op == RUEDA_SUM || reduce_op == RUEDA_AVERAGE;
    default: return true;
  }
}

}  // namespace rueda::tensorflow
