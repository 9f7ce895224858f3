/* The C ABI from plain C99: every function, every collective, every kind of wrong argument. Alone
 * it is a job of one rank; under ruedarun -np N the same checks hold for N. Exits 0 when all hold,
 * else prints those that do not. Built twice: with today's header, and with that of the first
 * library of this RUEDA_ABI_VERSION (abi_2/). */
#define _DEFAULT_SOURCE 1 /* POSIX, and MAP_ANONYMOUS */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rueda/rueda.h"

static int failures = 0;
static int rank, size;
static rueda_context* context;

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      printf("rank %d, line %d: %s does not hold\n", rank, __LINE__, #condition); \
      ++failures;                                                                 \
    }                                                                             \
  } while (0)

/* The call gives this code, and the error says so too, with a message that contains the text. */
#define CHECK_ERROR(expected, text, call)                                                 \
  do {                                                                                    \
    rueda_error error = RUEDA_ERROR_INIT;                                                 \
    int32_t code = (call);                                                                \
    if (code != (expected) || error.code != (expected) || !strstr(error.message, text)) { \
      printf("rank %d, line %d: code %d (%s), message '%s'\n", rank, __LINE__, (int)code, \
             rueda_code_name(code), error.message);                                       \
      ++failures;                                                                         \
    }                                                                                     \
  } while (0)

static rueda_op op_of(rueda_kind kind, const char* name, void* data, const int64_t* shape,
                      int32_t ndim) {
  rueda_op op = RUEDA_OP_INIT;
  op.kind = kind;
  op.name = name;
  op.input = data;
  op.output = data;
  op.shape = shape;
  op.ndim = ndim;
  op.reduce_op = RUEDA_SUM;
  return op;
}

static void run(const rueda_op* op) { CHECK_ERROR(RUEDA_OK, "", rueda_run(context, op, &error)); }

/* Submits one operation and waits; the caller releases. */
static rueda_request* start(const rueda_op* op) {
  rueda_request* work = NULL;
  CHECK_ERROR(RUEDA_OK, "", rueda_start(context, op, 1, 0, &work, &error));
  if (work == NULL) exit(1);
  CHECK_ERROR(RUEDA_OK, "", rueda_request_wait(work, -1, &error));
  CHECK(rueda_request_test(work) == 1);
  return work;
}

static void check_digest(void) {
  /* XXH3_128bits("") as its specification gives it. */
  static const uint8_t of_nothing[16] = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
                                         0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
  const char text[] = "the quick brown fox";
  const void* parts[3];
  size_t bytes[3] = {9, 0, 10};
  uint8_t whole[16], cut[16];
  parts[0] = text, parts[1] = NULL, parts[2] = text + 9;
  rueda_digest(NULL, NULL, 0, whole);
  CHECK(memcmp(whole, of_nothing, 16) == 0);
  rueda_digest(parts, bytes, 3, cut);
  bytes[0] = 19;
  rueda_digest(parts, bytes, 1, whole);
  CHECK(memcmp(whole, cut, 16) == 0 && memcmp(whole, of_nothing, 16) != 0);
  {
    const uint64_t from[1] = {(uint64_t)(uintptr_t)text};
    char copy[19] = {0};
    void* into[1];
    into[0] = copy;
    CHECK(rueda_read_digest(-1, from, into, bytes, 1, cut) == 0);
    CHECK(rueda_read_digest(getpid(), from, into, bytes, 1, cut) == 1);
    CHECK(memcmp(copy, text, 19) == 0 && memcmp(whole, cut, 16) == 0);
  }
}

static void check_without_context(void) {
  rueda_op op = RUEDA_OP_INIT;
  rueda_request* work = NULL;
  CHECK(rueda_abi_version() == RUEDA_ABI_VERSION);
  CHECK(strcmp(rueda_version(), RUEDA_VERSION) == 0);
  CHECK(strlen(rueda_code_name(RUEDA_UNAVAILABLE)) > 0);
  CHECK(strlen(rueda_code_name(12345)) > 0);
  CHECK(rueda_rank(NULL) == -1 && rueda_size(NULL) == -1 && rueda_local_rank(NULL) == -1);
  CHECK(rueda_local_size(NULL) == -1 && rueda_cross_rank(NULL) == -1 &&
        rueda_cross_size(NULL) == -1);
  CHECK(rueda_is_homogeneous(NULL) == -1 && rueda_counter(NULL, "batches") == -1);
  CHECK(rueda_counters(NULL, NULL, 0) == -1 && rueda_counter_name(-1) == NULL);
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "init", rueda_run(NULL, &op, &error));
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "init", rueda_start(NULL, &op, 1, 0, &work, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL", rueda_init(NULL, NULL, &error));
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "init", rueda_start_timeline(NULL, "t.json", 0, &error));
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "init", rueda_stop_timeline(NULL, &error));
  CHECK(rueda_mark(NULL, "x", 0) == RUEDA_FAILED_PRECONDITION);
  CHECK(rueda_int8_quantize(NULL, NULL, NULL, 0, 0, NULL, NULL) == RUEDA_FAILED_PRECONDITION);
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL", rueda_request_wait(NULL, 1, &error));
  CHECK(rueda_request_test(NULL) == 0 && rueda_request_output(NULL, NULL, NULL, 0) == -1);
  CHECK(rueda_request_rows(NULL, NULL, 0) == -1);
  rueda_request_release(NULL);
  rueda_shutdown(NULL);
  check_digest();
  CHECK(rueda_split_rows(7, 0, 3) == 3 && rueda_split_rows(7, 1, 3) == 2 &&
        rueda_split_rows(7, 2, 3) == 2);
  CHECK(rueda_split_rows(0, 0, 3) == 0 && rueda_split_rows(-1, 0, 3) == -1);
  rueda_error why = RUEDA_ERROR_INIT;
  CHECK(rueda_check_reduction(RUEDA_UINT16, RUEDA_AVERAGE, 0.5, 1, -1, NULL) == RUEDA_OK);
  CHECK(rueda_check_reduction(RUEDA_COMPLEX64, RUEDA_MIN, 1, 1, -1, &why) ==
        RUEDA_INVALID_ARGUMENT);
  CHECK(strstr(why.message, "min of complex64 tensors is not defined: ") != NULL);
  CHECK(rueda_check_reduction(RUEDA_FLOAT8_E5M2, RUEDA_SUM, 1, 1, -1, NULL) != RUEDA_OK);
  CHECK(rueda_check_reduction(RUEDA_FLOAT8_E5M2, RUEDA_SUM, 1, 1, 0, NULL) == RUEDA_OK);
  CHECK(rueda_check_reduction(2, RUEDA_SUM, 1, 1, -1, NULL) == RUEDA_INVALID_ARGUMENT);
  CHECK(rueda_split_rows(7, 3, 3) == -1 && rueda_split_rows(7, 0, 0) == -1);
}

