// Decoding: a few new queries of each sequence against a key/value cache that is spread over ranks.
//
// Token t of a sequence lies on rank t % ranks, at place t / ranks of that rank's cache (the
// striped layout), so that caches grow evenly and a prompt's shard is the beginning of its cache.
// Queries are few and keys are many: queries travel, and come back as partial results
// (local_kernel.h), which are merged by log-sum-exp in the order of the ranks: the same bits each
// time, whatever the number of threads. Nothing of the cache travels.
//
//   the same queries on all ranks     each computes its partial results for all of them; each
//                                     merges the partial results of an equal share of the rows, and
//                                     all get all results
//   own sequences (`own`)             ranks have an equal share of the sequences each, in order;
//                                     queries go to all ranks, partial results back to the owner
//
// Source of the merge: flash-decoding's split of the keys (Dao et al., 2023), over ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/device_calls.h"
#include "attention/link.h"
#include "attention/means.h"
#include "collectives/base/types.h"

namespace rueda::attention {

// Equal on all ranks but for `sequences` and what is of this rank's cache, at the end.
struct DecodeSpec {
  int64_t batch = 1;     // sequences of all ranks
  int64_t queries = 1;   // new tokens of each: its last ones, whose keys are in the cache already
  int64_t heads = 1;     // of the queries
  int64_t kv_heads = 1;  // divides heads
  int64_t head_dim = 0;  // elements, 1 to 256
  DType dtype = DType::kFloat32;  // float32, bfloat16 or float16
  Rank ranks = 1, rank = 0;
  bool own = false;
  bool causal = true;         // new tokens see none that come after them
  int64_t left = -1;          // window: keys at most so many tokens before the query; -1: all
  int64_t global_tokens = 0;  // the first so many keys are seen whatever the window
  double scale = 0;           // of the scores; 0: head_dim ^ -0.5
  double softcap = 0;         // as AttentionSpec's
  std::vector<float> alibi_slopes;
  // Tokens of each sequence on all ranks, the new ones included; 0: of none, its result is 0.
  std::vector<int64_t> lengths;
  std::vector<float> sinks;  // of each head, a score without a value; empty: none
  int64_t sequences = 1;     // that q has on this rank
  // The cache is (blocks, block_tokens, kv_heads, head_dim). block_table is (batch, table_blocks):
  // where the tokens of a sequence on this rank lie, block_tokens after block_tokens. Empty:
  // sequence i is block i.
  int64_t blocks = 0, block_tokens = 0, table_blocks = 0;
  std::vector<int32_t> block_table;

  bool changes_scores() const { return softcap != 0 || !alibi_slopes.empty(); }
};

// Says what is wrong with what all ranks have alike; and with what is this rank's.
Status check(const DecodeSpec& spec);
// on_device: the block table may be where the cache is: table_blocks, and no block_table.
Status check_own(const DecodeSpec& spec, bool on_device = false);
// Over what all ranks have alike.
uint64_t hash_of(const DecodeSpec& spec);

// Dense. Of `own`, q, out and lse have this rank's sequences, else all of them.
struct DecodeTensors {
  const std::byte* q = nullptr;  // (sequences, queries, heads, head_dim)
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::byte* out = nullptr;  // as q
  float* lse = nullptr;      // (sequences, heads, queries), sinks included; may be null
};

// On the host's memory or a GPU's, the same order of messages and of work (decode_work.h). A spec
// that was checked. Errors name the exchange and the peer.
Status decode(const DecodeSpec& spec, Link* link, const Means& means, const DecodeTensors& tensors);
Status decode(const DecodeSpec& spec, Link* link, const DeviceKernels& kernels);

}  // namespace rueda::attention
