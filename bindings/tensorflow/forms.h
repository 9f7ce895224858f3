// How tensors of TensorFlow travel.
#pragma once

#include <cstdint>

namespace rueda::tensorflow {

// What the runtime does not name goes as what has the same bytes: pairs of floats for complex
// numbers, signed integers for unsigned ones.
struct Form {
  int32_t dtype = -1;  // rueda_dtype; -1: cannot travel
  int32_t parts = 1;   // 2: of a complex number
  int32_t bytes = 0;   // of an element, all parts of it
};

Form find_form(int dtype);

// Whether a reduction of such tensors gives the right bits in the form in which they travel.
bool can_reduce(int dtype, int32_t reduce_op, bool is_scaled);

}  // namespace rueda::tensorflow
