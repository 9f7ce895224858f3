#include "runtime/negotiation/response_cache.h"

#include <algorithm>
#include <utility>

namespace rueda::negotiation {

std::optional<RequestId> ResponseCache::find(const wire::Request& request) const {
  const auto [begin, end] = by_hash_.equal_range(hash_of(request));
  const auto found = std::find_if(begin, end, [&](const auto& of_hash) {
    return *requests_.at(of_hash.second).request == request;
  });
  if (found == end) return std::nullopt;
  return found->second;
}

RequestPtr ResponseCache::request(RequestId id) const {
  const auto known = requests_.find(id);
  return known == requests_.end() ? nullptr : known->second.request;
}

const ResponseCache::Agreed* ResponseCache::get(CacheId id) const {
  const auto agreed = agreed_.find(id);
  return agreed == agreed_.end() ? nullptr : &agreed->second;
}

void ResponseCache::put(CacheId id, const wire::Request& request, SizesPtr sizes) {
  if (agreed_.count(id) != 0) return;
  std::optional<RequestId> number = find(request);
  if (!number) {
    number = next_++;
    requests_[*number].request = std::make_shared<const wire::Request>(request);
    by_hash_.emplace(hash_of(request), *number);
    ++of_name_[request.name];
  }
  Known& known = requests_.at(*number);
  known.ids.push_back(id);
  agreed_[id] = {*number, known.request, std::move(sizes)};
}

void ResponseCache::use(CacheId id) {
  const Agreed* agreed = get(id);
  if (agreed == nullptr) return;
  std::vector<CacheId>& ids = requests_.at(agreed->request_id).ids;
  if (ids.back() == id) return;
  const auto old = std::find(ids.begin(), ids.end(), id);
  std::rotate(old, old + 1, ids.end());
}

void ResponseCache::forget(CacheId id) {
  const auto agreed = agreed_.find(id);
  if (agreed == agreed_.end()) return;
  const RequestId number = agreed->second.request_id;
  agreed_.erase(agreed);
  const auto known = requests_.find(number);
  std::erase(known->second.ids, id);
  if (!known->second.ids.empty()) return;
  const RequestPtr request = std::move(known->second.request);
  requests_.erase(known);
  const auto [begin, end] = by_hash_.equal_range(hash_of(*request));
  by_hash_.erase(
      std::find_if(begin, end, [&](const auto& of_hash) { return of_hash.second == number; }));
  if (--of_name_.at(request->name) == 0) of_name_.erase(request->name);
}

}  // namespace rueda::negotiation
