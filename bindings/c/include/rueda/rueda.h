/* rueda: collectives for distributed training. The stable C ABI: the one door for every language.
 *
 *   rueda_context* context; rueda_error error = RUEDA_ERROR_INIT; if (rueda_init(NULL, &context,
 *   &error) != RUEDA_OK) { fprintf(stderr, "%s\n", error.message); exit(1); } float x[4] = {1, 2,
 *   3, 4}; int64_t shape[1] = {4}; rueda_op op = RUEDA_OP_INIT; op.kind = RUEDA_ALLREDUCE; op.name
 *   = "x"; op.input = x; op.output = x; op.dtype = RUEDA_FLOAT32; op.shape = shape; op.ndim = 1;
 *   op.reduce_op = RUEDA_SUM;
 *   rueda_run(context, &op, &error);        // submit, wait, release
 *   rueda_shutdown(context);
 *
 * Threads:   every function may be called from any thread, several at once, except that nothing may use a context
 *            during or after rueda_shutdown, nor a work during or after rueda_work_release.
 * Memory:    from rueda_submit until the work has ended, input and output belong to rueda: do not read, write or free
 *            them. Names, shapes and splits are copied. After an error every output is unspecified.
 * Errors:    functions return a rueda_code. With a rueda_error* (may be NULL) they also fill in a message that says
 *            what, which rank, which tensor and what to do. Nothing is thrown, nothing calls back.
 * Structs:   begin with struct_size; set them with the *_INIT macros, so that older programs work with newer libraries.
 */
#ifndef RUEDA_RUEDA_H_
#define RUEDA_RUEDA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RUEDA_API __attribute__((visibility("default")))
#else
#define RUEDA_API
#endif

#define RUEDA_ABI_VERSION 1
#define RUEDA_VERSION "0.1.0"

typedef struct rueda_context rueda_context; /* one rank of one job */
typedef struct rueda_work rueda_work;       /* one submitted operation */

/* gRPC's codes. */
typedef enum rueda_code {
  RUEDA_OK = 0,
  RUEDA_CANCELLED = 1, /* the runtime was shut down first */
  RUEDA_UNKNOWN = 2,
  RUEDA_INVALID_ARGUMENT = 3,    /* wrong on this rank alone: nothing was submitted */
  RUEDA_DEADLINE_EXCEEDED = 4,   /* the wait ended, the operation goes on */
  RUEDA_ALREADY_EXISTS = 6,      /* the name is in flight on this rank */
  RUEDA_RESOURCE_EXHAUSTED = 8,  /* out of memory, or of memory that ranks share */
  RUEDA_FAILED_PRECONDITION = 9, /* ranks disagree (every rank gets this), or not initialised */
  RUEDA_ABORTED = 10,            /* the wait was interrupted by a signal; wait again */
  RUEDA_UNIMPLEMENTED = 12,
  RUEDA_INTERNAL = 13,
  RUEDA_UNAVAILABLE = 14 /* a rank was lost; the message names it, rueda_lost_rank tells more */
} rueda_code;

typedef enum rueda_dtype {
  RUEDA_UINT8 = 0,
  RUEDA_INT8 = 1,
  RUEDA_INT16 = 3,
  RUEDA_INT32 = 4,
  RUEDA_INT64 = 5,
  RUEDA_FLOAT16 = 6,
  RUEDA_FLOAT32 = 7,
  RUEDA_FLOAT64 = 8,
  RUEDA_BOOL = 9,
  RUEDA_BFLOAT16 = 10,
  RUEDA_FLOAT8_E4M3FN = 11, /* on the CPU moved, not reduced; on GPUs where NCCL can */
  RUEDA_FLOAT8_E5M2 = 12
} rueda_dtype;

typedef enum rueda_reduce_op {
  RUEDA_AVERAGE = 0,
  RUEDA_SUM = 1,
  RUEDA_ADASUM =
      2, /* allreduce of floats: adds what is orthogonal, averages what is parallel; docs/numerics.md */
  RUEDA_MIN = 3,
  RUEDA_MAX = 4,
  RUEDA_PRODUCT = 5
} rueda_reduce_op;

