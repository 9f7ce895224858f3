#include "launcher/membership/placement.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace rueda::launcher::membership {

std::vector<Candidate> in_order(std::vector<Candidate> candidates) {
  const auto old_rank = [](const Candidate& c) {  // newcomers behind everybody else
    return std::tuple(c.last_rank < 0, c.last_rank, c.host, c.slot, c.member);
  };
  const Candidate* leader = nullptr;
  std::set<size_t> with_survivors;
  for (const Candidate& c : candidates) {
    if (c.leads && (leader == nullptr || old_rank(c) < old_rank(*leader))) leader = &c;
    if (c.last_rank >= 0) with_survivors.insert(c.host);
  }
  const uint64_t first = leader != nullptr ? leader->member : 0;
  const bool has_leader = leader != nullptr;
  const size_t first_host = has_leader ? leader->host : 0;
  const auto key = [&](const Candidate& c) {
    return std::tuple(!(has_leader && c.host == first_host), with_survivors.count(c.host) == 0,
                      c.host, !(has_leader && c.member == first), old_rank(c));
  };
  std::sort(candidates.begin(), candidates.end(),
            [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); });
  return candidates;
}

std::vector<RankPlace> places_of(const std::vector<Candidate>& ordered) {
  std::vector<RankPlace> places(ordered.size());
  const auto size = static_cast<Rank>(ordered.size());
  std::vector<Rank> hosts_with;  // local rank -> hosts that have it, so far
  for (size_t begin = 0; begin < ordered.size();) {
    size_t end = begin;
    while (end < ordered.size() && ordered[end].host == ordered[begin].host) ++end;
    for (size_t r = begin; r < end; ++r) {
      const size_t local = r - begin;
      if (hosts_with.size() <= local) hosts_with.push_back(0);
      places[r] = {static_cast<Rank>(r),     size,
                   static_cast<Rank>(local), static_cast<Rank>(end - begin),
                   hosts_with[local]++,      0};
    }
    begin = end;
  }
  for (RankPlace& place : places)
    place.cross_size = hosts_with[static_cast<size_t>(place.local_rank)];
  return places;
}

}  // namespace rueda::launcher::membership