static void check_counters(void) {
  int64_t values[64] = {0};
  const int32_t count = rueda_counters(context, values, 64);
  int32_t i;
  CHECK(count > 10 && count < 64);
  CHECK(rueda_counters(context, NULL, 0) == count && rueda_counters(context, NULL, 1) == -1);
  for (i = 0; i < count; ++i) {
    const char* name = rueda_counter_name(i);
    CHECK(name != NULL && rueda_counter(context, name) >= values[i]);
  }
  CHECK(rueda_counter_name(count) == NULL);
  values[1] = -7;
  CHECK(rueda_counters(context, values, 1) == count && values[1] == -7);
}

static void check_place(void) {
  CHECK(rank >= 0 && rank < size);
  CHECK(rueda_local_rank(context) == rank && rueda_local_size(context) == size);
  CHECK(rueda_cross_rank(context) == 0 && rueda_cross_size(context) == 1);
  CHECK(rueda_is_homogeneous(context) == 1);
  CHECK(rueda_counter(context, "batches") >= 0 && rueda_counter(context, "no such") == -1);
  CHECK(rueda_counter(context, NULL) == -1);
  CHECK(rueda_counter(context, "recording") == 0);
  check_counters();
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "name", rueda_start_timeline(context, NULL, 0, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "name", rueda_start_timeline(context, "", 0, &error));
  CHECK(rueda_mark(context, "x", 2) == RUEDA_OK &&
        rueda_mark(context, "x", 3) == RUEDA_INVALID_ARGUMENT);
  CHECK(rueda_mark(context, NULL, 0) == RUEDA_INVALID_ARGUMENT);
  CHECK(rueda_int8_quantize(context, NULL, NULL, 0, -1, NULL, NULL) == RUEDA_INVALID_ARGUMENT);
  CHECK(rueda_int8_dequantize(context, NULL, NULL, 1, 0, NULL, NULL) == RUEDA_INVALID_ARGUMENT);
  CHECK(rueda_stop_timeline(context, NULL) == RUEDA_OK);
}

static void check_allreduce(void) {
  const int64_t shape[2] = {2, 3};
  float x[6], y[6];
  int i;
  rueda_op op = op_of(RUEDA_ALLREDUCE, "sum", x, shape, 2);
  for (i = 0; i < 6; ++i) x[i] = (float)(i + rank);
  run(&op);
  for (i = 0; i < 6; ++i) CHECK(x[i] == (float)(size * i + size * (size - 1) / 2));

  op = op_of(RUEDA_ALLREDUCE, NULL, x, shape, 2);
  op.reduce_op = RUEDA_AVERAGE;
  op.output = y;
  for (i = 0; i < 6; ++i) x[i] = 4.0f;
  run(&op);
  for (i = 0; i < 6; ++i) CHECK(x[i] == 4.0f && y[i] == 4.0f);

  op = op_of(RUEDA_ALLREDUCE, "max", x, shape, 2);
  op.reduce_op = RUEDA_MAX;
  x[0] = (float)rank;
  run(&op);
  CHECK(x[0] == (float)(size - 1));

  op = op_of(RUEDA_ALLREDUCE, "scaled", x, shape, 2);
  op.prescale = 0.5;
  op.postscale = 4;
  for (i = 0; i < 6; ++i) x[i] = 1.0f;
  run(&op);
  for (i = 0; i < 6; ++i) CHECK(x[i] == (float)(2 * size));
}

static void check_owned_outputs(void) {
  int64_t shape[2] = {0, 2}, extents[4] = {-1, -1, -1, -1}, rows[64];
  int32_t data[256];
  void* out = NULL;
  rueda_op op;
  rueda_request* work;
  int r, i, total = size * (size + 1) / 2;

  shape[0] = rank + 1; /* rank r sends r + 1 rows of two */
  for (i = 0; i < 256; ++i) data[i] = rank;
  op = op_of(RUEDA_ALLGATHER, "gather", data, shape, 2);
  op.dtype = RUEDA_INT32;
  op.output = NULL;
  work = start(&op);
  CHECK(rueda_request_output(work, &out, extents, 4) == 2);
  CHECK(extents[0] == total && extents[1] == 2 && extents[2] == -1);
  CHECK(rueda_request_rows(work, rows, 64) == size);
  for (r = 0; r < size; ++r) CHECK(rows[r] == r + 1);
  CHECK(out != NULL && ((int32_t*)out)[0] == 0 && ((int32_t*)out)[2 * total - 1] == size - 1);
  extents[0] = extents[1] = -1;
  CHECK(rueda_request_output(work, NULL, extents, 1) == 2 && extents[0] == total &&
        extents[1] == -1);
  CHECK(rueda_request_output(work, NULL, NULL, -5) == 2);
  rueda_request_release(work);

  shape[0] = size; /* alltoall: one row for each */
  for (i = 0; i < 2 * size; ++i) data[i] = 100 * rank + i / 2;
  op = op_of(RUEDA_ALLTOALL, "exchange", data, shape, 2);
  op.dtype = RUEDA_INT32;
  op.output = NULL;
  work = start(&op);
  CHECK(rueda_request_output(work, &out, extents, 4) == 2 && extents[0] == size);
  for (r = 0; r < size; ++r) CHECK(((int32_t*)out)[2 * r] == 100 * r + rank);
  rueda_request_release(work);

  for (r = 0; r < size; ++r) rows[r] = r == 0 ? size : 0; /* everything to rank 0 */
  op.name = "to rank 0";
  op.splits = rows;
  op.splits_count = size;
  work = start(&op);
  CHECK(rueda_request_output(work, &out, extents, 4) == 2 &&
        extents[0] == (rank == 0 ? size * size : 0));
  CHECK(rueda_request_rows(work, NULL, 0) == size);
  rueda_request_release(work);

  shape[0] = 2 * size + 1; /* reducescatter: rank 0 has one row more */
  for (i = 0; i < 2 * (2 * size + 1); ++i) data[i] = i;
  op = op_of(RUEDA_REDUCESCATTER, "scatter", data, shape, 2);
  op.dtype = RUEDA_INT32;
  op.output = NULL;
  work = start(&op);
  CHECK(rueda_request_output(work, &out, extents, 4) == 2);
  CHECK(extents[0] == rueda_split_rows(shape[0], rank, size));
  CHECK(((int32_t*)out)[0] == size * (rank == 0 ? 0 : 2 * (2 * rank + 1)));
  rueda_request_release(work);
}

