/* rueda: collectives for distributed training. The stable C ABI: the one door for every language.
 *
 *   rueda_context* context;
 *   rueda_error error = RUEDA_ERROR_INIT;
 *   if (rueda_init(NULL, &context, &error) != RUEDA_OK) {
 *     fprintf(stderr, "%s\n", error.message);
 *     exit(1);
 *   }
 *   float x[4] = {1, 2, 3, 4};
 *   int64_t shape[1] = {4};
 *   rueda_op op = RUEDA_OP_INIT;
 *   op.kind = RUEDA_ALLREDUCE;
 *   op.name = "x";
 *   op.input = op.output = x;
 *   op.dtype = RUEDA_FLOAT32;
 *   op.shape = shape;
 *   op.ndim = 1;
 *   op.reduce_op = RUEDA_SUM;
 *   rueda_run(context, &op, &error);      // start, wait, release
 *   rueda_shutdown(context);              // leaves the job
 *   rueda_context_release(context);
 *
 * Whatever takes time is a request, of one type:
 *
 *   rueda_start            --+                        +--> rueda_request_wait, _wait_any, _test
 *   rueda_request_create   --+--> rueda_request* -----+--> rueda_request_on_end, _event_fd
 *   rueda_add_process_set  --+        ^      |        +--> rueda_request_output, _rows, _result
 *   rueda_attention_...    --+        |      v
 *                             rueda_request_start      rueda_request_release
 *
 * Threads:   every function may be called from any thread, several at once. Handles are counted
 *            (contexts) or owned by the caller (requests): nothing may use a handle during or after
 *            its release.
 * Shutdown:  from any thread at any time. What other threads do with the context then ends with
 *            RUEDA_CANCELLED or RUEDA_FAILED_PRECONDITION; requests stay valid until released.
 * Memory:    from a start until the request has ended, input and output belong to rueda: do not
 *            read, write or free them. Names, shapes and splits are copied. After an error every
 *            output is unspecified.
 * Errors:    functions return a rueda_code. With a rueda_error* (may be NULL) they also fill in a
 *            message that says what, which rank, which tensor and what to do. Nothing is thrown.
 * Callbacks: rueda_request_on_end, once for each time it is asked for, and attention kernels of the
 *            caller's own (rueda_attention_add_kernel, rueda_attention_run). Nothing else calls
 *            back.
 * Structs:   begin with struct_size; set them with the *_INIT macros, so that programs work with
 *            newer libraries of the same RUEDA_ABI_VERSION: fields are only added at the end, and
 *            what an older program does not know keeps its default.
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

#define RUEDA_ABI_VERSION 2
#define RUEDA_VERSION "0.1.0"

typedef struct rueda_context rueda_context; /* one rank of one job */
typedef struct rueda_request rueda_request; /* one operation, started once or again and again */

/* gRPC's codes. */
typedef enum rueda_code {
  RUEDA_OK = 0,
  RUEDA_CANCELLED = 1, /* the runtime was shut down first */
  RUEDA_UNKNOWN = 2,
  RUEDA_INVALID_ARGUMENT = 3,    /* wrong on this rank alone: nothing was started */
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
  RUEDA_FLOAT8_E5M2 = 12,
  RUEDA_UINT16 = 13,
  RUEDA_UINT32 = 14,
  RUEDA_UINT64 = 15,
  RUEDA_COMPLEX64 = 16, /* two floats: real, imaginary; sum, average and product */
  RUEDA_COMPLEX128 = 17 /* two doubles */
} rueda_dtype;

typedef enum rueda_reduce_op {
  RUEDA_AVERAGE = 0,
  RUEDA_SUM = 1,
  /* allreduce of floats: adds what is orthogonal, averages what is parallel; docs/numerics.md */
  RUEDA_ADASUM = 2,
  RUEDA_MIN = 3,
  RUEDA_MAX = 4,
  RUEDA_PRODUCT = 5,
  RUEDA_BITWISE_AND = 6, /* these of integers and bool, unscaled, on the CPU; as MPI_BAND */
  RUEDA_BITWISE_OR = 7,
  RUEDA_BITWISE_XOR = 8
} rueda_reduce_op;

/* With output NULL, results of allgather, reducescatter and alltoall are the request's own. */
typedef enum rueda_kind {
  RUEDA_ALLREDUCE = 0,     /* output: same shape; may be the input */
  RUEDA_ALLGATHER = 1,     /* output: rows of all ranks in rank order; first extents may differ */
  RUEDA_BROADCAST = 2,     /* output: same shape; may be the input; on the root the input is sent */
  RUEDA_REDUCESCATTER = 3, /* output: this rank's rows (rueda_split_rows) */
  RUEDA_ALLTOALL = 4,      /* output: the rows that come; splits: rows for each rank */
  RUEDA_BARRIER = 5,       /* no tensor */
  RUEDA_SEND = 6,          /* input to rank `peer`; matched by (peer, tag) in order, not by name */
  /* output from rank `peer`, in a group also -1: whoever sends with this tag; size and dtype must
   * equal the send's */
  RUEDA_RECV = 7,
  /* No tensor, no name. Until every rank of the set has joined, this one takes part in their
   * operations with what changes nothing: zeros in sums and averages (still divided by the number
   * of ranks), no rows where rows are gathered. Then it ends with the rank that joined last as its
   * result. A broadcast from a rank that has joined is an error on all others. */
  RUEDA_JOIN = 8,
  /* In groups alone (rueda_open_group): */
  RUEDA_REDUCE = 10, /* output: same shape, on rank `root`; the others give none */
  RUEDA_GATHER = 11, /* output: rows of all members, on rank `root`; first extents may differ */
  /* output: this member's rows. On rank `root` the shape is that of the input, which is cut as
   * splits say; on the others it is that of the output, and they give no input */
  RUEDA_SCATTER = 12
} rueda_kind;

typedef struct rueda_error {
  size_t struct_size;
  int32_t code;
  int32_t lost_rank; /* it failed because this rank was lost; -1: for another reason */
  int32_t reserved;
  char message[2048]; /* zero-terminated, cut if longer */
} rueda_error;
/* clang-format off */
#define RUEDA_ERROR_INIT {sizeof(rueda_error), 0, -1, 0, {0}}
/* clang-format on */

/* For programs that place their processes themselves; alike on all ranks but for `rank`. With
 * neither rank nor size the environment decides, and the rest must be left out. They win over what
 * other launchers say. Under ruedarun they must say the same, unless job, rendezvous and key are
 * given as well: then this process takes part in that job, and for ruedarun it is one that has not
 * called rueda_init. Copied. */
typedef struct rueda_init_options {
  size_t struct_size;
  int32_t rank; /* -1: the environment's */
  int32_t size;
  const char* job; /* tells the job from others of this user; needed from two ranks on */
  /* HOST:PORT, a free port of rank 0's host. NULL: RUEDA_RENDEZVOUS, else all ranks are on this
   * host and meet there without a port. */
  const char* rendezvous;
  /* The secret that ranks which meet at a port must have, 16 to 4096 bytes. NULL: the file
   * RUEDA_KEY_FILE. */
  const void* key;
  size_t key_bytes;
} rueda_init_options;
/* clang-format off */
#define RUEDA_INIT_OPTIONS_INIT {sizeof(rueda_init_options), -1, -1, NULL, NULL, NULL, 0}
/* clang-format on */