typedef enum rueda_kind {
  RUEDA_ALLREDUCE = 0, /* output: same shape; may be the input */
  RUEDA_ALLGATHER =
      1, /* output: owned by the work, rows of all ranks in rank order; first extents may differ */
  RUEDA_BROADCAST = 2, /* output: same shape; may be the input; on the root the input is sent */
  RUEDA_REDUCESCATTER =
      3,              /* output: this rank's rows (rueda_split_rows), or NULL: owned by the work */
  RUEDA_ALLTOALL = 4, /* output: owned by the work; splits: rows for each rank */
  RUEDA_BARRIER = 5,  /* no tensor */
  RUEDA_SEND = 6,     /* input to rank `peer`; matched by (peer, tag) in order, not by name */
  RUEDA_RECV = 7,     /* output from rank `peer`; size and dtype must equal the send's */
  RUEDA_JOIN =
      8 /* no tensor, no name. Until every rank of the set has joined, this one takes part in their
                              operations with what changes nothing: zeros in sums and averages (still divided by the number
                              of ranks), no rows where rows are gathered. Then it ends with the rank that joined last as
                              its result. A broadcast from a rank that has joined is an error on all others */
} rueda_kind;

typedef struct rueda_error {
  size_t struct_size;
  int32_t code;
  char message[2048]; /* zero-terminated, cut if longer */
} rueda_error;
#define RUEDA_ERROR_INIT          \
  {                               \
    sizeof(rueda_error), 0, { 0 } \
  }

typedef struct rueda_init_options {
  size_t struct_size;
  int32_t reserved;
} rueda_init_options;
#define RUEDA_INIT_OPTIONS_INIT {sizeof(rueda_init_options), 0}

typedef struct rueda_op {
  size_t struct_size;
  int32_t kind;      /* rueda_kind */
  int32_t dtype;     /* rueda_dtype */
  int32_t reduce_op; /* rueda_reduce_op; allreduce any, reducescatter sum or average */
  int32_t root;      /* broadcast: the sending rank */
  int32_t peer;      /* send, recv */
  uint32_t tag;      /* send, recv */
  const char* name;  /* NULL: the n-th unnamed operation of its kind on this rank */
  const void* input;
  void* output;
  const int64_t* shape; /* of the input (recv: of the output) */
  int32_t ndim;
  int32_t splits_count; /* alltoall: 0 (equal parts) or the number of ranks */
  const int64_t* splits;
  double
      prescale; /* applied to the input before, to the result after the reduction; rounding as documented in */
  double postscale; /* docs/numerics.md */
  int32_t
      process_set; /* the ranks that take part: 0 all, else an id from rueda_add_process_set. `root` is a rank of
                            the job all the same; splits and rows are in the order of the set's ranks */
  int32_t
      call_site; /* where it is called from, from rueda_call_site; 0: not told. Errors and reports show it */
  int32_t
      device; /* of input and output: -1 the host, else a GPU as CUDA numbers them in this process */
  int32_t reserved;
  void*
      stream; /* GPU: a cudaStream_t of that device (NULL: the default one); what it has been given until now
                            comes before the operation */
} rueda_op;
#define RUEDA_OP_INIT \
  {sizeof(rueda_op),  \
   0,                 \
   7,                 \
   1,                 \
   0,                 \
   0,                 \
   0,                 \
   NULL,              \
   NULL,              \
   NULL,              \
   NULL,              \
   0,                 \
   0,                 \
   NULL,              \
   1.0,               \
   1.0,               \
   0,                 \
   0,                 \
   -1,                \
   0,                 \
   NULL}

RUEDA_API uint32_t rueda_abi_version(void);
RUEDA_API const char* rueda_version(void);
RUEDA_API const char* rueda_code_name(int32_t code);

/* Joins the job that this process was started in (ruedarun; alone: a job of one rank). Blocks until all ranks have
 * called it, or RUEDA_START_TIMEOUT has passed. May be called again after rueda_shutdown. options may be NULL. */
RUEDA_API int32_t rueda_init(const rueda_init_options* options, rueda_context** context,
                             rueda_error* error);