static void check_others(void) {
  const int64_t shape[1] = {3};
  const int64_t none[1] = {0};
  double x[3] = {0, 0, 0}, y[3] = {0, 0, 0};
  rueda_op op = op_of(RUEDA_BROADCAST, "from the last", x, shape, 1);
  rueda_op two[2];
  rueda_request* works[2] = {NULL, NULL};
  op.dtype = RUEDA_FLOAT64;
  op.root = size - 1;
  if (rank == op.root) x[2] = 3;
  run(&op);
  CHECK(x[2] == 3);

  op = op_of(RUEDA_BARRIER, NULL, NULL, NULL, 0);
  run(&op);

  op = op_of(RUEDA_ALLREDUCE, "empty", NULL, none, 1); /* no elements, no memory */
  run(&op);
  op = op_of(RUEDA_ALLREDUCE, "scalar", x, NULL, 0);
  op.dtype = RUEDA_FLOAT64;
  run(&op);

  /* a ring of sends and receives; alone, to itself */
  x[0] = rank;
  two[0] = op_of(RUEDA_SEND, NULL, x, shape, 1);
  two[0].peer = (rank + 1) % size;
  two[1] = op_of(RUEDA_RECV, NULL, y, shape, 1);
  two[1].peer = (rank + size - 1) % size;
  two[0].tag = two[1].tag = 7;
  two[0].dtype = two[1].dtype = RUEDA_FLOAT64;
  CHECK_ERROR(RUEDA_OK, "", rueda_start(context, two, 2, 0, works, &error));
  CHECK(rueda_request_wait(works[0], 60, NULL) == RUEDA_OK &&
        rueda_request_wait(works[1], 60, NULL) == RUEDA_OK);
  CHECK(y[0] == two[1].peer);
  rueda_request_release(works[0]);
  rueda_request_release(works[1]);

  /* a group: ready together */
  two[0] = op_of(RUEDA_ALLREDUCE, "group.a", x, shape, 1);
  two[1] = op_of(RUEDA_ALLREDUCE, "group.b", y, shape, 1);
  two[0].dtype = two[1].dtype = RUEDA_FLOAT64;
  CHECK_ERROR(RUEDA_OK, "", rueda_start(context, two, 2, 1, works, &error));
  CHECK(rueda_request_wait(works[1], 60, NULL) == RUEDA_OK &&
        rueda_request_wait(works[0], 60, NULL) == RUEDA_OK);
  rueda_request_release(works[0]);
  rueda_request_release(works[1]);
  CHECK_ERROR(RUEDA_OK, "",
              rueda_start(context, NULL, 0, 0, NULL, &error)); /* nothing is no error */
}

static void check_wrong_arguments(void) {
  const int64_t shape[2] = {2, 2}, negative[1] = {-1}, huge[2] = {INT64_MAX, 4};
  const int64_t splits[2] = {-1, 1};
  float x[4] = {0};
  const rueda_op good = op_of(RUEDA_ALLREDUCE, "good", x, shape, 2);
  rueda_op op = good;
  rueda_request* work = (rueda_request*)x;
#define REFUSED(text)                                                         \
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, text, rueda_run(context, &op, &error)); \
  op = good
  op.kind = 99;
  REFUSED("kind 99");
  op.kind = -1;
  REFUSED("kind -1");
  op.dtype = 2;
  REFUSED("dtype 2");
  op.dtype = 1000;
  REFUSED("dtype 1000");
  op.reduce_op = 9;
  REFUSED("reduce_op 9");
  op.reduce_op = RUEDA_BITWISE_AND;
  REFUSED("not defined");
  op.name = "";
  REFUSED("empty");
  op.shape = NULL;
  REFUSED("shape");
  op.ndim = -1;
  REFUSED("shape");
  op.input = NULL;
  REFUSED("no input");
  op.output = NULL;
  REFUSED("no output");
  op.shape = negative, op.ndim = 1;
  REFUSED("negative extent");
  op.shape = huge;
  REFUSED("too many elements");
  op.kind = RUEDA_BROADCAST, op.root = size;
  REFUSED("invalid root rank");
  op.kind = RUEDA_BROADCAST, op.root = -1;
  REFUSED("invalid root rank");
  op.kind = RUEDA_SEND, op.peer = size;
  REFUSED("no rank");
  op.kind = RUEDA_REDUCESCATTER, op.reduce_op = RUEDA_ADASUM;
  REFUSED("no ADASUM");
  op.kind = RUEDA_ALLTOALL, op.splits_count = 1;
  REFUSED("splits");
  op.kind = RUEDA_ALLTOALL, op.splits = splits, op.splits_count = -1;
  REFUSED("splits");
  op.kind = RUEDA_ALLTOALL, op.splits = splits, op.splits_count = size == 2 ? 2 : 2;
  CHECK(rueda_run(context, &op, NULL) == RUEDA_INVALID_ARGUMENT);
  op = good;
  op.dtype = RUEDA_INT32, op.prescale = 0.5;
  CHECK(rueda_run(context, &op, NULL) == RUEDA_OK ||
        rueda_run(context, &op, NULL) == RUEDA_INVALID_ARGUMENT);
  op = good;
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL", rueda_run(context, NULL, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL", rueda_start(context, NULL, 1, 0, &work, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL", rueda_start(context, &good, 1, 0, NULL, &error));
#undef REFUSED
}

/* The result of a change of the process sets; text: of its error. */
static int32_t change_of(int32_t submitted, rueda_request* work, const char* text) {
  const int32_t wanted = text == NULL ? RUEDA_OK : RUEDA_INVALID_ARGUMENT;
  int32_t result;
  CHECK(submitted == RUEDA_OK);
  if (submitted != RUEDA_OK) exit(1);
  CHECK_ERROR(wanted, text == NULL ? "" : text, rueda_request_wait(work, -1, &error));
  result = (int32_t)rueda_request_result(work);
  rueda_request_release(work);
  return result;
}

