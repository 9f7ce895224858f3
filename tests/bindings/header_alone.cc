// rueda.h compiles as the first and only header, in C and in C++.
#include "rueda/rueda.h"

rueda_op header_alone_op() {
  rueda_op op = RUEDA_OP_INIT;
  const rueda_error error = RUEDA_ERROR_INIT;
  const rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  op.kind = error.code + options.rank;
  return op;
}
