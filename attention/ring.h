// The exchanges of a ring: which message when, in which slot. What is in them is the caller's.
#pragma once

#include <functional>

#include "attention/link.h"
#include "attention/plan.h"

namespace rueda::attention {

struct RingCalls {
  // Writes the message of a hop that is sent.
  std::function<void(const Hop&, std::byte* message)> pack;
  // Computes with a message that came, and writes the answer (null: none).
  std::function<void(const Hop&, const std::byte* message, std::byte* answer)> serve;
  // Takes in the answer to a hop that was sent.
  std::function<void(const Hop&, const std::byte* answer)> absorb;
  // Computes what needs no message and comes before the key-th exchange, or behind the last.
  std::function<void(int64_t key)> local;
};

Status run_ring(const AttentionPlan& plan, bool backward, Link* link, const RingCalls& calls);

}  // namespace rueda::attention