static void check_sets_and_join(void) {
  const int64_t shape[1] = {1};
  int32_t ranks[2] = {0, 0}, ids[2] = {-1, -1}, id;
  float x[1] = {1};
  rueda_op op = op_of(RUEDA_ALLREDUCE, "in a set", x, shape, 1);
  rueda_op join = op_of(RUEDA_JOIN, NULL, NULL, NULL, 0);
  rueda_request* work = NULL;
  CHECK(rueda_process_sets(context, ids, 2) == 1 && ids[0] == 0 && ids[1] == -1);
  CHECK(rueda_process_set_ranks(context, 0, NULL, 0) == size);
  CHECK(rueda_process_set_ranks(context, 1, NULL, 0) == -1 &&
        rueda_process_set_ranks(context, -1, NULL, 0) == -1);
  id = rueda_add_process_set(context, ranks, 2, 0, &work, NULL);
  CHECK(change_of(id, work, "rank 0 twice") == -1);
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL",
              rueda_add_process_set(context, NULL, 1, 0, &work, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL",
              rueda_add_process_set(context, ranks, 1, 0, NULL, &error));
  if (size > 1) {
    id = rueda_add_process_set(context, ranks, 1, 0, &work, NULL);
    CHECK(change_of(id, work, NULL) == 1);
    CHECK(rueda_process_set_ranks(context, 1, ids, 2) == 1 && ids[0] == 0);
    op.process_set = 1;
    if (rank == 0) {
      run(&op);
      CHECK(x[0] == 1);
    } else {
      CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "is not a member", rueda_run(context, &op, &error));
    }
    id = rueda_remove_process_set(context, 1, 0, &work, NULL);
    CHECK(change_of(id, work, NULL) == -1);
  }
  op.process_set = 1;
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "does not exist", rueda_run(context, &op, &error));
  work = start(&join);
  CHECK(rueda_request_result(work) >= 0 && rueda_request_result(work) < size);
  rueda_request_release(work);
  CHECK(rueda_request_result(NULL) == -1);
}

/* Groups: by the order of calls, rows in the order of the list. */
static void check_groups(void) {
  const int64_t shape[1] = {1};
  int32_t ranks[8], group = -1, i;
  int64_t rows[8];
  float x[1], all[8];
  rueda_op op = op_of(RUEDA_ALLREDUCE, NULL, x, shape, 1);
  rueda_op gather = op_of(RUEDA_ALLGATHER, NULL, x, shape, 1);
  rueda_op bad;
  rueda_request* work = NULL;
  if (size > 8) return;
  for (i = 0; i < size; ++i) ranks[i] = size - 1 - i;
  for (i = 0; i < size; ++i) rows[i] = 1;
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no key",
              rueda_open_group(context, NULL, ranks, size, 0, &group, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no ranks",
              rueda_open_group(context, "k", ranks, 0, 0, &group, &error));
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "init",
              rueda_open_group(NULL, "k", ranks, size, 0, &group, &error));
  CHECK(group == -1);
  CHECK_ERROR(RUEDA_OK, "", rueda_open_group(context, "k", ranks, size, 0, &group, &error));
  CHECK(group >= RUEDA_FIRST_GROUP);
  CHECK(rueda_process_set_ranks(context, group, ranks, 8) == size && ranks[0] == size - 1);
  op.process_set = gather.process_set = group;
  x[0] = (float)rank;
  run(&op);
  CHECK(x[0] == (float)(size * (size - 1) / 2));
  x[0] = (float)rank;
  gather.output = all;
  gather.output_rows = size;
  gather.output_splits = rows;
  gather.output_splits_count = size;
  work = start(&gather);
  for (i = 0; i < size; ++i) CHECK(all[i] == (float)ranks[i]);
  CHECK(rueda_request_rows(work, NULL, 0) == size);
  rueda_request_release(work);
  op.kind = RUEDA_REDUCE; /* on the root alone */
  op.root = 0;
  x[0] = 1;
  run(&op);
  CHECK(x[0] == (rank == 0 ? (float)size : 1.0f));
  op.kind = RUEDA_ALLREDUCE;
  work = NULL;
  CHECK_ERROR(RUEDA_OK, "", rueda_request_create(context, &op, 1, 0, &work, &error));
  x[0] = 2;
  CHECK_ERROR(RUEDA_OK, "", rueda_request_run(work, x, x, NULL, -1, &error));
  CHECK(x[0] == (float)(2 * size));
  rueda_request_release(work);
  bad = op;
  bad.name = "x";
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "have no names", rueda_run(context, &bad, &error));
  bad = gather;
  bad.output_splits = NULL;
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "output_splits", rueda_run(context, &bad, &error));
  bad = op;
  bad.kind = 9; /* none of rueda_kind */
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "kind 9", rueda_run(context, &bad, &error));
  bad = op_of(RUEDA_REDUCE, "reduce", x, shape, 1);
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "groups alone", rueda_run(context, &bad, &error));
  bad = op_of(RUEDA_BARRIER, NULL, NULL, NULL, 0);
  run(&bad); /* an abort would end what another member has not finished yet */
  CHECK_ERROR(RUEDA_OK, "", rueda_abort_group(context, group, "enough", &error));
  CHECK_ERROR(RUEDA_CANCELLED, "has ended the group: enough", rueda_run(context, &op, &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_close_group(context, group, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no group", rueda_abort_group(context, group, NULL, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no group", rueda_close_group(context, group, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no group", rueda_run(context, &op, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no open group", rueda_close_group(context, 0, &error));
}

/* All or none: the second is wrong, so the first's name is free afterwards. */
static void check_all_or_none(void) {
  const int64_t shape[1] = {4};
  float x[4] = {1, 1, 1, 1};
  rueda_request* works[2] = {NULL, NULL};
  rueda_op two[2];
  two[0] = op_of(RUEDA_ALLREDUCE, "pair", x, shape, 1);
  two[1] = two[0];
  two[1].name = "other";
  two[1].dtype = 77;
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "dtype 77", rueda_start(context, two, 2, 0, works, &error));
  CHECK(works[0] == NULL && works[1] == NULL);
  two[1] = two[0]; /* one name twice */
  CHECK_ERROR(RUEDA_ALREADY_EXISTS, "pair", rueda_start(context, two, 2, 0, works, &error));
  run(&two[0]);
}

/* What older and newer programs send: shorter structs keep defaults, longer ones are refused with a
 * reason. */
static void check_struct_sizes(void) {
  const int64_t shape[1] = {4};
  float x[4] = {1, 1, 1, 1};
  struct {
    rueda_op op;
    char more[64];
  } newer;
  struct {
    size_t struct_size;
    int32_t code, lost_rank, reserved;
    char message[12];
  } small = {0, 0, 0, 0, {0}};
  rueda_error sealed = RUEDA_ERROR_INIT;
  rueda_op op = op_of(RUEDA_ALLREDUCE, "older", x, shape, 1);
  op.struct_size = offsetof(rueda_op, prescale);
  op.prescale = op.postscale = 1e30; /* behind its end: must not be read */
  run(&op);
  CHECK(x[0] == (float)size);

  op.struct_size = 4;
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "struct_size is 4", rueda_run(context, &op, &error));
  op.struct_size = 0;
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "struct_size is 0", rueda_run(context, &op, &error));
  memset(&newer, 0, sizeof(newer));
  newer.op = op_of(RUEDA_ALLREDUCE, "newer", x, shape, 1);
  newer.op.struct_size = sizeof(newer);
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "newer header", rueda_run(context, &newer.op, &error));

  /* an error struct with little room: cut and terminated, nothing behind it is written */
  small.struct_size = offsetof(rueda_error, message) + 6;
  memset(small.message, '#', sizeof(small.message));
  op.struct_size = 0;
  CHECK(rueda_run(context, &op, (rueda_error*)(void*)&small) == RUEDA_INVALID_ARGUMENT);
  CHECK(small.code == RUEDA_INVALID_ARGUMENT && memcmp(small.message, "rueda\0######", 12) == 0);
  /* and one of size 0 is left alone */
  sealed.struct_size = 0;
  sealed.code = 4711;
  CHECK(rueda_run(context, &op, &sealed) == RUEDA_INVALID_ARGUMENT && sealed.code == 4711);
}

