#include "runtime/negotiation/response_cache.h"

namespace rueda::negotiation {

bool ResponseCache::cacheable(const wire::Request& request) {
  const bool fixed_sizes = request.kind == CollectiveKind::kAllreduce ||
                           request.kind == CollectiveKind::kBroadcast ||
                           request.kind == CollectiveKind::kReducescatter;
  return fixed_sizes &&
         (!is_numbered(request) ||
          request.name.size() <= request.name.find('.') + std::string_view(".noname.15").size());
}

// "allreduce.noname.7": numbered by the runtime. Few numbers go round; longer ones are used once.
bool ResponseCache::is_numbered(const wire::Request& request) {
  const size_t dot = request.name.find('.');
  return dot != std::string::npos && request.name.compare(dot + 1, 7, "noname.") == 0;
}

std::optional<uint32_t> ResponseCache::find(const wire::Request& request) const {
  const auto it = by_name_.find(request.name);
  if (it == by_name_.end()) return std::nullopt;
  for (const uint32_t id : it->second) {
    if (*by_id_[id] == request) return id;
  }
  return std::nullopt;
}

RequestPtr ResponseCache::get(uint32_t id) const {
  return id < by_id_.size() ? by_id_[id] : nullptr;
}

std::optional<uint32_t> ResponseCache::assign(const RequestPtr& request) {
  if (!cacheable(*request)) return std::nullopt;
  if (const auto known = find(*request)) return known;
  // Unnamed operations may come in any number of shapes: they leave room for named ones.
  if (by_id_.size() >= (is_numbered(*request) ? capacity_ / 4 : capacity_)) return std::nullopt;
  const auto id = static_cast<uint32_t>(by_id_.size());
  put(id, request);
  return id;
}

void ResponseCache::put(uint32_t id, const RequestPtr& request) {
  if (id >= capacity_) return;
  if (id >= by_id_.size()) by_id_.resize(id + 1);
  if (by_id_[id] != nullptr) return;
  by_id_[id] = request;
  by_name_[request->name].push_back(id);
}

}  // namespace rueda::negotiation
