/* A C program with an installed rueda: the sum over ranks, checked. */
#include <rueda/rueda.h>
#include <stdio.h>

int main(void) {
  rueda_context* context = NULL;
  rueda_error error = RUEDA_ERROR_INIT;
  if (rueda_init(NULL, &context, &error) != RUEDA_OK) {
    fprintf(stderr, "init: %s\n", error.message);
    return 1;
  }
  const int32_t rank = rueda_rank(context), size = rueda_size(context);

  double values[3] = {rank, 1.0, -2.5 * rank};
  const int64_t shape[1] = {3};
  rueda_op op = RUEDA_OP_INIT;
  op.kind = RUEDA_ALLREDUCE;
  op.name = "values";
  op.input = values;
  op.output = values;
  op.dtype = RUEDA_FLOAT64;
  op.shape = shape;
  op.ndim = 1;
  op.reduce_op = RUEDA_SUM;
  const int32_t code = rueda_run(context, &op, &error);
  rueda_shutdown(context);

  const double ranks = size * (size - 1) / 2.0;
  if (code != RUEDA_OK) fprintf(stderr, "allreduce: %s\n", error.message);
  const int right = values[0] == ranks && values[1] == size && values[2] == -2.5 * ranks;
  printf("consumer_c rank %d of %d: %s\n", rank, size, right ? "right" : "WRONG");
  return code == RUEDA_OK && right ? 0 : 1;
}