/* Leaves the job and frees the context: collectives that have begun end, everything else pending on this rank ends with
 * RUEDA_CANCELLED; peers that still need this rank get an error that names it. Never waits for
 * peers without bound.
 * Works stay valid until released. NULL is allowed. */
RUEDA_API void rueda_shutdown(rueda_context* context);

RUEDA_API int32_t rueda_rank(const rueda_context* context);
RUEDA_API int32_t rueda_size(const rueda_context* context);
RUEDA_API int32_t
rueda_local_rank(const rueda_context* context); /* place among the ranks of this host */
RUEDA_API int32_t rueda_local_size(const rueda_context* context);
RUEDA_API int32_t rueda_cross_rank(
    const rueda_context* context); /* place of this host among those with this local rank */
RUEDA_API int32_t rueda_cross_size(const rueda_context* context);
RUEDA_API int32_t
rueda_is_homogeneous(const rueda_context* context); /* every host has the same number of ranks */

/* Who was lost, after an operation ended with RUEDA_UNAVAILABLE because of it: 1 and `lost` filled in, or 0. The verdict is
 * the same on all ranks. Its cause is complete once the dead process has been cleaned up, which
 * takes long where it had
 * much memory: ask again. Begin with RUEDA_LOST_INIT. Any thread. */
typedef struct rueda_lost {
  size_t struct_size;
  int32_t rank;
  int32_t pid;
  int64_t operations;     /* that it had submitted */
  int64_t step;           /* optimizer steps begun (rueda_mark "optimizer step"); 0: not told */
  int32_t cause_is_final; /* 0: more may become known */
  int32_t reserved;
  char host[64];
  char operation[192]; /* the last one: "allreduce.fc1.weight"; "" before the first */
  char cause[256];     /* "killed by signal 9 (SIGKILL)" */
} rueda_lost;
#define RUEDA_LOST_INIT                                    \
  {                                                        \
    sizeof(rueda_lost), -1, 0, 0, 0, 0, 0, {0}, {0}, { 0 } \
  }
RUEDA_API int32_t rueda_lost_rank(const rueda_context* context, rueda_lost* lost);

/* Rows of a tensor with `rows` rows that `rank` of `size` gets from reducescatter: the first rows % size get one more. */
RUEDA_API int64_t rueda_split_rows(int64_t rows, int32_t rank, int32_t size);

/* Submits `count` operations and fills works[0..count). With group != 0 they are reduced as one: ready together or not at
 * all. On an error nothing was submitted. Never blocks for a peer. */
RUEDA_API int32_t rueda_submit(rueda_context* context, const rueda_op* ops, size_t count,
                               int32_t group, rueda_work** works, rueda_error* error);

/* 1 when the work has ended (well or not), else 0. Never blocks. */
RUEDA_API int32_t rueda_work_poll(rueda_work* work);

/* Waits until the work has ended; returns how. timeout_seconds < 0: without limit; when it passes,
 * RUEDA_DEADLINE_EXCEEDED says what is missing, and the work goes on. RUEDA_ABORTED: a signal arrived. */
RUEDA_API int32_t rueda_work_wait(rueda_work* work, double timeout_seconds, rueda_error* error);

/* 1 when rueda uses the work's memory no more: for host tensors as rueda_work_poll, for GPU tensors when the GPU is done. */
RUEDA_API int32_t rueda_work_released(rueda_work* work);

/* For GPU tensors, whose work has ended on the host when it has been given to the GPU: what `stream` (a cudaStream_t, NULL:
 * the default one) is given from here on comes after its end there; the host does not wait. Input
 * and output belong to
 * rueda until then. Nothing happens for host tensors. RUEDA_FAILED_PRECONDITION: it has not ended yet, wait first. */
RUEDA_API int32_t rueda_work_stream_wait(rueda_work* work, void* stream, rueda_error* error);

/* The result of a work that ended well: data, shape. Memory stays valid until rueda_work_release. Returns the number of
 * dimensions, or -1 when the work has not ended well. data and shape (room for max_ndim extents) may be NULL. */
RUEDA_API int32_t rueda_work_output(rueda_work* work, void** data, int64_t* shape,
                                    int32_t max_ndim);

