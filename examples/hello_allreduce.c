/* The smallest rueda program in C: every rank gives its number, every rank gets the sum.
 *
 *   ruedarun -np 4 hello_allreduce_c        (from the build folder's examples/)
 */
#include <stdio.h>

#include "rueda/rueda.h"

int main(void) {
  rueda_context* context = NULL;
  rueda_error error = RUEDA_ERROR_INIT;
  if (rueda_init(NULL, &context, &error) != RUEDA_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }

  float value = (float)rueda_rank(context);
  const int64_t shape[1] = {1};
  rueda_op op = RUEDA_OP_INIT;
  op.kind = RUEDA_ALLREDUCE;
  op.name = "hello";
  op.input = &value;
  op.output = &value; /* in place */
  op.dtype = RUEDA_FLOAT32;
  op.shape = shape;
  op.ndim = 1;
  op.reduce_op = RUEDA_SUM;

  const int32_t code = rueda_run(context, &op, &error);
  if (code == RUEDA_OK) {
    printf("rank %d of %d: the ranks add up to %g\n", rueda_rank(context), rueda_size(context),
           value);
  } else {
    fprintf(stderr, "%s\n", error.message);
  }
  rueda_shutdown(context);
  return code == RUEDA_OK ? 0 : 1;
}