/* A receive that nothing matches yet: not ended, no output, a wait that says so; then the message
 * comes. */
static void check_waiting(void) {
  const int64_t shape[1] = {1};
  float x[1] = {5}, y[1] = {0};
  rueda_request* work = NULL;
  rueda_op recv = op_of(RUEDA_RECV, NULL, y, shape, 1);
  rueda_op send = op_of(RUEDA_SEND, NULL, x, shape, 1);
  recv.peer = send.peer = rank;
  recv.tag = send.tag = 99;
  CHECK_ERROR(RUEDA_OK, "", rueda_start(context, &recv, 1, 0, &work, &error));
  CHECK_ERROR(RUEDA_DEADLINE_EXCEEDED, "has not ended", rueda_request_wait(work, 0, &error));
  CHECK_ERROR(RUEDA_DEADLINE_EXCEEDED, "has not ended", rueda_request_wait(work, 0.01, &error));
  CHECK(rueda_request_test(work) == 0 && rueda_request_output(work, NULL, NULL, 0) == -1);
  CHECK(rueda_request_rows(work, NULL, 0) == -1);
  run(&send);
  CHECK(rueda_request_wait(work, NAN, NULL) == RUEDA_OK && y[0] == 5);
  rueda_request_release(work);

  /* in one call: what goes on when the deadline has passed is the caller's */
  CHECK_ERROR(RUEDA_DEADLINE_EXCEEDED, "has not ended",
              rueda_start_and_wait(context, &recv, 0.01, &work, &error));
  y[0] = 0;
  run(&send);
  CHECK(rueda_request_wait(work, 60, NULL) == RUEDA_OK && y[0] == 5);
  rueda_request_release(work);
}

/* Of a call that is refused for one of its names the others count nowhere either. */
static void check_refused_beside_a_name_in_flight(void) {
  const int64_t shape[1] = {3};
  float x[3] = {1, 1, 1}, y[3] = {1, 1, 1};
  const rueda_op barrier = op_of(RUEDA_BARRIER, "refused", NULL, NULL, 0);
  rueda_request* held = NULL;
  rueda_request* requests[2] = {NULL, NULL};
  int group;
  rueda_op two[2];
  two[0] = op_of(RUEDA_ALLREDUCE, NULL, x, shape, 1);
  two[1] = op_of(RUEDA_ALLREDUCE, "held", y, shape, 1);
  if (rank == 0) CHECK_ERROR(RUEDA_OK, "", rueda_start(context, &two[1], 1, 0, &held, &error));
  if (rank == 0 && size > 1) {
    for (group = 0; group < 2; ++group) {
      CHECK_ERROR(RUEDA_ALREADY_EXISTS, "'held'",
                  rueda_start(context, two, 2, group, requests, &error));
      CHECK(requests[0] == NULL && requests[1] == NULL);
    }
  }
  run(&barrier);
  if (rank != 0) CHECK_ERROR(RUEDA_OK, "", rueda_start(context, &two[1], 1, 0, &held, &error));
  CHECK(rueda_request_wait(held, 60, NULL) == RUEDA_OK && y[0] == (float)size);
  rueda_request_release(held);
}

/* What one rank alone gets wrong counts nowhere: the next one without a name is everybody's. */
static void check_refused_without_a_name(void) {
  const int64_t shape[1] = {3};
  float x[3] = {1, 1, 1};
  const rueda_op sum = op_of(RUEDA_ALLREDUCE, NULL, x, shape, 1);
  rueda_op two[2];
  rueda_request* requests[2] = {NULL, NULL};
  two[0] = two[1] = sum;
  two[1].reduce_op = 99;
  if (rank == 0) {
    CHECK(rueda_start(context, two, 2, 0, requests, NULL) == RUEDA_INVALID_ARGUMENT);
    two[1].reduce_op = sum.reduce_op;
    two[1].dtype = RUEDA_FLOAT8_E4M3FN;
    CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "allreduce 'noname'",
                rueda_start(context, two, 2, 0, requests, &error));
    CHECK(requests[0] == NULL);
    CHECK(rueda_run(context, &two[1], NULL) == RUEDA_INVALID_ARGUMENT);
    CHECK(rueda_request_create(context, two, 2, 0, requests, NULL) == RUEDA_INVALID_ARGUMENT);
  }
  check_refused_beside_a_name_in_flight();
  run(&sum);
  CHECK(x[0] == (float)size);
  CHECK_ERROR(RUEDA_OK, "", rueda_request_create(context, &sum, 1, 0, requests, &error));
  x[0] = 1;
  CHECK_ERROR(RUEDA_OK, "", rueda_request_run(requests[0], x, x, NULL, 60, &error));
  CHECK(x[0] == (float)size);
  rueda_request_release(requests[0]);
}

/* Blocking, with a result that the request owns. */
static void check_start_and_wait(void) {
  const int64_t shape[1] = {2};
  float x[2];
  void* out = NULL;
  int64_t extents[1] = {0};
  int round;
  rueda_request* request = NULL;
  rueda_op op = op_of(RUEDA_ALLGATHER, NULL, x, shape, 1);
  op.output = NULL;
  for (round = 0; round < 40; ++round) {
    x[0] = x[1] = (float)(rank + round);
    CHECK_ERROR(RUEDA_OK, "", rueda_start_and_wait(context, &op, 60, &request, &error));
    CHECK(rueda_request_test(request) == 1);
    CHECK(rueda_request_output(request, &out, extents, 1) == 1 && extents[0] == 2 * size);
    CHECK(((float*)out)[2 * size - 1] == (float)(size - 1 + round));
    rueda_request_release(request);
  }
  /* what is wrong at once gives no request; what the ranks find wrong gives one that has failed */
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL", rueda_start_and_wait(context, &op, 60, NULL, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL",
              rueda_start_and_wait(context, NULL, 60, &request, &error));
  op.kind = 99;
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "kind 99",
              rueda_start_and_wait(context, &op, 60, &request, &error));
  CHECK(request == NULL);
  op = op_of(RUEDA_ALLTOALL, "no rows", x, NULL, 0);
  op.output = NULL;
  CHECK(rueda_start_and_wait(context, &op, 60, &request, NULL) != RUEDA_OK);
  CHECK(request != NULL && rueda_request_test(request) == 1);
  CHECK(rueda_request_output(request, NULL, NULL, 0) == -1);
  rueda_request_release(request);
}

