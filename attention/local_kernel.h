// LocalKernel: attention of some rows against some keys, on one core, as partial softmax sums.
//
// A partial result of a query is (acc, m, l): m the largest score so far or a little less, l the
// sum of exp(score - m), acc the sum of exp(score - m) * v. (0, -infinity, 0) is the identity;
// adding keys in any order gives the same up to rounding. acc / l is the output, m + log l the
// log-sum-exp.
//
// Numerics: inputs are widened to float32, everything is computed in float32. A query that sees no
//           key keeps its identity; no NaN arises from finite inputs.
// Threads:  any; calls on other accumulators and scratch do not meet.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rueda::attention {

// Rows of elements, `stride` elements apart; rows are picked by number.
struct RowsIn {
  const std::byte* base = nullptr;
  int64_t stride = 0;
  uint8_t dtype = 7;  // a DType: float32, bfloat16 or float16
};

// What one query head brings along. Sums and gradients are float32 and lie with strides of their
// own: row i of acc is acc + i * acc_stride, of m is m[i * ml_stride].
struct QueryHead {
  RowsIn q;
  float* acc = nullptr;
  float* m = nullptr;
  float* l = nullptr;
  // Backward.
  RowsIn dout;
  const float* lse = nullptr;    // of the finished softmax
  const float* delta = nullptr;  // sum(dout * out) - dlse
  // What lse lacks of the log-sum-exp, which float32 cannot hold at large scores; may be null:
  // zeros.
  const float* lse_low = nullptr;
  float* dq = nullptr;  // added to, as acc lies
};

// One tile: the i-th query, row q_rows[i], sees the j-th key, row k_rows[j], where
// low <= (k_pos + j * k_step) - (q_pos + i * q_step) <= high.
struct KernelTile {
  int64_t queries = 0, keys = 0;
  int64_t head_dim = 0;
  const int32_t* q_rows = nullptr;
  const int32_t* k_rows = nullptr;
  int64_t q_pos = 0, q_step = 1, k_pos = 0, k_step = 1;
  int64_t low = 0, high = 0;
  float scale = 1;
  const QueryHead* heads = nullptr;  // all query heads that share the keys
  int64_t head_count = 0;
  int64_t acc_stride = 0, ml_stride = 0;
  RowsIn k, v;
  // Backward: added to, row k_rows[j] at dkv_stride.
  float* dk = nullptr;
  float* dv = nullptr;
  int64_t dkv_stride = 0;
  // Of kernels that change scores: s = scale * q.k becomes softcap * tanh(s / softcap) where
  // softcap is not 0, and then s - slopes[head] * |query's place - key's place|.
  float softcap = 0;
  const float* slopes = nullptr;  // head_count of them; null: none
};

struct LocalKernel {
  const char* name;
  int priority;         // of those that are available and take the dtypes, the highest is used
  bool (*available)();  // on this machine, now; null: yes
  uint32_t dtypes;      // 1 << DType: of queries and of keys
  void (*forward)(const KernelTile& tile, float* scratch);
  void (*backward)(const KernelTile& tile, float* scratch);
  bool changes_scores = false;  // it does what a tile's softcap and slopes ask for
};

// Floats of scratch that both need, 64-byte aligned; contents do not matter.
inline constexpr size_t kScratchFloats = 512 * 1024;

// The one source for every instruction set, of the one that rueda::kernels uses.
struct NativeKernel {
  void (*forward)(const KernelTile& tile, float* scratch);
  void (*backward)(const KernelTile& tile, float* scratch);
};
const NativeKernel& native_kernel();
// The same source on pairs of bfloat16, for CPUs with AVX512-BF16 while AVX-512 is the instruction
// set. Null: this build has none.
const NativeKernel* pairs_kernel();

}  // namespace rueda::attention