/* alltoall: rows received from each rank into splits[0..size). allgather: rows of each rank. Returns their number. */
RUEDA_API int32_t rueda_work_received_splits(rueda_work* work, int64_t* splits, int32_t max_count);

/* The number that a work which ended well gives: rueda_add_process_set the id, RUEDA_JOIN the rank
 * that joined last. -1: it gives none, or has not ended well. */
RUEDA_API int64_t rueda_work_result(const rueda_work* work);

/* Gives the handle up. A work that has not ended goes on; its memory must stay valid until then. NULL is allowed. */
RUEDA_API void rueda_work_release(rueda_work* work);

/* Submit, wait without limit (for GPU tensors until the GPU is done), release. For operations whose output is the caller's. */
RUEDA_API int32_t rueda_run(rueda_context* context, const rueda_op* op, rueda_error* error);

/* *stop is 1 on all ranks, at the same call, once one of them got a signal of RUEDA_PREEMPTION_SIGNAL (SIGTERM or SIGUSR1 by
 * default): time to write a checkpoint and leave. Collective: all ranks call it equally often, once
 * per step, say; costs a small allreduce. Signals are noted from the first call on; handlers that
 * were there before are called as well. Later
 * calls give 1 at once. RUEDA_ABORTED: a signal arrived meanwhile; call again. */
RUEDA_API int32_t rueda_should_stop(rueda_context* context, int32_t* stop, rueda_error* error);

/* ---- Prepared operations: for what is done again and again ----
 * Checks and names an operation once. Its kind, name, dtype, shape, operation, root and scales
 * stay; each start gives the memory. All ranks start it equally often; beside other operations in
 * any order. After a few identical rounds starting it sends no message and touches no allocation,
 * lock or string. Kinds: allreduce, broadcast, reducescatter (others: RUEDA_UNIMPLEMENTED).
 * op->input and op->output are ignored; op->name may not be NULL. GPU tensors: op->device says
 * which GPU; op->stream is that of rueda_start and rueda_run_prepared. A start has ended on the
 * host when it was given to the GPU, as for rueda_submit. */
typedef struct rueda_prepared rueda_prepared;
RUEDA_API int32_t rueda_prepare(rueda_context* context, const rueda_op* op,
                                rueda_prepared** prepared, rueda_error* error);
/* Starts it; RUEDA_ALREADY_EXISTS while its last start has not ended. Never blocks for a peer. */
RUEDA_API int32_t rueda_start(rueda_prepared* prepared, const void* input, void* output,
                              rueda_error* error);
/* GPU tensors: behind what `stream`, a cudaStream_t of the prepared GPU (NULL: its default one), has been given by now. */
RUEDA_API int32_t rueda_start_on(rueda_prepared* prepared, const void* input, void* output,
                                 void* stream, rueda_error* error);
/* How the last start ended, as rueda_work_wait. */
RUEDA_API int32_t rueda_prepared_wait(rueda_prepared* prepared, double timeout_seconds,
                                      rueda_error* error);
RUEDA_API int32_t rueda_prepared_poll(rueda_prepared* prepared);
/* As rueda_work_stream_wait and rueda_work_released, of the last start. */
RUEDA_API int32_t rueda_prepared_stream_wait(rueda_prepared* prepared, void* stream,
                                             rueda_error* error);
RUEDA_API int32_t rueda_prepared_released(rueda_prepared* prepared);
/* Start, wait without limit, for a GPU's work too. The fastest way to a small result. */
RUEDA_API int32_t rueda_run_prepared(rueda_prepared* prepared, const void* input, void* output,
                                     rueda_error* error);
/* One that is under way ends first, in the background; its memory must stay valid until then. NULL is allowed. */
RUEDA_API void rueda_prepared_release(rueda_prepared* prepared);

