// What is said of a slow rank: that it is, why as far as that is known, and what helps. Pure.
#pragma once

#include <string>

#include "runtime/engine/stragglers.h"

namespace rueda::engine {

// By what share of itself a step becomes shorter when samples move from one slow rank to the others
// until all are equally fast, as hvd.balance does it. share: of a step of now, for which the others
// wait. size: ranks, 2 at least.
//
//   A step takes T; the slow rank computes all of it, the p - 1 others (1 - s) T, each for b
//   samples. Together they get  v = b / T + (p - 1) b / ((1 - s) T)  samples done in a second, so
//   that all p b take  p b / v = T p (1 - s) / (p - s),  when nobody waits. It becomes shorter by
//
//     1 - p (1 - s) / (p - s)  =  s (p - 1) / (p - s)
//
// That is less than s, which is what a rank as fast as the others would give. What does not depend
// on samples (communication, the optimizer) is taken for computing, so it is rather a little more.
double saved_by_balancing(double share, Rank size);

// One paragraph. name: "rank 1 (pid 4711 on node2)".
std::string slow_rank_text(const std::string& name, const Stragglers::Finding& finding, Rank size);

}  // namespace rueda::engine
