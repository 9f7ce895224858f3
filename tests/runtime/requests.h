// Requests and decisions for tests of the agreement.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/negotiation/agreement.h"
#include "runtime/negotiation/readiness_table.h"

namespace rueda::testing {

inline wire::Request request(const std::string& name, int64_t count = 4,
                             CollectiveKind kind = CollectiveKind::kAllreduce) {
  wire::Request r;
  r.kind = kind;
  r.name = std::string(name_of(kind)) + "." + name;
  if (kind != CollectiveKind::kBarrier) r.shape = {count};
  return r;
}

inline negotiation::RequestPtr share(wire::Request r) {
  return std::make_shared<const wire::Request>(std::move(r));
}

inline wire::Request grouped(wire::Request r, const std::string& group, uint32_t size) {
  r.group = group;
  r.group_size = size;
  return r;
}

inline std::vector<std::string> rank_names(Rank size) {
  std::vector<std::string> names;
  for (Rank rank = 0; rank < size; ++rank)
    names.push_back("rank " + std::to_string(rank) + " (test)");
  return names;
}

// A clock that stands still until the test moves it.
inline negotiation::Time at(double seconds) {
  return negotiation::Time{} + std::chrono::hours(1) +
         std::chrono::duration_cast<negotiation::Time::duration>(
             std::chrono::duration<double>(seconds));
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace rueda::testing
