/* What librueda_cuda.so gives for attention: blocks of queries against blocks of keys, with
 * everything that libraries refuse: queries without keys, any band, blocks, sums that go on from
 * what is there, gradients of the log-sum-exp, deterministic.
 *
 * Plain C types; Python fills them by ctypes (bindings/python/rueda/attention/device/_own.py), so a
 * change of one changes kAttentionVersion and that file. Threads: any, with the device's context
 * current. Everything is given to `stream` and returns at once; the result is a cudaError_t, 0 is
 * well. Memory is the device's, `Call` the host's. */
#pragma once

#include <cstdint>

namespace rueda::attention::cuda {

inline constexpr uint32_t kAttentionVersion = 4;

enum class Format : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

extern "C" {

/* (batch, rows, heads, head_dim), the last index dense; strides in elements. Of one number to a row
 * and head likewise. */
struct Strided {
  void* data;
  int64_t batch, row, head;
};

/* Rows row, row + step, ...: `count` of a tensor's. */
struct RowRun {
  int64_t row, step, count;
};

/* Rows of the other side, and what is seen: the i-th row of an item's job stands at own_pos + i *
 * own_step, the j-th here at pos + j * pos_step; query sees key where low <= key's - query's <=
 * high. With ALiBi the distance counts, too. */
struct Range {
  RowRun rows;
  int64_t pos, pos_step, own_pos, own_step, low, high;
};

/* What one thread block does for each head and batch: its rows (at most block_rows), of which the
 * first is the `at`-th of its job, against `ranges` ranges from `first` on. */
struct Item {
  RowRun rows;
  int64_t at, first, ranges;
};

/* No two items of a call share rows. */
struct Call {
  Format format;                    /* of q, k, v, dout */
  int32_t head_dim;                 /* 1 to 256 */
  int64_t batches, heads, kv_heads; /* kv_heads divides heads */
  float scale, softcap;             /* softcap 0: none */
  Strided q, k, v;
  Strided acc, m, sums; /* forward, float32: as in attention/local_kernel.h */
  Strided dout;
  Strided lse, delta, dq, dk, dv; /* backward, float32; gradients are added to */
  Strided slopes;    /* ALiBi, float32: a number of each batch and head; data null: none */
  const Item* items; /* of queries; of keys in backward_keys */
  const Range* ranges;
  int64_t item_count;
};

/* Rows [0, rows) of partial sums (acc, m, sums), which a library's result (out, lse) is added to,
 * or whose own result is made. rows * heads < 2^32. */
struct MergeCall {
  Format format; /* of out */
  int32_t head_dim;
  int64_t batches, rows, heads;
  int64_t fresh; /* not 0: there is nothing yet; acc, m, sums are written, not read */
  Strided acc, m, sums, out, lse; /* acc, m, sums, lse: float32 */
};

struct AttentionFunctions {
  uint32_t version;
  /* Rows of an item at most. */
  int32_t (*block_rows)(int32_t head_dim, int32_t backward);
  int (*forward)(const Call* call, void* stream);
  int (*backward_queries)(const Call* call, void* stream); /* dq */
  int (*backward_keys)(const Call* call, void* stream);    /* dk, dv */
  int (*merge)(const MergeCall* call, void* stream);
  int (*add)(const MergeCall* call, void* stream);    /* acc += out alone */
  int (*finish)(const MergeCall* call, void* stream); /* out = acc / sums, m += log(sums) */
  const char* (*explain)(int error);
};

/* What the plugin exports, as "rueda_cuda_attention". Null when it was built for another version.
 */
typedef const struct AttentionFunctions* (*GetAttentionFunctions)(uint32_t version);

}  // extern "C"

}  // namespace rueda::attention::cuda