/* ---- Process sets: groups of ranks that run collectives among themselves ----
 * Both are collective over all ranks of the job, members or not: all call them in the same order
 * and with the same ranks (whose order does not matter); else every rank gets
 * RUEDA_FAILED_PRECONDITION. A list that is no set of ranks, or that exists already, is
 * RUEDA_INVALID_ARGUMENT on every rank. The work ends when all ranks have called it; the id of an
 * added set is its result. Sets are independent: operations in one wait for nothing in another, and
 * names are each set's own. Removing one ends what is pending in it with an error. Ids of removed
 * sets are given again. Shutdown removes all.
 * call_site: as in rueda_op. */
RUEDA_API int32_t rueda_add_process_set(rueda_context* context, const int32_t* ranks, int32_t count,
                                        int32_t call_site, rueda_work** work, rueda_error* error);
RUEDA_API int32_t rueda_remove_process_set(rueda_context* context, int32_t process_set,
                                           int32_t call_site, rueda_work** work,
                                           rueda_error* error);
/* Number of sets, the global one included; up to max_count of their ids, ascending. */
RUEDA_API int32_t rueda_process_sets(const rueda_context* context, int32_t* ids, int32_t max_count);
/* Number of a set's ranks, -1 if there is no such set; up to max_count of them, ascending. */
RUEDA_API int32_t rueda_process_set_ranks(const rueda_context* context, int32_t process_set,
                                          int32_t* ranks, int32_t max_count);

/* ---- Memory in which collectives work in place ----
 * `bytes` bytes that the ranks of this host share: tensors here are reduced without a copy. Zeroed,
 * 64-byte aligned. Stays valid until rueda_free, also after rueda_shutdown. 0 bytes give a valid
 * pointer too. RUEDA_RESOURCE_EXHAUSTED says how
 * much is in use; RUEDA_HEAP_BYTES bounds it. A forked child has a private copy. */
RUEDA_API int32_t rueda_alloc(rueda_context* context, size_t bytes, void** memory,
                              rueda_error* error);
/* Memory of rueda_alloc, from any thread, or NULL. What uses it must have ended. In a forked child it does nothing. */
RUEDA_API void rueda_free(void* memory);

/* The number of a place in the program for rueda_op.call_site: the same text, "train.py:12 in step", has the same number.
   0 when there is no room for more, or the context is not usable. Costs a lock: ask once per place. */
RUEDA_API int32_t rueda_call_site(rueda_context* context, const char* text);

/* How other processes ask this one for its stacks, whatever it does: the handler of *signal writes them to *fd, a file
   opened to append, and ends with the line "end of stacks". A runtime that knows more (Python's frames) puts a handler
   before it that writes to the same file and then calls the one that was there. RUEDA_FAILED_PRECONDITION: this process
   was not started by ruedarun, or all signals are taken. */
RUEDA_API int32_t rueda_stack_file(const rueda_context* context, int32_t* signal, int32_t* fd);

/* ---- Counters since init, for tests and monitoring; docs/counters.md says what each of them counts ----
 * One by its name ("batches"); -1 for a name that there is not. */
RUEDA_API int64_t rueda_counter(const rueda_context* context, const char* name);
/* All of them: how many there are, and the first max_count values. -1: the context is not usable. */
RUEDA_API int32_t rueda_counters(const rueda_context* context, int64_t* values, int32_t max_count);
/* The name of the index-th of them; NULL behind the last. */
RUEDA_API const char* rueda_counter_name(int32_t index);

/* ---- Timeline (docs/timeline.md) ----
 * Writes what happens from here on to a file, as RUEDA_TIMELINE does from the start: rank 0 alone,
 * or with {rank} in `path` every rank that calls it. Another file that is open is ended first; the
 * same one goes on. mark_cycles != 0: marks for the
 * rounds in which something begins. RUEDA_INVALID_ARGUMENT and others name a file that cannot be written. */
RUEDA_API int32_t rueda_start_timeline(rueda_context* context, const char* path,
                                       int32_t mark_cycles, rueda_error* error);
/* The file is complete when it returns. Nothing happens if none is written. */
RUEDA_API int32_t rueda_stop_timeline(rueda_context* context, rueda_error* error);
/* A mark of the caller's in the timeline: name begins (what = 0), ends (1), or happens now (2). "backward" and
 * "optimizer step" have channels of their own and are summed up for ruedarun --summary. Cheap when nothing is recorded. */