typedef struct rueda_op {
  size_t struct_size;
  int32_t kind;      /* rueda_kind */
  int32_t dtype;     /* rueda_dtype */
  int32_t reduce_op; /* rueda_reduce_op; reducescatter all but adasum */
  int32_t root;      /* broadcast, scatter: the sending rank; reduce, gather: the receiving one */
  int32_t peer;      /* send, recv */
  uint32_t tag;      /* send, recv */
  /* NULL: the n-th unnamed operation of its kind on this rank, where a group without names counts
   * as one. In ordered groups NULL. */
  const char* name;
  const void* input;
  void* output;
  const int64_t* shape; /* of the input (recv: of the output) */
  int32_t ndim;
  int32_t splits_count; /* alltoall, scatter: 0 (equal parts) or the number of ranks */
  const int64_t* splits;
  double prescale;  /* applied to the input before, */
  double postscale; /* to the result after the reduction; rounding as in docs/numerics.md */
  /* The ranks that take part: 0 all, else an id from rueda_add_process_set or rueda_open_group.
   * `root` and `peer` are ranks of the job all the same; splits and rows are in the order of the
   * set's ranks. */
  int32_t process_set;
  /* Where it is called from, from rueda_call_site; 0: not told. Errors and reports show it. */
  int32_t call_site;
  /* Of input and output: -1 the host, else a GPU as CUDA numbers them in this process. */
  int32_t device;
  int32_t reserved;
  /* GPU: a cudaStream_t of that device (NULL: the default one); what it has been given until now
   * comes before the operation. */
  void* stream;
  /* allgather, alltoall with an output: the rows it has room for, which must be exactly those that
   * come; else every rank gets RUEDA_FAILED_PRECONDITION. -1 where the result is the request's own;
   * a persistent request with another value is given its output with each start. */
  int64_t output_rows;
  /* In groups (rueda_open_group), rows by member, output_splits_count of them (0: none are given).
   * reducescatter: those that each gets, instead of rueda_split_rows, alike on all. allgather,
   * gather, alltoall: those that the caller expects from each; where others come every member gets
   * RUEDA_FAILED_PRECONDITION. */
  const int64_t* output_splits;
  int32_t output_splits_count;
  int32_t reserved_2;
} rueda_op;
/* An allreduce, a float32 sum, of host tensors, unscaled, in the set of all ranks. */
/* clang-format off */
#define RUEDA_OP_INIT                                                                            \
  {sizeof(rueda_op), 0, 7, 1, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, 1.0, 1.0, 0, 0, -1, 0, \
   NULL, -1, NULL, 0, 0}
/* clang-format on */

RUEDA_API uint32_t rueda_abi_version(void);
RUEDA_API const char* rueda_version(void);
RUEDA_API const char* rueda_code_name(int32_t code);

/* ---- The context ----
 * Joins the job that this process was started in (ruedarun; alone: a job of one rank). Blocks until
 * all ranks have called it, or RUEDA_START_TIMEOUT has passed. May be called again after
 * rueda_shutdown. options may be NULL. */
RUEDA_API int32_t rueda_init(const rueda_init_options* options, rueda_context** context,
                             rueda_error* error);

/* Leaves the job: collectives that have begun end, everything else pending on this rank ends with
 * RUEDA_CANCELLED; peers that still need this rank get an error that names it. Never waits for
 * peers without bound. Returns when the rank has left; again, or for NULL, it does nothing. The
 * context stays valid, and answers that it has left. Not from a callback: ignored there. */
RUEDA_API void rueda_shutdown(rueda_context* context);

/* One more who uses the context; gives it back. */
RUEDA_API rueda_context* rueda_context_retain(rueda_context* context);
/* One less. The last one leaves the job if nobody has, and frees it: not from a callback, where it
 * is ignored. NULL is allowed. */
RUEDA_API void rueda_context_release(rueda_context* context);

/* -1 after a shutdown, in a forked child and for NULL. */
RUEDA_API int32_t rueda_rank(const rueda_context* context);
RUEDA_API int32_t rueda_size(const rueda_context* context);
/* Place among the ranks of this host, and their number. */
RUEDA_API int32_t rueda_local_rank(const rueda_context* context);
RUEDA_API int32_t rueda_local_size(const rueda_context* context);
/* Place of this host among those with this local rank, and their number. */
RUEDA_API int32_t rueda_cross_rank(const rueda_context* context);
RUEDA_API int32_t rueda_cross_size(const rueda_context* context);
/* Every host has the same number of ranks. */
RUEDA_API int32_t rueda_is_homogeneous(const rueda_context* context);

/* Who was lost, after an operation ended because of it: 1 and `lost` filled in, as far as
 * struct_size says, or 0. The verdict is the same on all ranks. Its cause is complete once the dead
 * process has been cleaned up, which takes long where it had much memory: ask again.
 * Begin with RUEDA_LOST_INIT. With lost->rank set to an error's lost_rank the answer is never 0
 * where that is a rank of the job: before there is a verdict, it is what was known of that rank. */
typedef struct rueda_lost {
  size_t struct_size;
  int32_t rank;
  int32_t pid;
  int64_t operations;     /* that it had started */
  int64_t step;           /* optimizer steps begun (rueda_mark "optimizer step"); 0: not told */
  int32_t cause_is_final; /* 0: more may become known */
  int32_t reserved;
  char host[64];
  char operation[192]; /* the last one: "allreduce.fc1.weight"; "" before the first */
  char cause[256];     /* "killed by signal 9 (SIGKILL)" */
} rueda_lost;
/* clang-format off */
#define RUEDA_LOST_INIT {sizeof(rueda_lost), -1, 0, 0, 0, 0, 0, {0}, {0}, {0}}
/* clang-format on */
RUEDA_API int32_t rueda_lost_rank(const rueda_context* context, rueda_lost* lost);

/* Rows of a tensor with `rows` rows that `rank` of `size` gets from reducescatter: the first rows %
 * size get one more. */
RUEDA_API int64_t rueda_split_rows(int64_t rows, int32_t rank, int32_t size);

/* Whether tensors of a rueda_dtype can be reduced like this: RUEDA_OK, or RUEDA_INVALID_ARGUMENT
 * with what to do instead, as when it is started. device: as in rueda_op; what NCCL lacks shows
 * there only. */
RUEDA_API int32_t rueda_check_reduction(int32_t dtype, int32_t reduce_op, double prescale,
                                        double postscale, int32_t device, rueda_error* error);

/* ---- Requests ----
 * Starts `count` operations and fills requests[0..count). With group != 0 they are reduced as one:
 * ready together or not at all. On an error nothing was started. Never blocks for a peer. */
RUEDA_API int32_t rueda_start(rueda_context* context, const rueda_op* ops, size_t count,
                              int32_t group, rueda_request** requests, rueda_error* error);

/* Starts one, waits without limit (for GPU tensors until the GPU is done), releases. For operations
 * whose output is the caller's. */
RUEDA_API int32_t rueda_run(rueda_context* context, const rueda_op* op, rueda_error* error);
/* Starts one and waits, as rueda_request_wait and for the GPU's work too, and keeps the request for
 * its results: the faster way to a small one than a start and a wait. *request is NULL if nothing
 * was started, else the caller's, also after an error. */
