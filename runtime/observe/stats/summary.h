// What rueda_stats tells, made of a stats page as it is now and as it was then. Pure.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "collectives/base/types.h"
#include "runtime/observe/stats/stats_page.h"
#include "runtime/observe/stats/summary_struct.h"

namespace rueda::stats {

// Below this duration lies that share (0 to 1) of what a histogram has counted, in seconds,
// interpolated within a bucket. 0 when nothing was counted.
double quantile(const Histogram<int64_t>& histogram, double share);
double total_of(const std::array<int64_t, kKinds>& by_kind);
int64_t count_of(const Histogram<int64_t>& histogram);

// since: as the page was when that began, which is `seconds` ago. now_ns: what waits at
// this moment counts until then.
Summary summarize(const Numbers& now, const Numbers& since, double seconds, Rank size,
                  int64_t now_ns);
// The page as what another summary may begin with: what waits at that moment has waited before it.
Numbers as_of(Numbers now, int64_t now_ns);
// "shm+tcp"; letters, digits and + alone.
std::string transport_of(const Numbers& page);
// How long threads have slept until each rank came, in seconds: its number, -1 for others.
struct Late {
  Rank rank = 0;
  double seconds = 0;
};
std::vector<Late> late_ranks(const Numbers& now, const Numbers& since);

}  // namespace rueda::stats