static void count(void* user) { __atomic_fetch_add((int*)user, 1, __ATOMIC_SEQ_CST); }

static void release(void* user) { rueda_request_release((rueda_request*)user); }

static int readable(int fd) {
  struct pollfd asked = {0, POLLIN, 0};
  asked.fd = fd;
  return poll(&asked, 1, 0) == 1;
}

/* One that waits in a callback would hold up what it waits for; one that asks does not. */
static int32_t codes_in_callback[3], other_has_ended = -1;
static rueda_request *other_request, *persistent_request, *not_started;
static void wait_for_other(void* user) {
  float x[3] = {1, 2, 3};
  rueda_op op = *(const rueda_op*)user;
  other_has_ended = rueda_request_test(other_request);
  codes_in_callback[0] = rueda_request_wait(other_request, -1, NULL);
  codes_in_callback[1] = rueda_request_run(persistent_request, x, x, NULL, -1, NULL);
  codes_in_callback[2] = rueda_start_and_wait(context, &op, -1, &not_started, NULL);
  rueda_shutdown(context);        /* ignored */
  rueda_context_release(context); /* the last one: ignored */
}

/* One that has ended may be asked, waited for, read and released, also by its own callback. */
struct own_end {
  rueda_request* request;
  int32_t has_ended, code, dimensions;
  float first;
  int told;
};
static void read_own(void* user) {
  struct own_end* own = (struct own_end*)user;
  void* data = NULL;
  own->has_ended = rueda_request_test(own->request);
  own->code = rueda_request_wait(own->request, -1, NULL);
  own->dimensions = rueda_request_output(own->request, &data, NULL, 0);
  if (data != NULL) own->first = *(const float*)data;
  rueda_request_release(own->request);
  __atomic_store_n(&own->told, 1, __ATOMIC_SEQ_CST);
}

static void check_own_end(void) {
  const int64_t shape[1] = {1};
  float x[1] = {2};
  int round;
  for (round = 0; round < 20; ++round) {
    struct own_end own = {NULL, -1, -1, -1, 0, 0};
    rueda_op op = op_of(RUEDA_ALLREDUCE, "own end", x, shape, 1);
    x[0] = 2;
    CHECK_ERROR(RUEDA_OK, "", rueda_start(context, &op, 1, 0, &own.request, &error));
    CHECK_ERROR(RUEDA_OK, "", rueda_request_on_end(own.request, read_own, &own, &error));
    while (!__atomic_load_n(&own.told, __ATOMIC_SEQ_CST)) continue;
    CHECK(own.has_ended == 1 && own.code == RUEDA_OK);
    CHECK(own.dimensions == 1 && own.first == 2.0f * (float)size);
  }
}

