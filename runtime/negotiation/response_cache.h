// ResponseCache: tensors seen before, by number. Afterwards one number stands for name, shape,
// dtype and all the rest.
//
// The root hands the numbers out in its responses, so every rank's cache is filled alike; a number
// is never given to another tensor (a rank may still have a message with it under way), a full
// cache just takes no more. A tensor that comes back with other properties gets another number, and
// has both. Pure; one thread.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/negotiation/agreement.h"

namespace rueda::negotiation {

class ResponseCache {
 public:
  explicit ResponseCache(size_t capacity) : capacity_(capacity) {}

  // Sizes that depend on data are never cached, nor names that are used once.
  static bool cacheable(const wire::Request& request);
  static bool is_numbered(const wire::Request& request);
  // The number under which exactly this request is known.
  std::optional<uint32_t> find(const wire::Request& request) const;
  // Null when unknown.
  RequestPtr get(uint32_t id) const;

  // The root: a number for this request, if there is room; the same again for the same request.
  std::optional<uint32_t> assign(const RequestPtr& request);
  // Every rank: the root's number for a request. A number that is taken stays as it is.
  void put(uint32_t id, const RequestPtr& request);
  size_t size() const { return by_id_.size(); }

 private:
  size_t capacity_;
  std::vector<RequestPtr> by_id_;
  // More than one where a tensor comes with different properties (the last, smaller batch of an
  // epoch).
  std::unordered_map<std::string, std::vector<uint32_t>> by_name_;
};

}  // namespace rueda::negotiation