RUEDA_API int32_t rueda_start_and_wait(rueda_context* context, const rueda_op* op,
                                       double timeout_seconds, rueda_request** request,
                                       rueda_error* error);

/* Persistent requests, for what is done again and again: checks and names the operations once,
 * starts nothing. What an op says stays; each start gives the memory (op->input and op->output are
 * ignored) and, for GPU tensors, the stream. All ranks start one equally often; beside other
 * operations in any order; of a group, all its members. After a few identical rounds starting sends
 * no message and touches no allocation, lock or string. Without a name an operation meets the one
 * that every other rank made as its n-th persistent one of the kind. Not for sends, receives and
 * joins (RUEDA_UNIMPLEMENTED). */
RUEDA_API int32_t rueda_request_create(rueda_context* context, const rueda_op* ops, size_t count,
                                       int32_t group, rueda_request** requests, rueda_error* error);
/* Starts a persistent request. RUEDA_ALREADY_EXISTS while its last start has not ended. Never
 * blocks for a peer. stream: GPU tensors, behind what this cudaStream_t (NULL: the default one) has
 * been given by now; else ignored. output may be NULL where results can be the request's own. */
RUEDA_API int32_t rueda_request_start(rueda_request* request, const void* input, void* output,
                                      void* stream, rueda_error* error);
/* Starts a persistent request and waits, as rueda_request_wait and for the GPU's work too. The
 * fastest way to a small result. */
RUEDA_API int32_t rueda_request_run(rueda_request* request, const void* input, void* output,
                                    void* stream, double timeout_seconds, rueda_error* error);

/* 1 when it has ended (well or not) or was never started, else 0. Never blocks. */
RUEDA_API int32_t rueda_request_test(const rueda_request* request);
/* Waits until what was started last has ended; returns how. timeout_seconds < 0: without limit;
 * when it passes, RUEDA_DEADLINE_EXCEEDED says what is missing, and the operation goes on: unless
 * rueda_request_test is 1, as operations that stood still for too long end with that code too.
 * RUEDA_ABORTED: a signal arrived while the thread slept; who must see every signal soon waits with
 * a deadline, again and again. */
RUEDA_API int32_t rueda_request_wait(rueda_request* request, double timeout_seconds,
                                     rueda_error* error);
/* Waits until one of these has ended whose end nobody has been told yet, neither by this function
 * nor by one that waits for the request alone (as MPI_Waitany): *index is its place, and the code
 * says how it ended. Passed over: NULL, what was never started, and ends that have been told; where
 * nothing else is left, *index is -1 and the code RUEDA_OK. With *index -1 every other code is the
 * wait's own, as of rueda_request_wait. Several threads may wait for the same requests: each end is
 * told to one of them. */
RUEDA_API int32_t rueda_request_wait_any(rueda_request** requests, size_t count,
                                         double timeout_seconds, int64_t* index,
                                         rueda_error* error);
/* Calls back once, when what was started last ends; at once if it has. From whatever thread ends
 * it; where ranks do not all share memory, from one that runs only callbacks, so that a slow one
 * holds up no sign of life that other hosts wait for. Others may wait for either: be short, do not
 * wait for anything that has not ended (RUEDA_FAILED_PRECONDITION), do not shut down. Starting
 * others is allowed, reading this one too, and its release unless a thread waits for it or runs it.
 * May be asked for several times. */
RUEDA_API int32_t rueda_request_on_end(rueda_request* request, void (*callback)(void* user),
                                       void* user, rueda_error* error);
/* A descriptor for poll and epoll that is readable whenever rueda_request_test is 1. The request's
 * own: do not read or close it; it is closed with the release. */
RUEDA_API int32_t rueda_request_event_fd(rueda_request* request, int32_t* fd, rueda_error* error);
/* Ends an attention call on this rank soon, with RUEDA_CANCELLED; what it would have written is
 * unspecified. Others cannot be taken back (RUEDA_UNIMPLEMENTED): peers may have begun. */
RUEDA_API int32_t rueda_request_cancel(rueda_request* request, rueda_error* error);
/* Gives the handle up. What is under way goes on; its memory must stay valid until then. NULL is
 * allowed. */
RUEDA_API void rueda_request_release(rueda_request* request);

/* Results of a request that ended well, until it is started again or released; else -1. Data and
 * shape. Returns the number of dimensions; data and shape (room for max_ndim extents) may be
 * NULL. */
RUEDA_API int32_t rueda_request_output(const rueda_request* request, void** data, int64_t* shape,
                                       int32_t max_ndim);
/* alltoall, allgather: rows that came from each rank, into rows[0..max_count). Returns how many
 * there are. */
RUEDA_API int32_t rueda_request_rows(const rueda_request* request, int64_t* rows,
                                     int32_t max_count);
/* The number that it gives: rueda_add_process_set the id, RUEDA_JOIN the rank that joined last,
 * RUEDA_RECV in a group the rank that has sent. -1: none. */
RUEDA_API int64_t rueda_request_result(const rueda_request* request);

/* GPU tensors: a request has ended on the host when it has been given to the GPU. 1 when rueda uses
 * its memory no more: for host tensors as rueda_request_test, for GPU tensors when the GPU is
 * done. */
RUEDA_API int32_t rueda_request_memory_released(const rueda_request* request);
/* What `stream` (a cudaStream_t, NULL: the default one) is given from here on comes after its end
 * on the GPU; the host does not wait. Input and output belong to rueda until then. Nothing happens
 * for host tensors. RUEDA_FAILED_PRECONDITION: it has not ended yet, wait first. */
RUEDA_API int32_t rueda_request_stream_wait(rueda_request* request, void* stream,
                                            rueda_error* error);

/* *stop is 1 on all ranks, at the same call, once one of them got a signal of
 * RUEDA_PREEMPTION_SIGNAL (SIGTERM or SIGUSR1 by default): time to write a checkpoint and leave.
 * Collective: all ranks call it equally often, once per step, say; costs a small allreduce. Signals
 * are noted from the first call on; handlers that were there before are called as well. Later calls
 * give 1 at once. RUEDA_ABORTED: a signal arrived meanwhile; call again. */
RUEDA_API int32_t rueda_should_stop(rueda_context* context, int32_t* stop, rueda_error* error);

/* ---- Epochs: jobs whose ranks change ----
 * Under ruedarun a process is a member of its job, with a number that is never used again, and a
 * rank in one epoch after the other. Who is in the next epoch, and what all do with their state
 * there, is decided by the launcher. A process that comes to a running job has a provisional
 * context at first: it knows the rank it can expect, and everything collective is
 * RUEDA_FAILED_PRECONDITION until it has entered an epoch. */