/* Each end once, of any kind; what was never started, has been told or is NULL is passed over. */
static void check_wait_any(void) {
  const int64_t shape[1] = {3};
  float x[3] = {1, 2, 3}, y[3] = {0};
  int64_t at = 7;
  int seen = 0;
  rueda_request* all[4] = {NULL, NULL, NULL, NULL};
  rueda_op op = op_of(RUEDA_ALLREDUCE, NULL, NULL, shape, 1), once = op;
  CHECK_ERROR(RUEDA_OK, "", rueda_request_wait_any(NULL, 0, -1, &at, &error));
  CHECK(at == -1);
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "index", rueda_request_wait_any(all, 4, -1, NULL, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no requests",
              rueda_request_wait_any(NULL, 1, -1, &at, &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_request_create(context, &op, 1, 0, &all[1], &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_request_wait_any(all, 4, 60, &at, &error));
  CHECK(at == -1); /* never started */
  once.input = x;
  once.output = x;
  CHECK_ERROR(RUEDA_OK, "", rueda_start(context, &once, 1, 0, &all[2], &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_request_start(all[1], x, y, NULL, &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_request_wait(all[1], 60, &error)); /* told by this */
  CHECK_ERROR(RUEDA_OK, "", rueda_request_wait_any(all, 4, 60, &at, &error));
  CHECK(at == 2);
  CHECK_ERROR(RUEDA_OK, "", rueda_request_start(all[1], y, y, NULL, &error));
  for (; rueda_request_wait_any(all, 4, 60, &at, NULL) == RUEDA_OK && at >= 0; ++seen)
    CHECK(at == 1);
  CHECK(seen == 1 && at == -1);
  rueda_request_release(all[1]);
  rueda_request_release(all[2]);
}

/* All that a request can do, started once and again and again. */
static void check_requests(void) {
  const int64_t shape[1] = {3};
  float x[3] = {1, 2, 3}, y[3] = {0}, z[1] = {0};
  int ended = 0, round;
  int32_t fd = -1, same = -1;
  rueda_request *sum = NULL, *pair[2] = {NULL, NULL}, *recv = NULL;
  rueda_op op = op_of(RUEDA_ALLREDUCE, NULL, NULL, shape, 1), two[2];
  CHECK_ERROR(RUEDA_OK, "", rueda_request_create(context, &op, 1, 0, &sum, &error));
  CHECK(rueda_request_test(sum) == 1); /* never started */
  CHECK_ERROR(RUEDA_OK, "", rueda_request_event_fd(sum, &fd, &error));
  CHECK(readable(fd) && rueda_request_event_fd(sum, &same, NULL) == RUEDA_OK && same == fd);
  for (round = 1; round <= 20; ++round) {
    CHECK_ERROR(RUEDA_OK, "", rueda_request_start(sum, x, y, NULL, &error));
    CHECK_ERROR(RUEDA_OK, "", rueda_request_on_end(sum, count, &ended, &error));
    CHECK_ERROR(RUEDA_OK, "", rueda_request_wait(sum, 60, &error));
    CHECK(y[2] == 3.0f * (float)size);
    CHECK_ERROR(RUEDA_OK, "", rueda_request_run(sum, x, y, NULL, 60, &error));
  }
  while (!readable(fd)) continue; /* told after the waiting thread may have gone on */
  CHECK(rueda_request_output(sum, NULL, NULL, 0) == 1);
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no input", rueda_request_start(sum, NULL, y, NULL, &error));
  CHECK_ERROR(RUEDA_UNIMPLEMENTED, "taken back", rueda_request_cancel(sum, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "callback", rueda_request_on_end(sum, NULL, NULL, &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_request_on_end(sum, release, sum, &error)); /* at once */
  while (__atomic_load_n(&ended, __ATOMIC_SEQ_CST) < 20) continue;

  /* a persistent group; and what is started once is started once */
  two[0] = two[1] = op_of(RUEDA_ALLREDUCE, "again.0", NULL, shape, 1);
  two[1].name = "again.1";
  CHECK_ERROR(RUEDA_OK, "", rueda_request_create(context, two, 2, 1, pair, &error));
  for (round = 0; round < 3; ++round) {
    CHECK_ERROR(RUEDA_OK, "", rueda_request_start(pair[1], x, y, NULL, &error));
    CHECK_ERROR(RUEDA_OK, "", rueda_request_run(pair[0], x, x, NULL, 60, &error));
    CHECK_ERROR(RUEDA_OK, "", rueda_request_wait(pair[1], 60, &error));
    x[0] = 1, x[1] = 2, x[2] = 3;
  }
  CHECK(__atomic_load_n(&ended, __ATOMIC_SEQ_CST) == 20); /* once each */
  rueda_request_release(pair[0]);
  rueda_request_release(pair[1]);
  op = op_of(RUEDA_RECV, NULL, z, shape, 1);
  op.peer = rank, op.tag = 5;
  CHECK_ERROR(RUEDA_UNIMPLEMENTED, "persistent",
              rueda_request_create(context, &op, 1, 0, &recv, &error));
  op = op_of(RUEDA_ALLREDUCE, "once", x, shape, 1);
  recv = start(&op);
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "once", rueda_request_start(recv, x, x, NULL, &error));
  rueda_request_release(recv);

  /* a callback may not wait for what is under way */
  op = op_of(RUEDA_RECV, NULL, z, NULL, 0);
  op.peer = rank, op.tag = 6;
  CHECK_ERROR(RUEDA_OK, "", rueda_start(context, &op, 1, 0, &other_request, &error));
  op = op_of(RUEDA_ALLREDUCE, "calls back", x, shape, 1);
  recv = start(&op);
  op = op_of(RUEDA_ALLREDUCE, "again.2", NULL, shape, 1);
  CHECK_ERROR(RUEDA_OK, "", rueda_request_create(context, &op, 1, 0, &persistent_request, &error));
  op = op_of(RUEDA_ALLREDUCE, "not started", x, shape, 1);
  CHECK_ERROR(RUEDA_OK, "", rueda_request_on_end(recv, wait_for_other, &op, &error));
  for (round = 0; round < 3; ++round) CHECK(codes_in_callback[round] == RUEDA_FAILED_PRECONDITION);
  CHECK(other_has_ended == 0 && not_started == NULL && rueda_rank(context) == rank);
  rueda_request_release(persistent_request);
  rueda_request_release(recv);
  op = op_of(RUEDA_SEND, NULL, x, NULL, 0);
  op.peer = rank, op.tag = 6;
  run(&op);
  CHECK_ERROR(RUEDA_OK, "", rueda_request_wait(other_request, 60, &error));
  rueda_request_release(other_request);
}

/* What others have made becomes memory of rueda_alloc. */
static void check_second_place(rueda_op op) {
  const size_t bytes = 100000 * sizeof(float);
  void* memory = NULL;
  float* there;
  size_t i, wrong = 0;
  CHECK_ERROR(RUEDA_OK, "", rueda_alloc_uncleared(context, bytes, &memory, &error));
  there = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == NULL || there == MAP_FAILED) exit(1);
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no block", rueda_map_memory(there, bytes, there, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "page", rueda_map_memory(memory, bytes, there + 1, &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_map_memory(memory, bytes, there, &error));
  for (i = 0; i < 100000; ++i) there[i] = (float)rank;
  op.input = op.output = memory;
  op.name = "at a second place";
  run(&op);
  for (i = 0; i < 100000; ++i) wrong += there[i] != (float)(size * (size - 1) / 2);
  CHECK(wrong == 0);
  munmap(there, bytes);
  rueda_free(memory);
}

/* Rank 0's memory is all ranks'. */
static void check_peer_memory(void) {
  const size_t bytes = 100000;
  void *memory = NULL, *of_root = NULL, *none = NULL;
  uint64_t place = 0;
  int64_t shape[1] = {1};
  int32_t here = 0;
  size_t i, wrong = 0;
  rueda_op op;
  CHECK_ERROR(RUEDA_OK, "", rueda_alloc(context, bytes, &memory, &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_memory_place(memory, &place, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "rueda_alloc", rueda_memory_place(&place, &place, &error));
  op = op_of(RUEDA_BROADCAST, "place", &place, shape, 1);
  op.dtype = RUEDA_INT64;
  run(&op);
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no rank",
              rueda_peer_memory(context, size, place, bytes, &of_root, &error));
  CHECK(of_root == NULL);
  if (rueda_peer_memory(context, 0, place, bytes, &of_root, NULL) == RUEDA_OK) {
    CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no such place",
                rueda_peer_memory(context, 0, UINT64_MAX - 10, bytes, &none, &error));
    CHECK_ERROR(RUEDA_OK, "", rueda_peer_memory(context, 0, place, bytes, &of_root, &error));
    here = 1;
    for (i = (size_t)rank; i < bytes; i += (size_t)size)
      ((unsigned char*)of_root)[i] = (unsigned char)(i + 1);
  }
  op = op_of(RUEDA_BARRIER, "all have written", NULL, NULL, 0);
  run(&op);
  if (here) {
    for (i = 0; i < bytes; ++i) wrong += ((unsigned char*)of_root)[i] != (unsigned char)(i + 1);
    CHECK(wrong == 0);
  }
  op.name = "all have read";
  run(&op);
  place = 7;
  CHECK(rueda_compare_exchange(&place, 6, 8) == 7 && place == 7);
  CHECK(rueda_compare_exchange(&place, 7, 8) == 7 && place == 8);
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "libno_such_library.so",
              rueda_lend_memory("libno_such_library.so", &error));
  rueda_lend_blocks(1 << 20, 1);
  rueda_lend_begin();
  rueda_lend_end();
  rueda_free(memory);
}

/* Counted: it stays as long as somebody uses it, and says that the rank has left. */
static void check_left(void) {
  rueda_request* request = NULL;
  rueda_op op = op_of(RUEDA_BARRIER, NULL, NULL, NULL, 0);
  CHECK(rueda_context_retain(context) == context);
  rueda_context_release(context);
  CHECK(rueda_rank(context) == -1 && rueda_counter(context, "batches") == -1);
  CHECK(rueda_process_sets(context, NULL, 0) == -1 && rueda_call_site(context, "x") == 0);
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "shut down", rueda_run(context, &op, &error));
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "shut down",
              rueda_start(context, &op, 1, 0, &request, &error));
  CHECK(request == NULL);
  rueda_shutdown(context); /* again: nothing */
}

/* Memory that the host's ranks share: zeroed, aligned, usable by collectives, kept over
 * shutdown. */
static unsigned char* check_memory(void) {
  const int64_t shape[1] = {100000};
  const size_t bytes = 100000 * sizeof(float);
  void* none = &none;
  void* small = NULL;
  void* memory = NULL;
  float* x;
  size_t i, wrong = 0;
  rueda_op op;
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "NULL", rueda_alloc(context, 1, NULL, &error));
  CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "init", rueda_alloc(NULL, 1, &none, &error));
  CHECK(none == NULL);
  CHECK_ERROR(RUEDA_RESOURCE_EXHAUSTED, "RUEDA_HEAP_BYTES",
              rueda_alloc(context, SIZE_MAX, &none, &error));
  CHECK(none == NULL);
  CHECK_ERROR(RUEDA_OK, "", rueda_alloc(context, 0, &small, &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_alloc(context, bytes, &memory, &error));
  if (small == NULL || memory == NULL) exit(1);
  CHECK((uintptr_t)small % 64 == 0 && (uintptr_t)memory % 4096 == 0);
  for (i = 0; i < bytes; ++i) wrong += ((unsigned char*)memory)[i] != 0;
  CHECK(wrong == 0);
  x = memory;
  for (i = 0; i < 100000; ++i) x[i] = (float)((int)i % 1000 + rank);
  op = op_of(RUEDA_ALLREDUCE, "in shared memory", x, shape, 1);
  run(&op);
  for (i = 0; i < 100000; ++i)
    wrong += x[i] != (float)(size * ((int)i % 1000) + size * (size - 1) / 2);
  CHECK(wrong == 0);
  rueda_free(small);
  rueda_free(NULL);
  check_second_place(op);
  return memory;
}

