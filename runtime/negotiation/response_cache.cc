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
  for (const uint32_t slot : it->second) {
    if (*by_slot_[slot] == request) return slot;
  }
  return std::nullopt;
}

RequestPtr ResponseCache::get(uint32_t slot) const {
  return slot < by_slot_.size() ? by_slot_[slot] : nullptr;
}

std::optional<uint32_t> ResponseCache::assign(const RequestPtr& request) {
  if (!cacheable(*request)) return std::nullopt;
  if (const auto known = find(*request)) return known;
  // Unnamed operations may come in any number of shapes: they leave room for named ones.
  if (by_slot_.size() >= (is_numbered(*request) ? capacity_ / 4 : capacity_)) return std::nullopt;
  const auto slot = static_cast<uint32_t>(by_slot_.size());
  put(slot, request);
  return slot;
}

void ResponseCache::put(uint32_t slot, const RequestPtr& request) {
  if (slot >= capacity_) return;
  if (slot >= by_slot_.size()) by_slot_.resize(slot + 1);
  if (by_slot_[slot] != nullptr) return;
  by_slot_[slot] = request;
  by_name_[request->name].push_back(slot);
}

}  // namespace rueda::negotiation