typedef struct rueda_standing {
  size_t struct_size;
  int32_t cause;      /* 1 the epoch has ended by a loss; 2 left at a commit; 4 ready to join */
  int32_t has_state;  /* holds a state that all members of an epoch had agreed on */
  uint64_t commits;   /* the number of the newest commit that it holds */
  const void* layout; /* digest of names, shapes and dtypes of the state; may be NULL */
  size_t layout_bytes;
  /* Members that have a copy of what this process has for itself alone, or itself while nobody else
   * has one: it does not leave in order together with all of them. May be NULL */
  const uint64_t* mirrors;
  size_t mirror_count;
} rueda_standing;
/* clang-format off */
#define RUEDA_STANDING_INIT {sizeof(rueda_standing), 1, 0, 0, NULL, 0, NULL, 0}
/* clang-format on */
/* Leaves the epoch of `previous`, which is as after rueda_shutdown then, and enters the next one.
 * Everything that was started in the old one has ended when it is left. Blocks until the next is
 * decided and all have met in it; who is lost meanwhile leads to the one after that. No thread may
 * write to memory of rueda_alloc meanwhile: where threads of a lost rank may still run, what is in
 * it moves to new pages (at the same addresses), and what is written then is lost.
 * RUEDA_ABORTED: a signal came, or a second has passed in which one may have come unseen: call
 * again with the same arguments, and nothing is lost. RUEDA_CANCELLED: the job goes on without this
 * process, and the message says why. RUEDA_FAILED_PRECONDITION: nobody decides
 * epochs here, this process does not fit into the job, or another thread has called rueda_shutdown
 * for `previous`, which ends the wait. */
RUEDA_API int32_t rueda_next_epoch(rueda_context* previous, const rueda_standing* standing,
                                   rueda_context** next, rueda_error* error);

typedef struct rueda_epoch {
  size_t struct_size;
  uint64_t number;    /* 0: provisional */
  uint64_t member;    /* this process */
  uint64_t target;    /* the commit that all have when they go on */
  uint64_t announced; /* the last change that this epoch serves: its number << 8 */
  /* What all do with their state: 0 rank 0's for all, 1 back to the newest commit and then rank
   * 0's, 2 rank 0's, 3 nothing */
  int32_t branch;
  int32_t provisional;
  int32_t size;         /* ranks, as rueda_epoch_members gives them */
  int32_t process_sets; /* of the epoch before, to be formed anew */
  int32_t elastic;      /* members of this job come and go */
  int32_t reserved;
} rueda_epoch;
/* clang-format off */
#define RUEDA_EPOCH_INIT {sizeof(rueda_epoch), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* clang-format on */
/* Also of a context that has left. RUEDA_FAILED_PRECONDITION: nobody decides epochs here. */
RUEDA_API int32_t rueda_epoch_of(const rueda_context* context, rueda_epoch* epoch);
/* By rank: the members, their ranks in the epoch before (-1: were not in it), whether they hold the
 * target's state. Arrays of max_count; each may be NULL. Returns how many there are; -1:
 * unknown. */
RUEDA_API int32_t rueda_epoch_members(const rueda_context* context, uint64_t* members,
                                      int32_t* last_ranks, int32_t* has_target, int32_t max_count);
/* The ranks that are left of the epoch before's process set at that place (in the order of ids,
 * without the set of all), up to max_count of them. Returns how many, 0: none is left. */
RUEDA_API int32_t rueda_epoch_process_set(const rueda_context* context, int32_t index,
                                          int32_t* ranks, int32_t max_count);
/* The last announcement that members are about to change: a growing number << 8, and 1 (some go) or
 * 2 (some come) or both; 4 is in it once a rank has ended with success, after which nobody comes.
 * 0: none. Looks at memory only. */
RUEDA_API uint64_t rueda_announced(const rueda_context* context);
/* Collective: *announced is the newest announcement that any rank has seen, the same on all. When
 * it returns all ranks have called it. A small allreduce. RUEDA_ABORTED: a signal came; call
 * again. */
RUEDA_API int32_t rueda_commit_vote(rueda_context* context, uint64_t* announced,
                                    rueda_error* error);
/* After an operation has failed: 1 if the epoch is over because a rank was lost, or this rank's
 * connection to one; waits that long for the launcher's word while a loss is suspected, or a rank
 * has left whose process has not ended: if that fails, it is lost. */
RUEDA_API int32_t rueda_epoch_ended(const rueda_context* context, int64_t wait_ns);

/* ---- Process sets: groups of ranks that run collectives among themselves ----
 * Both are collective over all ranks of the job, members or not: all call them in the same order
 * and with the same ranks (whose order does not matter); else every rank gets
 * RUEDA_FAILED_PRECONDITION. A list that is no set of ranks, or that exists already, is
 * RUEDA_INVALID_ARGUMENT on every rank. The request ends when all ranks have called it; the id of
 * an added set is its result. Sets are independent: operations in one wait for nothing in another,
 * and names are each set's own. Removing one ends what is pending in it with an error. Ids of
 * removed sets are given again. Shutdown removes all. call_site: as in rueda_op. */
RUEDA_API int32_t rueda_add_process_set(rueda_context* context, const int32_t* ranks, int32_t count,
                                        int32_t call_site, rueda_request** request,
                                        rueda_error* error);
RUEDA_API int32_t rueda_remove_process_set(rueda_context* context, int32_t process_set,
                                           int32_t call_site, rueda_request** request,
                                           rueda_error* error);
/* Number of sets, the global one included; up to max_count of their ids, ascending. */
RUEDA_API int32_t rueda_process_sets(const rueda_context* context, int32_t* ids, int32_t max_count);
/* Number of a set's ranks, -1 if there is no such set; up to max_count of them, ascending. */
RUEDA_API int32_t rueda_process_set_ranks(const rueda_context* context, int32_t process_set,
                                          int32_t* ranks, int32_t max_count);

/* ---- Groups: ranks whose calls belong together by their order ----
 * As MPI's communicators: opened by their members alone, who call the same operations in the same
 * order, without names and without negotiation. The order of `ranks` is the order of rows, splits
 * and sums. The n-th open of the same key (UTF-8, at most 256 bytes) and list on each member
 * belongs together; the same key with another list is an error on all. Returns at once; operations
 * may be started at once: rueda_op.process_set is *group, a number of this process alone, from
 * RUEDA_FIRST_GROUP on. rueda_start with group != 0: its operations, of one kind, are one call.
 * Where members ask for different things, each of them gets RUEDA_FAILED_PRECONDITION, nothing has
 * been touched, and the group works on. call_site: as in rueda_op. */
#define RUEDA_FIRST_GROUP 16777216
RUEDA_API int32_t rueda_open_group(rueda_context* context, const char* key, const int32_t* ranks,
                                   int32_t count, int32_t call_site, int32_t* group,
                                   rueda_error* error);
/* Not collective: this rank starts nothing more in it. What is under way ends in the background;
 * calls of other members that this one does not make fail there, and say so. */
RUEDA_API int32_t rueda_close_group(rueda_context* context, int32_t group, rueda_error* error);
/* Ends everything pending and to come in the group, on all members, with RUEDA_CANCELLED, the name
 * of this rank and the reason (may be NULL). To be closed all the same. */
RUEDA_API int32_t rueda_abort_group(rueda_context* context, int32_t group, const char* reason,
                                    rueda_error* error);

/* ---- The job's store: keys (UTF-8, at most 500 bytes) with values (at most 1 MiB) ----
 * Kept by ruedarun, for jobs of two ranks and more, from their start to their end, whatever inits
 * and shutdowns come between; without ruedarun there is none (RUEDA_FAILED_PRECONDITION). From any
 * thread, at any time, by each rank for itself. 64 MiB in all (RUEDA_RESOURCE_EXHAUSTED).
 * RUEDA_UNAVAILABLE: the launcher is gone; or a get of a key that ends in "/<rank>" of a rank that
 * was lost. */
