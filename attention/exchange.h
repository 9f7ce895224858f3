// The exchange of heads for tokens inside a Ulysses group, and back: what is in its messages.
//
// Inward: every rank of the group gives each other rank its tokens for that rank's heads. Outward:
// every rank gives each other rank that rank's tokens for its own heads.
#pragma once

#include <span>
#include <vector>

#include "attention/program.h"

namespace rueda::attention {

// One tensor of an exchange. `own` is (batch, tokens of the rank, all heads, width), `group`
// (batch, tokens of the group, heads of the share, width), elements of `bytes` bytes.
struct Exchanged {
  Role own = Role::kMessage;
  Role group = Role::kMessage;
  bool keys = false;  // KV heads, else query heads
  int64_t width = 0;
  int64_t bytes = 0;
  bool add = false;  // outward, float32: add to `own` in rank order (heads that several ranks have)
};

// In the order in which a message has them.
std::vector<Exchanged> exchanged(const AttentionPlan& plan, bool backward, bool inward);

// Bytes that this rank sends to place u of its group, or receives from it.
int64_t exchange_bytes(const AttentionPlan& plan, bool backward, bool inward, Rank u, bool sent);

// What one tensor has in the message to or from place u: rows [row, row + rows) and heads
// [head, head + heads) of it, in the order of `exchanged`. packs: the side that sends.
struct HeadsPart {
  Role role = Role::kMessage;
  int64_t row = 0, rows = 0, head = 0, heads = 0;
  int64_t bytes = 0;  // of all of it
  bool add = false;
};
std::vector<HeadsPart> heads_parts(const AttentionPlan& plan, bool backward, bool inward, Rank u,
                                   bool packs);

// memory: of each buffer of the program.
void pack_heads(const AttentionPlan& plan, const Program& program, bool inward, Rank u,
                std::span<std::byte* const> memory, std::byte* to);
void unpack_heads(const AttentionPlan& plan, const Program& program, bool inward, Rank u,
                  std::span<std::byte* const> memory, const std::byte* from);

}  // namespace rueda::attention
