// In which order members become ranks. Pure.
//
// Host by host, so that a host's ranks are neighbours: first the leader's host, then those with
// survivors, then those of newcomers alone, each group in the hosts' old order. Within a host the
// leader, survivors as they were, newcomers by slot. The leader is rank 0: nobody else's state
// counts more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/job/host_plan.h"

namespace rueda::launcher::membership {

struct Candidate {
  uint64_t member = 0;
  size_t host = 0;  // its place in the hosts' order
  int slot = 0;
  Rank last_rank = -1;  // in the epoch before; -1: a newcomer
  bool leads = false;   // may be rank 0; the lowest old rank of these is
};

// `candidates` in the order of their new ranks, and each one's place.
std::vector<Candidate> in_order(std::vector<Candidate> candidates);
// As launcher/job/host_plan.h counts them; `ordered` by rank, a host's ranks together.
std::vector<RankPlace> places_of(const std::vector<Candidate>& ordered);

}  // namespace rueda::launcher::membership