RUEDA_API int32_t rueda_store_set(rueda_context* context, const char* key, const void* value,
                                  size_t bytes, rueda_error* error);
/* Waits until the key is set. RUEDA_DEADLINE_EXCEEDED: it was not, within timeout_seconds (< 0:
 * without limit). *bytes is the value's size, of which value has at most `room`. */
RUEDA_API int32_t rueda_store_get(rueda_context* context, const char* key, double timeout_seconds,
                                  void* value, size_t room, size_t* bytes, rueda_error* error);
/* Adds to the whole number that the key holds as text, 0 where it is not set; all additions count.
 * sum may be NULL. */
RUEDA_API int32_t rueda_store_add(rueda_context* context, const char* key, int64_t amount,
                                  int64_t* sum, rueda_error* error);
/* Sets the key where it holds `expected`, or is not set and expected_bytes is 0. *is_set, value:
 * what it holds now, as in rueda_store_get. */
RUEDA_API int32_t rueda_store_compare_set(rueda_context* context, const char* key,
                                          const void* expected, size_t expected_bytes,
                                          const void* desired, size_t desired_bytes,
                                          int32_t* is_set, void* value, size_t room, size_t* bytes,
                                          rueda_error* error);
/* was_set may be NULL. */
RUEDA_API int32_t rueda_store_erase(rueda_context* context, const char* key, int32_t* was_set,
                                    rueda_error* error);

/* ---- Memory in which collectives work in place ----
 * `bytes` bytes that the ranks of this host share: tensors here are reduced without a copy. Zeroed,
 * 64-byte aligned. Stays valid until rueda_free, also after rueda_shutdown. 0 bytes give a valid
 * pointer too. RUEDA_RESOURCE_EXHAUSTED says how much is in use; RUEDA_HEAP_BYTES bounds it. A
 * forked child has a private copy. */
RUEDA_API int32_t rueda_alloc(rueda_context* context, size_t bytes, void** memory,
                              rueda_error* error);
/* The same, not zeroed: may hold what this process freed before. */
RUEDA_API int32_t rueda_alloc_uncleared(rueda_context* context, size_t bytes, void** memory,
                                        rueda_error* error);
/* For memory that others have made: puts the pages of `memory`, a block of rueda_alloc of `bytes`
 * (64 KiB or more), at `address` too, in place of what is mapped there, so that collectives on
 * `memory` work on what lies at `address`. `address` begins a page of a mapping of the caller's
 * (mmap) that has `bytes`, rounded up to pages, which nobody uses meanwhile; what is in it is not
 * copied. The caller unmaps it before rueda_free. Forked children have nothing there. */
RUEDA_API int32_t rueda_map_memory(void* memory, size_t bytes, void* address, rueda_error* error);
/* The same memory as another rank of this host sees it: the owner asks for the place of memory of
 * rueda_alloc, tells it and its rank, and the others ask for an address. Nobody keeps count: the
 * owner frees it when no rank uses it any more. An address stays mapped until the process ends,
 * also when the job, or the owner, is gone; a forked child has nothing there.
 * RUEDA_FAILED_PRECONDITION: no memory is shared with that rank. */
RUEDA_API int32_t rueda_memory_place(const void* memory, uint64_t* place, rueda_error* error);
RUEDA_API int32_t rueda_peer_memory(rueda_context* context, int32_t rank, uint64_t place,
                                    size_t bytes, void** memory, rueda_error* error);
/* For what several ranks decide in such memory: if `*word` is `expected` it becomes `desired`, in
 * one step for all of them. Returns what it was. */
RUEDA_API uint64_t rueda_compare_exchange(uint64_t* word, uint64_t expected, uint64_t desired);
/* For tensors that another library allocates: of `library`, a loaded one by its file name
 * ("libc10.so"), calls of posix_memalign and free find blocks of this memory from now on. Which:
 * those of the sizes that rueda_lend_blocks was told, 64 KiB or more, as many as it was told (a
 * negative count: fewer), of threads between rueda_lend_begin and the next rueda_lend_end of any
 * thread. All other calls go where they went. What the library frees is kept for its next call. A
 * forked child gets none. RUEDA_FAILED_PRECONDITION: there is no memory of rueda_alloc in this
 * process, or the library does not call these functions through its table of imports. */
RUEDA_API int32_t rueda_lend_memory(const char* library, rueda_error* error);
RUEDA_API void rueda_lend_blocks(size_t bytes, int64_t count);
RUEDA_API void rueda_lend_begin(void);
RUEDA_API void rueda_lend_end(void);
/* Memory of rueda_alloc, from any thread, or NULL. What uses it must have ended. In a forked child
 * it does nothing. */
RUEDA_API void rueda_free(void* memory);

/* The number of a place in the program for rueda_op.call_site: the same text, "train.py:12 in
 * step", has the same number. 0 when there is no room for more, or the context is not usable. Costs
 * a lock: ask once per place. */
RUEDA_API int32_t rueda_call_site(rueda_context* context, const char* text);

/* How other processes ask this one for its stacks, whatever it does: the handler of *signal writes
 * them to *fd, a file opened to append, and ends with the line "end of stacks". A runtime that
 * knows more (Python's frames) puts a handler before it that writes to the same file and then calls
 * the one that was there. RUEDA_FAILED_PRECONDITION: this process was not started by ruedarun, or
 * all signals are taken. */
RUEDA_API int32_t rueda_stack_file(const rueda_context* context, int32_t* signal, int32_t* fd);

/* ---- Counters since init, for tests and monitoring; docs/counters.md says what each counts ----
 * One by its name ("batches"); -1 for a name that there is not. */
RUEDA_API int64_t rueda_counter(const rueda_context* context, const char* name);
/* All of them: how many there are, and the first max_count values. -1: the context is not
 * usable. */
RUEDA_API int32_t rueda_counters(const rueda_context* context, int64_t* values, int32_t max_count);
/* The name of the index-th of them; NULL behind the last. */
RUEDA_API const char* rueda_counter_name(int32_t index);

/* ---- Stats of this rank since init, or since the last reset: docs/counters.md ----
 * How many there are, and the first max_count of them; -1: the context is not usable. Names are
 * static and never change their meaning. reset != 0: the next call tells of what comes from here
 * on. Some microseconds; holds nothing up. */
typedef struct rueda_stat {
  const char* name; /* "step_seconds_p95" */
  double value;     /* seconds, bytes, counts, or shares of 1 */
} rueda_stat;
RUEDA_API int32_t rueda_stats(rueda_context* context, rueda_stat* stats, int32_t max_count,
                              int32_t reset);
/* For which ranks threads of this one have slept until they came, and how long in seconds, since
 * init or the last reset: how many there are, and the first max_count of them. Rank -1: others,
 * when there are more than 63. -1: the context is not usable. */
RUEDA_API int32_t rueda_late_ranks(rueda_context* context, int32_t* ranks, double* seconds,
                                   int32_t max_count);

/* How tensors in host memory reach the other ranks: "shm", "tcp", "mpi", "shm+tcp" (inside hosts
 * and between them) or "shm+mpi"; NULL: the context is not usable. Static. */
RUEDA_API const char* rueda_transport(const rueda_context* context);

