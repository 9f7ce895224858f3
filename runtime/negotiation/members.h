// Members: the ranks of one process set as people know them. A rank's place is its index in these
// lists; the agreement counts in places, its texts name ranks of the job.
#pragma once

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "collectives/base/types.h"
#include "runtime/negotiation/agreement.h"

namespace rueda::negotiation {

struct Members {
  // All ranks of a job.
  Members(std::vector<std::string> of) : names(std::move(of)), ranks(names.size()) {
    std::iota(ranks.begin(), ranks.end(), Rank{0});
  }
  // names: of all ranks of the job.
  Members(const std::vector<std::string>& of, std::vector<Rank> members, std::string left)
      : ranks(std::move(members)), has_left(std::move(left)) {
    for (const Rank rank : ranks) names.push_back(of[static_cast<size_t>(rank)]);
  }

  size_t size() const { return ranks.size(); }
  const std::string& name(Rank place) const { return names[static_cast<size_t>(place)]; }
  // "ranks 0, 2"
  std::string list(const std::vector<Rank>& places) const {
    std::vector<Rank> numbers;
    numbers.reserve(places.size());
    for (const Rank place : places) numbers.push_back(ranks[static_cast<size_t>(place)]);
    return name_ranks(numbers);
  }

  std::vector<std::string> names;  // "rank 3 (pid 4711 on node2)"
  std::vector<Rank> ranks;         // ascending
  // What is said of one that takes part no more.
  std::string has_left = "has been shut down";
};

}  // namespace rueda::negotiation
