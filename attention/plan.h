// The planner: from a spec and a rank to tiles, sends and receives. Pure integers; knows no tensor,
// no thread and no clock.
//
// Ranks form a grid: `ulysses` neighbouring ranks exchange heads for tokens, so that together they
// hold the tokens of all of them, each for its share of the heads; ranks with the same place in
// their group form a ring. In step s of a ring of R, rank r receives what it needs from rank r - s
// and sends what is needed to rank r + s (modulo R): each row goes straight to who uses it, rows
// that nobody uses stay at home, and two slots are enough.
//
// Cost per rank, in bytes, for c tokens, Hk KV heads of d elements of e bytes and a full mask:
// forward (R-1) * 2 c Hk d e, backward (R-1) * 2 c Hk d (e + 4) when keys and values travel; a
// causal mask takes 3/4 of that in the zigzag layout, 1/2 in the contiguous one.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/parts.h"
#include "attention/spec.h"

namespace rueda::attention {

// The heads of one rank of a Ulysses group, as global numbers.
struct HeadShare {
  int64_t q_begin = 0, q_end = 0;
  int64_t kv_begin = 0, kv_end = 0;
  // Query heads of this share that use KV head h.
  int64_t queries_of(int64_t h, int64_t group) const;
};
HeadShare heads_of(const AttentionSpec& spec, Rank place);
// True if two places of a group need the same KV head (fewer KV heads than places).
bool replicates_kv(const AttentionSpec& spec);

// Queries `q` against keys `k`, both as indices into the tokens of a shard: the i-th query, which
// stands at q_pos + i * q_step among the keys, sees the j-th key, at k_pos + j * k_step, where the
// difference k - q lies in the plan's band.
struct Tile {
  int64_t head_begin = 0, head_end = 0, head_step = 1;  // global KV heads
  Run q, k;
  int64_t q_pos = 0, q_step = 1;
  int64_t k_pos = 0, k_step = 1;
  int64_t pairs = 0;  // (query, key) pairs of one query head
};

// Rows of a shard that travel for the KV heads [head_begin, head_end), as indices.
struct RowSet {
  int64_t head_begin = 0, head_end = 0;
  std::vector<Run> rows;
};

// One message: to or from `peer`, in the `key`-th exchange. All ranks go through the same keys.
struct Hop {
  Rank peer = 0;
  int64_t key = 0;
  int64_t step = 1;  // of the ring, from 1
  std::vector<RowSet> rows;
  std::vector<Tile> tiles;  // what the receiver computes with it
};

struct RingPlan {
  Rotate rotate = Rotate::kKeysAndValues;  // whose rows travel
  int64_t keys = 0;                        // exchanges
  bool answered = false;  // what is computed with a message goes back to who sent it
  // Needs no message: in pieces as large as a step's messages, to fill the time between exchanges.
  std::vector<Tile> local;
  std::vector<size_t> local_ends;  // of the pieces in it
  std::vector<Hop> receives;       // ascending by key
  std::vector<Hop> sends;
};

// What the plan of one rank says, for people and tests.
struct PlanReport {
  uint64_t hash = 0;
  int64_t steps = 0;
  int64_t tiles = 0;
  int64_t messages_sent_forward = 0, messages_sent_backward = 0;
  int64_t bytes_sent_forward = 0, bytes_sent_backward = 0;
  int64_t bytes_received_forward = 0, bytes_received_backward = 0;
  int64_t flops_forward = 0, flops_backward = 0;
  int64_t saved_bytes = 0;  // kept for backward, the caller's tensors included
  int64_t workspace_forward = 0,
          workspace_backward = 0;  // peak of what a call allocates for itself
};

class Programs;  // program.h

// One rank's part.
struct AttentionPlan {
  AttentionSpec spec;
  Rank rank = 0;
  Band band{};
  HeadShare heads;          // after the exchange of heads
  std::vector<Run> tokens;  // of the group, as positions; of this rank where ulysses is 1
  std::vector<Run> key_tokens;
  RingPlan forward, backward;
  PlanReport report;
  std::shared_ptr<Programs> programs;  // see program_of

  Rank group_begin() const { return rank / spec.ulysses * spec.ulysses; }
  // What is computed before the key-th exchange, and, for ring.keys, behind the last.
  std::span<const Tile> local_tiles(const RingPlan& ring, int64_t key) const;
  // All heads of this rank's share, all rows of the side that travels.
  Part all_rows(int64_t rows = kUnlimited) const { return {heads.kv_begin, heads.kv_end, 0, rows}; }
  int64_t own_tokens() const;
  int64_t own_keys() const;
  int64_t group_tokens() const { return total(tokens); }
  int64_t group_keys() const { return total(key_tokens); }
  int64_t head_group() const { return spec.heads / spec.kv_heads; }
};

Result<AttentionPlan> make_plan(const AttentionSpec& spec, Rank rank);

// Bytes of one row and KV head with `queries` query heads, in a message of a ring and in the
// partial result that comes back for it.
struct RowBytes {
  int64_t out = 0;
  int64_t back = 0;
};
RowBytes row_bytes(const AttentionSpec& spec, bool backward, Rotate rotate, int64_t queries);
// Bytes of a hop's message and of its answer, batch included.
RowBytes hop_bytes(const AttentionPlan& plan, bool backward, const Hop& hop);

// Largest over mean of flops_forward over all ranks.
double balance(const AttentionSpec& spec);

}  // namespace rueda::attention