/* ---- Timeline (docs/timeline.md) ----
 * Writes what happens from here on to a file, as RUEDA_TIMELINE does from the start: rank 0 alone,
 * or with {rank} in `path` every rank that calls it. Another file that is open is ended first; the
 * same one goes on. mark_cycles != 0: marks for the rounds in which something begins.
 * RUEDA_INVALID_ARGUMENT and others name a file that cannot be written. */
RUEDA_API int32_t rueda_start_timeline(rueda_context* context, const char* path,
                                       int32_t mark_cycles, rueda_error* error);
/* The file is complete when it returns. Nothing happens if none is written. */
RUEDA_API int32_t rueda_stop_timeline(rueda_context* context, rueda_error* error);
/* A mark of the caller's in the timeline: name begins (what = 0), ends (1), or happens now (2).
 * "wait for data" is time that the program waits for its next batch; see rueda_stats.
 * "backward" and "optimizer step" have tracks of their own and are summed up for ruedarun
 * --summary. Cheap when nothing is recorded. */
RUEDA_API int32_t rueda_mark(rueda_context* context, const char* name, int32_t what);

/* ---- Digests ----
 * 16 bytes that stand for `count` ranges of memory, one after the other (XXH3 of 128 bits): they do
 * not depend on how the bytes are cut into ranges. Against chance, not malice. A range of 0 bytes
 * may be NULL. Needs no context; any thread. */
RUEDA_API void rueda_digest(const void* const* parts, const size_t* bytes, size_t count,
                            uint8_t* digest);
/* Fills the ranges with as many bytes of another process, which leaves them as they are meanwhile:
 * those from from[i] on there. The digest is that of what the ranges have then, taken while it is
 * in the processor's cache. 1: all has come. 0: not all, as there is no such process or memory, or
 * the kernel does not allow it; ranges and digest are undefined then. Needs no context; any thread.
 */
RUEDA_API int32_t rueda_read_digest(int64_t pid, const uint64_t* from, void* const* parts,
                                    const size_t* bytes, size_t count, uint8_t* digest);

/* ---- Int8 compression on GPUs, by rueda's kernels ----
 * Blocks of 256 float32 to 256 int8 and their float32 scale (260 bytes), rounded to nearest even,
 * and back; a block with a number that is not finite comes back as NaN. from, to: memory of GPU
 * `device`, 4-byte aligned, yours until `stream` (a cudaStream_t, NULL: the default one) has come
 * past it; the host does not wait. RUEDA_UNIMPLEMENTED: there is no librueda_cuda.so that runs on
 * this GPU; nothing happened. */
RUEDA_API int32_t rueda_int8_quantize(rueda_context* context, const float* from, int8_t* to,
                                      int64_t blocks, int32_t device, void* stream,
                                      rueda_error* error);
RUEDA_API int32_t rueda_int8_dequantize(rueda_context* context, const int8_t* from, float* to,
                                        int64_t blocks, int32_t device, void* stream,
                                        rueda_error* error);

/* ---- GPU memory that NCCL can register, for a framework's allocator (docs/gpu.md) ----
 * Communicators register what collectives find there, and let go of it before it is freed. open: by
 * a rank, before it takes memory of that GPU for the first time; RUEDA_UNIMPLEMENTED: NCCL (2.19)
 * gives none. allocate: NULL when there is none left, or before open. Both others need no context
 * and may be called from any thread, free after rueda_shutdown too; it waits for what the GPU is
 * doing. Their arguments are those of PyTorch's CUDAPluggableAllocator; streams are not looked at.
 * In a forked child they do nothing. */
RUEDA_API int32_t rueda_cuda_pool_open(rueda_context* context, int32_t device, rueda_error* error);
RUEDA_API void* rueda_cuda_pool_allocate(int64_t bytes, int32_t device, void* stream);
RUEDA_API void rueda_cuda_pool_free(void* memory, int64_t bytes, int32_t device, void* stream);

/* ---- Distributed attention (docs/attention.md) ----
 * The ranks of a process set hold the tokens of one sequence and compute its attention together.
 * Tensors are dense, (batch, tokens of this rank, heads, head_dim); lse is (batch, heads, tokens),
 * float32, natural logarithm, -infinity for a query that sees no key. All ranks of a set start
 * their calls in the same order, with equal specs. */
typedef struct rueda_attention_spec {
  size_t struct_size;
  int64_t batch, length, heads, kv_heads, head_dim; /* length: tokens of the whole sequence */
  int32_t dtype;                                    /* RUEDA_FLOAT32, _BFLOAT16 or _FLOAT16 */
  /* What keys and values travel as: dtype, RUEDA_BFLOAT16 for float32, RUEDA_INT8. */
  int32_t kv_wire;
  int32_t layout;         /* 0 contiguous, 1 zigzag, 2 striped */
  int32_t ulysses;        /* ranks that exchange heads for tokens; divides the number of ranks */
  int32_t rotate_forward; /* 0 what takes fewer bytes, 1 keys and values travel, 2 queries travel */
  int32_t rotate_backward;
  int32_t gather_first; /* receive everything before computing */
  int32_t causal;
  /* At most the bytes of so many tokens in a message; 0: a quarter of a shard, at least 192. */
  int64_t chunk_tokens;
  int64_t left, right;       /* sliding window, -1: none */
  double scale;              /* 0: head_dim ^ -0.5 */
  const int64_t* cu_seqlens; /* packed sequences: 0, ..., length */
  int64_t cu_seqlens_count;
  const int64_t* segment_lengths; /* dilated attention: pairs */
  const int64_t* dilation_rates;
  int64_t pair_count;
  int32_t head_offset; /* of dilated heads: 0 head mod rate, 1 blocks of heads */
  int32_t split_heads; /* each pair has heads of its own */
  /* Block mask: (block_heads, n, n) bytes, n = ceil(length / block); 0: none. */
  int64_t block, block_heads;
  const uint8_t* blocks;
  int32_t layout_per_sequence; /* the layout spreads each packed sequence by itself */
  /* Keys of all ranks; 0: as many as queries. Else the last query stands at the last key. */
  int64_t key_length;
  /* Of packed keys, cu_seqlens_count of them; NULL: as of the queries. */
  const int64_t* cu_seqlens_k;
  double softcap; /* scores become softcap * tanh(score / softcap); 0: they stay */
  /* ALiBi: -slope * |places between query and key| is added to a score. alibi_count is 0 (none),
   * heads, or batch * heads. */
  const float* alibi_slopes;
  int64_t alibi_count;
} rueda_attention_spec;
/* clang-format off */
#define RUEDA_ATTENTION_SPEC_INIT                                                        \
  {sizeof(rueda_attention_spec), 1, 0, 1, 1, 0, 7, 7, 0, 1, 0, 0, 0, 0, 0, -1, -1, 0.0,  \
   NULL, 0, NULL, NULL, 0, 0, 0, 0, 1, NULL, 0, 0, NULL, 0.0, NULL, 0}
/* clang-format on */

/* What one rank does, in any number of calls. */
typedef struct rueda_attention_plan rueda_attention_plan;
/* What a forward keeps for its backward. */
typedef struct rueda_attention_saved rueda_attention_saved;

/* This rank's plan. With context NULL the plan of `rank` of `ranks`, to look at. */
RUEDA_API int32_t rueda_attention_plan_create(rueda_context* context,
                                              const rueda_attention_spec* spec, int32_t process_set,
                                              int32_t rank, int32_t ranks,
                                              rueda_attention_plan** plan, rueda_error* error);
