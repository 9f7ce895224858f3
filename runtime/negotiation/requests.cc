#include "runtime/negotiation/requests.h"

#include <algorithm>
#include <functional>
#include <string>

namespace rueda::negotiation {
namespace {

void mix(size_t* hash, size_t value) {
  *hash ^= value + 0x9e3779b97f4a7c15 + (*hash << 6) + (*hash >> 2);
}

const RequestPtr& first_of(const std::vector<RequestPtr>& by_rank) {
  return *std::find_if(by_rank.begin(), by_rank.end(),
                       [](const RequestPtr& request) { return request != nullptr; });
}

}  // namespace

// Of what tells requests of one name apart; the rest is left to comparison.
size_t hash_of(const wire::Request& request) {
  size_t hash = std::hash<std::string>()(request.name);
  for (const int64_t extent : request.shape) mix(&hash, static_cast<size_t>(extent));
  for (const int64_t rows : request.splits) mix(&hash, static_cast<size_t>(rows));
  mix(&hash, static_cast<size_t>(request.dtype));
  return hash;
}

bool all_equal(const std::vector<RequestPtr>& by_rank) {
  const RequestPtr& first = first_of(by_rank);
  return std::all_of(by_rank.begin(), by_rank.end(), [&](const RequestPtr& request) {
    return request == nullptr || same(request, first);
  });
}

Requests::Requests(const std::vector<RequestPtr>& by_rank) {
  if (negotiation::all_equal(by_rank)) {
    requests_ = {first_of(by_rank)};
  } else {
    requests_ = by_rank;
  }
}

bool Requests::are(const std::vector<RequestPtr>& by_rank) const {
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == nullptr ? !all_equal() : !same(of(static_cast<Rank>(rank)), by_rank[rank]))
      return false;
  }
  return true;
}

size_t Requests::hash() const {
  size_t hash = 0;
  for (const RequestPtr& request : requests_) mix(&hash, hash_of(*request));
  return hash;
}

bool Requests::operator==(const Requests& other) const {
  return requests_.size() == other.requests_.size() &&
         std::equal(requests_.begin(), requests_.end(), other.requests_.begin(), same);
}

}  // namespace rueda::negotiation
