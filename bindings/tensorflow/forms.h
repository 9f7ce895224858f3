// How tensors of TensorFlow travel.
#pragma once

#include <cstdint>

namespace rueda::tensorflow {

struct Form {
  int32_t dtype = -1;  // rueda_dtype; -1: cannot travel
  int32_t bytes = 0;   // of an element
};

// Of a TF_DataType.
Form find_form(int dtype);

}  // namespace rueda::tensorflow
