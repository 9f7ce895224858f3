/* A member of a job that changes: does what its input says, letter by letter, and answers each with
 * a line. See heal_job.h. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rueda/rueda.h"

static rueda_context* context;
static rueda_epoch epoch = RUEDA_EPOCH_INIT;

/* Every member gives 1 + its number; the sum names all who took part. */
static void allreduce(void) {
  rueda_op op = RUEDA_OP_INIT;
  rueda_error error = RUEDA_ERROR_INIT;
  enum { kCount = 1000 };
  const int64_t shape[1] = {kCount};
  int64_t values[kCount];
  uint64_t members[64];
  for (int i = 0; i < kCount; ++i) values[i] = 1 + (int64_t)epoch.member;
  op.dtype = RUEDA_INT64;
  op.reduce_op = RUEDA_SUM;
  op.name = "sum";
  op.input = op.output = values;
  op.shape = shape;
  op.ndim = 1;
  if (rueda_run(context, &op, &error) != RUEDA_OK) {
    printf("failed %d lost %d ended %d: %s\n", error.code, error.lost_rank,
           rueda_epoch_ended(context, INT64_C(3600000000000)), error.message);
    return;
  }
  const int count = rueda_epoch_members(context, members, NULL, NULL, 64);
  int64_t sum = 0;
  for (int i = 0; i < count; ++i) sum += 1 + (int64_t)members[i];
  for (int i = 0; i < kCount; ++i) {
    if (values[i] == sum) continue;
    printf("wrong: %" PRId64 " and not %" PRId64 "\n", values[i], sum);
    return;
  }
  printf("sum of %d\n", count);
}

static void tell_epoch(void) {
  rueda_epoch_of(context, &epoch);
  if (epoch.provisional) {
    printf("provisional rank %d of %d\n", rueda_rank(context), rueda_size(context));
    return;
  }
  printf("epoch %" PRIu64 " rank %d of %d", epoch.number, rueda_rank(context), rueda_size(context));
  for (int i = 0; i < epoch.process_sets; ++i) {
    int32_t ranks[64];
    const int count = rueda_epoch_process_set(context, i, ranks, 64);
    printf(" [");
    for (int k = 0; k < count; ++k) printf("%s%d", k > 0 ? " " : "", ranks[k]);
    printf("]");
  }
  printf("\n");
}

static void next_epoch(int cause) {
  rueda_standing standing = RUEDA_STANDING_INIT;
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_context* next = NULL;
  standing.cause = cause;
  standing.has_state = cause != 4;
  standing.commits = epoch.number;
  const int32_t code = rueda_next_epoch(context, &standing, &next, &error);
  if (code != RUEDA_OK) {
    printf("refused %d: %s\n", code, error.message);
    return;
  }
  rueda_context_release(context);
  context = next;
  tell_epoch();
}

static void add_process_set(int parity) {
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_request* request = NULL;
  int32_t ranks[64], count = 0;
  for (int rank = parity; rank < rueda_size(context); rank += 2) ranks[count++] = rank;
  if (rueda_add_process_set(context, ranks, count, 0, &request, &error) == RUEDA_OK &&
      rueda_request_wait(request, -1, &error) == RUEDA_OK) {
    printf("set %d\n", (int)rueda_request_result(request));
  } else {
    printf("failed: %s\n", error.message);
  }
  rueda_request_release(request);
}

/* What there is, each with the sum of its members' ranks + 1, if this is one of them. */
static void use_process_sets(void) {
  int32_t ids[64];
  const int count = rueda_process_sets(context, ids, 64);
  printf("sets");
  for (int i = 0; i < count; ++i) {
    const int64_t shape[1] = {1};
    int64_t value = 1 + rueda_rank(context);
    rueda_op op = RUEDA_OP_INIT;
    rueda_error error = RUEDA_ERROR_INIT;
    op.dtype = RUEDA_INT64;
    op.reduce_op = RUEDA_SUM;
    op.name = "in a set";
    op.input = op.output = &value;
    op.shape = shape;
    op.ndim = 1;
    op.process_set = ids[i];
    const int32_t code = rueda_run(context, &op, &error);
    printf(" %d:%d", (int)ids[i], code == RUEDA_OK ? (int)value : -code);
  }
  printf("\n");
}

static int entries(const char* folder) {
  DIR* const open = opendir(folder);
  int count = -3; /* itself, . and .. */
  while (readdir(open) != NULL) ++count;
  closedir(open);
  return count;
}

/* Descriptors, threads, shared mappings. */
static void tell_holdings(void) {
  FILE* const maps = fopen("/proc/self/maps", "r");
  char line[4096];
  int shared = 0;
  while (fgets(line, sizeof(line), maps) != NULL) shared += strstr(line, "/memfd:") != NULL;
  fclose(maps);
  printf("holds %d %d %d\n", entries("/proc/self/fd"), entries("/proc/self/task"), shared);
}

int main(void) {
  rueda_error error = RUEDA_ERROR_INIT;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (rueda_init(NULL, &context, &error) != RUEDA_OK) {
    printf("init failed %d: %s\n", error.code, error.message);
    return 1;
  }
  tell_epoch();
  char what = 0;
  while (read(STDIN_FILENO, &what, 1) == 1) {
    uint64_t word = 0;
    switch (what) {
      case 'a': allreduce(); break;
      case 'n': next_epoch(1); break;
      case 'i': next_epoch(2); break;
      case 'r': next_epoch(4); break;
      case 'p': add_process_set(0); break;
      case 'P': add_process_set(1); break;
      case 's': use_process_sets(); break;
      case 'h': tell_holdings(); break;
      case 'l':
        rueda_shutdown(context);
        printf("left\n");
        break;
      case 'x': _exit(3);
      case 'v':
        if (rueda_commit_vote(context, &word, &error) == RUEDA_OK) {
          printf("vote %" PRIu64 " seen %d\n", word, word == rueda_announced(context));
        } else {
          printf("failed: %s\n", error.message);
        }
        break;
      default: break;
    }
  }
  rueda_context_release(context);
  return 0;
}