RUEDA_API int32_t rueda_mark(rueda_context* context, const char* name, int32_t what);

/* ---- Int8 compression on GPUs, by rueda's kernels ----
 * Blocks of 256 float32 to 256 int8 and their float32 scale (260 bytes), rounded to nearest even,
 * and back; a block with a number that is not finite comes back as NaN. from, to: memory of GPU
 * `device`, 4-byte aligned, yours until `stream` (a cudaStream_t, NULL: the default one) has come
 * past it; the host does not wait. Any thread. RUEDA_UNIMPLEMENTED: there is no
 * librueda_cuda.so that runs on this GPU; nothing happened. */
RUEDA_API int32_t rueda_int8_quantize(rueda_context* context, const float* from, int8_t* to,
                                      int64_t blocks, int32_t device, void* stream,
                                      rueda_error* error);
RUEDA_API int32_t rueda_int8_dequantize(rueda_context* context, const int8_t* from, float* to,
                                        int64_t blocks, int32_t device, void* stream,
                                        rueda_error* error);

/* ---- Distributed attention (docs/attention.md) ----
 * The ranks of a process set hold the tokens of one sequence and compute its attention together.
 * Tensors are dense, (batch, tokens of this rank, heads, head_dim); lse is (batch, heads, tokens),
 * float32, natural logarithm, -infinity for
 * a query that sees no key. All ranks of a set start their calls in the same order, with equal specs. */
typedef struct rueda_attention_spec {
  size_t struct_size;
  int64_t batch, length, heads, kv_heads, head_dim; /* length: tokens of the whole sequence */
  int32_t dtype;                                    /* RUEDA_FLOAT32, _BFLOAT16 or _FLOAT16 */
  int32_t
      kv_wire; /* what keys and values travel as: dtype, RUEDA_BFLOAT16 for float32, RUEDA_INT8 */
  int32_t layout;         /* 0 contiguous, 1 zigzag, 2 striped */
  int32_t ulysses;        /* ranks that exchange heads for tokens; divides the number of ranks */
  int32_t rotate_forward; /* 0 what takes fewer bytes, 1 keys and values travel, 2 queries travel */
  int32_t rotate_backward;
  int32_t gather_first; /* receive everything before computing */
  int32_t causal;
  int64_t
      chunk_tokens; /* at most the bytes of so many tokens in a message; 0: a quarter of a shard, at least 192 */
  int64_t left, right;       /* sliding window, -1: none */
  double scale;              /* 0: head_dim ^ -0.5 */
  const int64_t* cu_seqlens; /* packed sequences: 0, ..., length */
  int64_t cu_seqlens_count;
  const int64_t* segment_lengths; /* dilated attention: pairs */
  const int64_t* dilation_rates;
  int64_t pair_count;
  int32_t head_offset; /* of dilated heads: 0 head mod rate, 1 blocks of heads */
  int32_t split_heads; /* each pair has heads of its own */
  int64_t block,
      block_heads; /* block mask: (block_heads, n, n) bytes, n = ceil(length / block); 0: none */
  const uint8_t* blocks;
  int32_t layout_per_sequence; /* the layout spreads each packed sequence by itself */
  int64_t
      key_length; /* keys of all ranks; 0: as many as queries. Else the last query stands at the last key */
  const int64_t*
      cu_seqlens_k; /* of packed keys, cu_seqlens_count of them; NULL: as of the queries */
} rueda_attention_spec;
#define RUEDA_ATTENTION_SPEC_INIT \
  {sizeof(rueda_attention_spec),  \
   1,                             \
   0,                             \
   1,                             \
   1,                             \
   0,                             \
   7,                             \
   7,                             \
   0,                             \
   1,                             \
   0,                             \
   0,                             \
   0,                             \
   0,                             \
   0,                             \
   -1,                            \
   -1,                            \
   0.0,                           \
   NULL,                          \
   0,                             \
   NULL,                          \
   NULL,                          \
   0,                             \
   0,                             \
   0,                             \
   0,                             \
   1,                             \
   NULL,                          \
   0,                             \
   0,                             \
   NULL}

typedef struct rueda_attention_plan
    rueda_attention_plan; /* what one rank does; any number of calls may use it */
