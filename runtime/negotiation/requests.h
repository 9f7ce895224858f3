// Requests of all ranks for one tensor.
#pragma once

#include <memory>
#include <vector>

#include "collectives/base/types.h"
#include "proto/messages.h"

namespace rueda::negotiation {

// Shared: a request seen before is one object for all ranks and steps.
using RequestPtr = std::shared_ptr<const wire::Request>;

inline bool same(const RequestPtr& a, const RequestPtr& b) {
  return a == b || (a != nullptr && b != nullptr && *a == *b);
}
size_t hash_of(const wire::Request& request);
// As far as ranks have one; one at least is there.
bool all_equal(const std::vector<RequestPtr>& by_rank);

// One where all ranks ask the same, else one for each rank.
class Requests {
 public:
  Requests() = default;
  // by_rank: null where a rank has none; then all others' are equal. One at least is there.
  explicit Requests(const std::vector<RequestPtr>& by_rank);

  const RequestPtr& of(Rank rank) const {
    return requests_.size() == 1 ? requests_.front() : requests_[static_cast<size_t>(rank)];
  }
  const RequestPtr& first() const { return requests_.front(); }
  bool all_equal() const { return requests_.size() == 1; }
  // Are these the same, as far as ranks have one? Not all of a tensor whose sizes differ.
  bool are(const std::vector<RequestPtr>& by_rank) const;
  size_t hash() const;
  bool operator==(const Requests& other) const;

 private:
  std::vector<RequestPtr> requests_;
};

}  // namespace rueda::negotiation