RUEDA_API void rueda_attention_plan_release(rueda_attention_plan* plan);
/* Numbers of the plan, in this order: hash, tokens of this rank, steps, tiles, messages sent
 * (forward, backward), bytes sent (forward, backward), bytes received (forward, backward), flops
 * (forward, backward), bytes saved for backward, bytes of workspace (forward, backward), keys of
 * this rank, its query heads (begin, end) and KV heads (begin, end) where heads are exchanged for
 * tokens, the band (least and largest k - q that is seen), exchanges (forward, backward), tokens
 * and keys of its group where heads are exchanged, 1 if queries travel (forward, backward). Fills
 * values[0..count); returns how many there are, -1 without a plan. */
RUEDA_API int32_t rueda_attention_plan_report(const rueda_attention_plan* plan, int64_t* values,
                                              int32_t count);
/* The tiles that the rank computes in a forward (0) or backward (1), RUEDA_ATTENTION_TILE_NUMBERS
 * numbers each, in this order: step (0: of its own rows), rank whose rows came, KV heads (begin,
 * end, step), queries (first position, step, count), keys (first position, step, count), (query,
 * key) pairs of a query head. Fills values[0..count); returns how many numbers there are. */
#define RUEDA_ATTENTION_TILE_NUMBERS 12
RUEDA_API int64_t rueda_attention_plan_tiles(const rueda_attention_plan* plan, int32_t backward,
                                             int64_t* values, int64_t count);
/* The program that rueda_attention_run runs in a forward (0) or backward (1), for who has its
 * kernels: lines of RUEDA_ATTENTION_WORK_NUMBERS numbers, of which the first says what it is:
 *   0 buffer       role, home (0 given, 1 result, 2 saved, 3 slot), slot, bytes
 *   1 instruction  op, stage (0 ring, 1 heads in, 2 heads out), message, reply, last, reads rows of
 *                  another rank (1) or its own
 *   2 part         of the message (0) or reply (1) of the instruction above: which, role of its
 *                  tensor, set, first head, heads, rows, offset, bytes, offset of int8's scales
 *                  (-1: none), added (1) or copied (0)
 *   3 run          rows of the part above: first, step, count
 *   4 piece        of the instruction above: kind (0 full, 1 causal, 2 band), KV heads (begin, end,
 *                  step), queries and keys (first, step, count of each), the first query's position
 *                  and step, the first key's (of bands, with ALiBi of all), set of the message
 *                  whose rows they are (-1: own)
 * Buffers, instructions, roles and operations are numbered as attention/program.h has them. Fills
 * values[0..count); returns how many numbers there are, -1 without a plan. */
#define RUEDA_ATTENTION_WORK_NUMBERS 16
RUEDA_API int64_t rueda_attention_plan_work(const rueda_attention_plan* plan, int32_t backward,
                                            int64_t* values, int64_t count);
/* What the rank does in a forward (0) or backward (1), as text: a line for each instruction, with
 * the buffers that it reads and writes and the instructions that it comes after. As snprintf:
 * writes
 * at most size bytes, a zero at the end included; returns the length of the whole, -1 without a
 * plan. */
RUEDA_API int64_t rueda_attention_plan_program(const rueda_attention_plan* plan, int32_t backward,
                                               char* text, int64_t size);
/* Largest over mean work of all ranks. */
RUEDA_API double rueda_attention_plan_balance(const rueda_attention_plan* plan);
/* Positions of the tokens of a rank, in the order of its tensors; returns their number, -1 for
 * wrong arguments. */
RUEDA_API int64_t rueda_attention_tokens(int32_t layout, int64_t length, int32_t rank,
                                         int32_t ranks, int64_t* positions, int64_t max_count);

/* Starts a call; its tensors belong to it until it has ended. With context NULL and a plan of one
 * rank it is a local operation, which needs no job. threads: 0, this host's cores for each of its
 * ranks (all, without a job). saved may be NULL when no backward follows; backward needs it where
 * ulysses is more than 1. lse may be NULL in a forward, dlse in a backward. The request's errors
 * name pass, step and rank. */
RUEDA_API int32_t rueda_attention_forward(rueda_context* context, const rueda_attention_plan* plan,
                                          int32_t process_set, int32_t threads, const void* q,
                                          const void* k, const void* v, void* out, float* lse,
                                          rueda_attention_saved** saved, rueda_request** request,
                                          rueda_error* error);
RUEDA_API int32_t rueda_attention_backward(rueda_context* context, const rueda_attention_plan* plan,
                                           int32_t process_set, int32_t threads, const void* dout,
                                           const float* dlse, const void* q, const void* k,
                                           const void* v, const void* out, const float* lse,
                                           const rueda_attention_saved* saved, void* dq, void* dk,
                                           void* dv, rueda_request** request, rueda_error* error);
/* Calls whose tensors and kernels are the caller's, as on a GPU: rueda keeps the order, the memory
 * and the messages, and calls back for everything else. It waits for no GPU: all is given to
 * `stream`, and so must be what is called back. Called by the calling thread alone, one at a time;
 * place: of several plans, else 0. */
typedef struct rueda_attention_device {
  size_t struct_size;
  int32_t device; /* -1: the host's memory */
  void* stream;   /* NULL: the device's default stream */
  void* user;     /* handed on */
  /* Memory of a slot, in stream order; NULL: there is none left. */
  void* (*take)(void* user, int32_t place, int32_t slot, int64_t bytes);
  void (*give)(void* user, int32_t place, int32_t slot);
  /* Instruction `number` of the program. Not 0: it failed, and the call ends. */
  int32_t (*perform)(void* user, int32_t place, int32_t number);
  /* Where take and perform say why they failed, in UTF-8 with its 0 at the end, before they return;
   * reason_bytes: its room. NULL: they do not say. */
  char* reason;
  size_t reason_bytes;
} rueda_attention_device;
/* A forward (0) or backward (1) by these kernels. With a context one plan, this rank's. Without one
 * the plans of all ranks of one process, whose messages are copies; sent (count, or NULL): the
 * bytes that each has sent. *under_way (or NULL): after an error, 1 if messages may still use
 * memory of the call, which is then not to be used again. What fails on one rank alone (take,
 * perform, its stream) ends the context on all ranks, whose errors name the rank and the reason:
 * the others wait for its messages. */
RUEDA_API int32_t rueda_attention_run(rueda_context* context,
                                      const rueda_attention_plan* const* plans, int32_t count,
                                      int32_t process_set, int32_t backward,
                                      const rueda_attention_device* device, int64_t* sent,
                                      int32_t* under_way, rueda_error* error);
/* Decoding: the last `queries` tokens of each sequence against a key/value cache that is spread
 * over the ranks: token t lies on rank t % ranks, at place t / ranks of that rank's cache (what
 * layout 2 leaves on it). All ranks call alike, in the same order; what is marked * is each rank's
 * own. */