typedef struct rueda_attention_saved
    rueda_attention_saved; /* what a forward keeps for its backward */
typedef struct rueda_attention_call rueda_attention_call; /* one forward or backward under way */

/* This rank's plan. With context NULL the plan of `rank` of `ranks`, to look at. */
RUEDA_API int32_t rueda_attention_plan_create(rueda_context* context,
                                              const rueda_attention_spec* spec, int32_t process_set,
                                              int32_t rank, int32_t ranks,
                                              rueda_attention_plan** plan, rueda_error* error);
RUEDA_API void rueda_attention_plan_release(rueda_attention_plan* plan);
/* Numbers of the plan, in this order: hash, tokens of this rank, steps, tiles, messages sent (forward, backward), bytes
 * sent (forward, backward), bytes received (forward, backward), flops (forward, backward), bytes
 * saved for backward, bytes of workspace (forward, backward), keys of this rank, its query heads
 * (begin, end) and KV heads (begin, end) where heads are exchanged for tokens, the band (least and
 * largest k - q that is seen), exchanges (forward, backward). Fills
 * values[0..count); returns how many there are. */
RUEDA_API int32_t rueda_attention_plan_report(const rueda_attention_plan* plan, int64_t* values,
                                              int32_t count);
/* The tiles that the rank computes in a forward (0) or backward (1), RUEDA_ATTENTION_TILE_NUMBERS numbers each, in this
 * order: step (0: of its own rows), rank whose rows came, KV heads (begin, end, step), queries
 * (first position, step, count), keys (first position, step, count), (query, key) pairs of a query
 * head. Fills values[0..count); returns how many
 * numbers there are. */
#define RUEDA_ATTENTION_TILE_NUMBERS 12
RUEDA_API int64_t rueda_attention_plan_tiles(const rueda_attention_plan* plan, int32_t backward,
                                             int64_t* values, int64_t count);
/* What an executor of its own needs, RUEDA_ATTENTION_WORK_NUMBERS numbers each, in this order: kind (0 tile of own rows, 1 rows
 * of keys that are sent, 2 rows that are received, 3 tile of received rows), exchange (-1: none;
 * all ranks go through the same ones), peer, KV heads (begin, end, step), queries (first, step,
 * count) and keys (first, step, count) as rows of the tensors that have them, the first query's
 * position and their step, the first key's and their step. Rows of an
 * exchange travel in the order in which they are listed. For plans in which keys and values travel. */
#define RUEDA_ATTENTION_WORK_NUMBERS 16
RUEDA_API int64_t rueda_attention_plan_work(const rueda_attention_plan* plan, int32_t backward,
                                            int64_t* values, int64_t count);
/* Largest over mean work of all ranks. */
RUEDA_API double rueda_attention_plan_balance(const rueda_attention_plan* plan);
/* Positions of the tokens of a rank, in the order of its tensors; returns their number, -1 for wrong arguments. */
RUEDA_API int64_t rueda_attention_tokens(int32_t layout, int64_t length, int32_t rank,
                                         int32_t ranks, int64_t* positions, int64_t max_count);

/* Starts a call; its tensors belong to it until it has ended. With context NULL and a plan of one rank it is a local
 * operation, which needs no job. threads: 0, this host's cores for each of its ranks (all, without
 * a job). saved may be NULL when no backward follows; backward needs it where ulysses is more than
 * 1. lse may be NULL in a forward, dlse
 * in a backward. */
RUEDA_API int32_t rueda_attention_forward(rueda_context* context, const rueda_attention_plan* plan,
                                          int32_t process_set, int32_t threads, const void* q,
                                          const void* k, const void* v, void* out, float* lse,
                                          rueda_attention_saved** saved,
                                          rueda_attention_call** call, rueda_error* error);
RUEDA_API int32_t rueda_attention_backward(rueda_context* context, const rueda_attention_plan* plan,
                                           int32_t process_set, int32_t threads, const void* dout,
                                           const float* dlse, const void* q, const void* k,
                                           const void* v, const void* out, const float* lse,
                                           const rueda_attention_saved* saved, void* dq, void* dk,
                                           void* dv, rueda_attention_call** call,
                                           rueda_error* error);
