// Calls in ordered groups, short enough for tests.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tests/runtime/persistent_calls.h"
#include "tests/support/patterns.h"

namespace rueda::testing {

using Ranks = std::vector<Rank>;

inline bool contains(const Ranks& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}
inline Rank place_in(const Ranks& ranks, Rank rank) {
  return static_cast<Rank>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

inline engine::Operation in_group(uint32_t group, engine::Operation op) {
  op.process_set = group;
  return op;
}

// Without a name.
inline engine::Operation call_of(uint32_t group, CollectiveKind kind, const Floats& in,
                                 Floats* out) {
  return in_group(group, operation(kind, "", in, out));
}

// "" if a sum in the group comes out right; for "the group goes on working".
inline std::string trouble_with_group(engine::Runtime& runtime, uint32_t group, const Ranks& ranks,
                                      size_t count = 10) {
  Floats data(count, static_cast<float>(runtime.membership().rank + 1));
  float total = 0;
  for (const Rank rank : ranks) total += static_cast<float>(rank + 1);
  const Status status = call(runtime, call_of(group, CollectiveKind::kAllreduce, data, &data));
  if (!status.ok()) return status.to_string();
  return data == Floats(count, total) ? "" : "wrong sum";
}

}  // namespace rueda::testing