typedef struct rueda_attention_decode_spec {
  size_t struct_size;
  int64_t batch, queries, heads, kv_heads, head_dim; /* batch: sequences of all ranks */
  int32_t dtype;                                     /* of q, k, v and the result */
  /* 0: q and the result have all sequences, on all ranks alike. 1: those of this rank, which has an
   * equal share of them, the first ranks one more. */
  int32_t own;
  int32_t causal;
  int64_t left;           /* sliding window, -1: none */
  int64_t global_tokens;  /* the first so many keys are seen whatever the window */
  double scale;           /* 0: head_dim ^ -0.5 */
  const int64_t* lengths; /* (batch): tokens on all ranks, the new ones too; 0: no sequence */
  const float* sinks;     /* (heads): a score without a value; NULL: none */
  int64_t sequences;      /* * of q */
  /* * The cache is (blocks, block_tokens, kv_heads, head_dim); block_table (batch, table_blocks)
   * says which blocks have a sequence's tokens, in order. NULL: sequence i is block i. */
  int64_t blocks, block_tokens;
  const int32_t* block_table;
  int64_t table_blocks;
  double softcap; /* as rueda_attention_spec's */
  const float* alibi_slopes;
  int64_t alibi_count;
} rueda_attention_decode_spec;
/* clang-format off */
#define RUEDA_ATTENTION_DECODE_SPEC_INIT                                              \
  {sizeof(rueda_attention_decode_spec), 1, 1, 1, 1, 0, 7, 0, 1, -1, 0, 0.0, NULL, NULL, \
   1, 0, 1, NULL, 0, 0.0, NULL, 0}
/* clang-format on */
/* Starts a call. q and out: (sequences, queries, heads, head_dim); lse: (sequences, heads,
 * queries), or NULL. The spec and its arrays are read before this returns; tensors belong to the
 * call until it has ended. With context NULL the whole cache is here. Wrong arguments are the
 * request's error, on the other ranks too. */
RUEDA_API int32_t rueda_attention_decode(rueda_context* context,
                                         const rueda_attention_decode_spec* spec,
                                         int32_t process_set, int32_t threads, const void* q,
                                         const void* k, const void* v, void* out, float* lse,
                                         rueda_request** request, rueda_error* error);
/* The same for tensors and kernels of the caller's, as on a GPU (rueda_attention_device), on the
 * calling thread: all has been given to the stream when it returns. `give` and `perform` know no
 * places. Slots, of what rueda_attention_decode_work calls rows:
 *   0 queries of all rows, where ranks have their own (own = 1, several ranks)
 *   1 partial results of all rows over the keys here: sums (head_dim), m and l of each, float32
 *   2 those of this rank's rows that came, of each other rank in turn
 *   3 results of each rank, of own = 1 or one rank this one's alone: log-sum-exps of its rows,
 *     float32, then its rows in the dtype
 * Steps: 0 q into its rows of slot 0; 1 slot 0, or q, against the cache: slot 1; 2 this rank's rows
 * of slot 1 and slot 2, and the sinks: its part of slot 3; 3 slot 3 to out and lse. The block table
 * may be the kernels' own: table_blocks, and block_table NULL. */
RUEDA_API int32_t rueda_attention_decode_run(rueda_context* context,
                                             const rueda_attention_decode_spec* spec,
                                             int32_t process_set,
                                             const rueda_attention_device* device,
                                             int32_t* under_way, rueda_error* error);
/* What those kernels compute on a rank. Rows are numbered (sequence, query, head). ranks + 1
 * numbers: the first row that each rank merges, and the number of rows; one: how many bytes after
 * each other ranks' results begin in slot 3; then RUEDA_ATTENTION_SPAN_NUMBERS for each span of
 * keys here: its sequence, its places [begin, end), `left` of its window (-1: none), and up to
 * which place all queries see it. Returns how many numbers there are, of which the first `count`
 * are filled in; -1 for a wrong spec. */
#define RUEDA_ATTENTION_SPAN_NUMBERS 5
RUEDA_API int64_t rueda_attention_decode_work(const rueda_attention_decode_spec* spec, int32_t rank,
                                              int32_t ranks, int64_t* values, int64_t count);
RUEDA_API void rueda_attention_saved_release(rueda_attention_saved* saved);
/* What a forward has kept, as bytes, for programs that hand on memory and no objects: of one entry
 * of the batch so many (0: nothing, -1 without a plan), and those of the entries one after the
 * other. Written once the forward has ended; made again of what was written, by the same plan. */
RUEDA_API int64_t rueda_attention_saved_size(const rueda_attention_plan* plan);
RUEDA_API int32_t rueda_attention_saved_write(const rueda_attention_plan* plan,
                                              const rueda_attention_saved* saved, void* bytes,
                                              rueda_error* error);
RUEDA_API int32_t rueda_attention_saved_read(const rueda_attention_plan* plan, const void* bytes,
                                             rueda_attention_saved** saved, rueda_error* error);

/* A local kernel of your own: attention of some rows against some keys, as partial softmax sums. A
 * partial result of a query is (acc, m, l): m about the largest score so far, l the sum of
 * exp(score - m), acc the sum of exp(score - m) * v; (0, -infinity, 0) is the identity.
 *   forward   goes on from what is there. Scores are scale * q.k; everything but rows is float32.
 *   backward  adds to dq, dk, dv, with p = exp(score - lse - lse_low), ds = p * (dout.v - delta).
 * Rows are picked by number and lie `stride` elements apart. */
typedef struct rueda_attention_rows {
  const void* base;
  int64_t stride;
  uint8_t dtype;
} rueda_attention_rows;
/* One query head; row i of acc and dq at i * acc_stride, of the others at i * ml_stride. */
typedef struct rueda_attention_head {
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
  /* Of kernels with changes_scores: a score becomes softcap * tanh(score / softcap) where softcap
   * is not 0, and then score - slopes[head] * |query's place - key's place|; slopes may be NULL. */
  float softcap;
  const float* slopes;
} rueda_attention_tile;
typedef struct rueda_attention_kernel {
  size_t struct_size;
  const char* name;
  /* The highest that takes the dtypes is used; the library's own have 10 and 20. */
  int32_t priority;
  uint32_t dtypes; /* 1 << RUEDA_FLOAT32 | ...: of queries and of keys */
  /* Called from several threads at once, each with 64-byte aligned scratch of its own, 512 Ki
   * floats. */
  void (*forward)(const rueda_attention_tile* tile, float* scratch);
  void (*backward)(const rueda_attention_tile* tile, float* scratch);
  int32_t
      changes_scores; /* it does what softcap and slopes of a tile ask for; 0: never gets such */
} rueda_attention_kernel;
/* For the whole process, for ever; the functions stay where they are. */
RUEDA_API int32_t rueda_attention_add_kernel(const rueda_attention_kernel* kernel,
                                             rueda_error* error);
/* That kernel for all calls from now on, on this rank; "auto": of highest priority; "measured": the
 * fastest, timed at the first call. As RUEDA_ATTENTION_KERNEL. */
RUEDA_API int32_t rueda_attention_use_kernel(const char* name, rueda_error* error);
/* The kernel of queries and keys of these dtypes, and why it is this one: both are cut to their
 * sizes, NUL included. */
RUEDA_API int32_t rueda_attention_kernel_for(int32_t q_dtype, int32_t k_dtype, int64_t head_dim,
                                             char* name, size_t name_size, char* why,
                                             size_t why_size, rueda_error* error);

#ifdef __cplusplus
}
#endif
#endif /* RUEDA_RUEDA_H_ */