RUEDA_API void rueda_attention_saved_release(rueda_attention_saved* saved);
/* As rueda_work_wait and rueda_work_poll. Errors name pass, step and rank. */
RUEDA_API int32_t rueda_attention_wait(rueda_attention_call* call, double timeout_seconds,
                                       rueda_error* error);
RUEDA_API int32_t rueda_attention_poll(const rueda_attention_call* call);
/* Ends it on this rank soon, with RUEDA_CANCELLED; what it would have written is unspecified. */
RUEDA_API void rueda_attention_abort(rueda_attention_call* call);
/* Gives the handle up; a call that has not ended goes on with its tensors. */
RUEDA_API void rueda_attention_call_release(rueda_attention_call* call);

/* A local kernel of your own: attention of some rows against some keys, as partial softmax sums. A partial result of a
 * query is (acc, m, l): m about the largest score so far, l the sum of exp(score - m), acc the sum
 * of exp(score - m) * v; (0, -infinity, 0) is the identity. forward goes on from what is there.
 * Scores are scale * q.k; everything but rows is float32. backward adds to dq, dk, dv, with p =
 * exp(score - lse - lse_low), ds = p * (dout.v - delta). Rows are picked by number
 * and lie `stride` elements apart. */
typedef struct rueda_attention_rows {
  const void* base;
  int64_t stride;
  uint8_t dtype;
} rueda_attention_rows;
typedef struct
    rueda_attention_head { /* one query head; row i of acc and dq at i * acc_stride, of the others at i * ml_stride */
  rueda_attention_rows q;
  float *acc, *m, *l;        /* forward */
  rueda_attention_rows dout; /* backward */
  const float *lse, *delta;
  const float* lse_low; /* what lse lacks of the log-sum-exp; NULL: nothing */
  float* dq;
} rueda_attention_head;
/* The i-th query, row q_rows[i], sees the j-th key, row k_rows[j], where
 * low <= (k_pos + j * k_step) - (q_pos + i * q_step) <= high. */
typedef struct rueda_attention_tile {
  int64_t queries, keys, head_dim;
  const int32_t *q_rows, *k_rows;
  int64_t q_pos, q_step, k_pos, k_step, low, high;
  float scale;
  const rueda_attention_head* heads; /* all query heads that share the keys */
  int64_t head_count, acc_stride, ml_stride;
  rueda_attention_rows k, v;
  float *dk, *dv; /* backward: row k_rows[j] at k_rows[j] * dkv_stride */
  int64_t dkv_stride;
} rueda_attention_tile;
typedef struct rueda_attention_kernel {
  size_t struct_size;
  const char* name;
  int32_t
      priority;    /* the highest that takes the dtypes is used; the library's own have 10 and 20 */
  uint32_t dtypes; /* 1 << RUEDA_FLOAT32 | ...: of queries and of keys */
  /* Called from several threads at once, each with 64-byte aligned scratch of its own, 512 Ki floats. */
  void (*forward)(const rueda_attention_tile* tile, float* scratch);
  void (*backward)(const rueda_attention_tile* tile, float* scratch);
} rueda_attention_kernel;
/* For the whole process, for ever; the functions stay where they are. */
RUEDA_API int32_t rueda_attention_add_kernel(const rueda_attention_kernel* kernel,
                                             rueda_error* error);
/* That kernel for all calls from now on, on this rank; "auto": of highest priority; "measured": the fastest, timed at
 * the first call. As RUEDA_ATTENTION_KERNEL. */
RUEDA_API int32_t rueda_attention_use_kernel(const char* name, rueda_error* error);
/* The kernel of queries and keys of these dtypes, and why it is this one: both are cut to their sizes, NUL included. */
RUEDA_API int32_t rueda_attention_kernel_for(int32_t q_dtype, int32_t k_dtype, int64_t head_dim,
                                             char* name, size_t name_size, char* why,
                                             size_t why_size, rueda_error* error);

#ifdef __cplusplus
}
#endif
#endif /* RUEDA_RUEDA_H_ */