/* keys that no other check, round or rank uses but where that is the point */
static void check_store(int round) {
  char key[64], mine[64], value[8] = "";
  size_t bytes = 0;
  int64_t sum = 0;
  int32_t yes = -1;
  int other;
  if (size == 1) { /* nobody keeps one */
    CHECK_ERROR(RUEDA_FAILED_PRECONDITION, "nobody keeps a store",
                rueda_store_set(context, "x", "1", 1, &error));
    return;
  }
  snprintf(mine, sizeof(mine), "round %d/of/%d", round, rank);
  CHECK_ERROR(RUEDA_OK, "", rueda_store_set(context, mine, "first", 5, &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_store_set(context, mine, "\0b", 2, &error));
  for (other = 0; other < size; ++other) {
    snprintf(key, sizeof(key), "round %d/of/%d", round, other);
    do { /* another rank may still hold the first */
      CHECK_ERROR(RUEDA_OK, "",
                  rueda_store_get(context, key, 60, value, sizeof(value), &bytes, &error));
    } while (bytes == 5);
    CHECK(bytes == 2 && value[0] == 0 && value[1] == 'b');
  }
  snprintf(key, sizeof(key), "round %d sum", round);
  CHECK_ERROR(RUEDA_OK, "", rueda_store_add(context, key, 2, &sum, &error));
  CHECK(sum >= 2 && sum <= 2 * size && sum % 2 == 0);
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "whole number",
              rueda_store_add(context, mine, 1, NULL, &error));
  CHECK_ERROR(RUEDA_DEADLINE_EXCEEDED, "not set",
              rueda_store_get(context, "nobody's", 0, NULL, 0, &bytes, &error));
  CHECK_ERROR(RUEDA_INVALID_ARGUMENT, "no key", rueda_store_erase(context, NULL, NULL, &error));
  snprintf(key, sizeof(key), "round %d one wins", round);
  CHECK_ERROR(RUEDA_OK, "",
              rueda_store_compare_set(context, key, NULL, 0, mine, strlen(mine), &yes, value,
                                      sizeof(value), &bytes, &error));
  CHECK(yes == 1 && bytes == strlen(mine) && memcmp(value, "round ", 6) == 0);
  snprintf(key, sizeof(key), "round %d/erased/%d", round, rank);
  CHECK_ERROR(RUEDA_OK, "", rueda_store_set(context, key, NULL, 0, &error));
  CHECK_ERROR(RUEDA_OK, "", rueda_store_erase(context, key, &yes, &error));
  CHECK(yes == 1);
  CHECK_ERROR(RUEDA_OK, "", rueda_store_erase(context, key, &yes, &error));
  CHECK(yes == 0);
}

int main(void) {
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  rueda_op op = op_of(RUEDA_RECV, NULL, NULL, NULL, 0);
  rueda_request* work = NULL;
  float x[1] = {0};
  unsigned char* kept = NULL;
  int round;
  check_without_context();
  for (round = 0; round < 2; ++round) { /* init may be called again after shutdown */
    CHECK_ERROR(RUEDA_OK, "", rueda_init(round == 0 ? NULL : &options, &context, &error));
    if (context == NULL) return 1;
    rank = rueda_rank(context);
    size = rueda_size(context);
    check_place();
    check_allreduce();
    check_owned_outputs();
    check_others();
    check_wrong_arguments();
    check_all_or_none();
    check_sets_and_join();
    check_groups();
    check_struct_sizes();
    check_waiting();
    check_start_and_wait();
    check_refused_without_a_name();
    check_requests();
    check_own_end();
    check_wait_any();
    check_store(round);
    check_peer_memory();
    rueda_free(kept); /* of the round before */
    kept = check_memory();
    /* what is pending at shutdown ends as cancelled, and its work outlives the context */
    op.input = op.output = x;
    op.peer = rank;
    op.tag = 1000;
    CHECK_ERROR(RUEDA_OK, "", rueda_start(context, &op, 1, 0, &work, &error));
    rueda_shutdown(context);
    check_left();
    rueda_context_release(context);
    CHECK(rueda_request_test(work) == 1);
    CHECK_ERROR(RUEDA_CANCELLED, "", rueda_request_wait(work, -1, &error));
    rueda_request_release(work);
  }
  CHECK(((float*)(void*)kept)[1] == (float)(size + size * (size - 1) / 2));
  rueda_free(kept);
  if (failures == 0) printf("rank %d of %d: all checks hold\n", rank, size);
  return failures != 0;
}
