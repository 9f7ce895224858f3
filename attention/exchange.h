// The exchange of heads for tokens inside a Ulysses group, and back.
//
// Inward: every rank of the group gives each other rank its tokens for that rank's heads. Outward:
// every rank gives each other rank that rank's tokens for its own heads.
#pragma once

#include <vector>

#include "attention/link.h"
#include "attention/plan.h"

namespace rueda::attention {

// One tensor of an exchange. `own` is (batch, tokens of the rank, all heads, width), `group`
// (batch, tokens of the group, heads of the share, width), elements of `bytes` bytes.
struct Exchanged {
  std::byte* own = nullptr;
  std::byte* group = nullptr;
  bool keys = false;  // KV heads, else query heads
  int64_t width = 0;
  int64_t bytes = 0;
  bool add = false;  // outward, float32: add to `own` in rank order (heads that several ranks have)
};

// what: "attention forward, exchange of heads", for errors.
Status exchange(const AttentionPlan& plan, Link* link, bool inward,
                const std::vector<Exchanged>& tensors, const char* what);

}  // namespace rueda::attention
