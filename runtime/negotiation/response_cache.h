// ResponseCache: what a rank has agreed on before. Afterwards one number stands for name, shape,
// dtype and all the rest.
//
//   request id   this rank's own number for one of its requests     what its user repeats
//   cache id     all ranks' number for one agreement, from the root   what goes over the wire
//
// A cache id means: each rank's request is exactly what it was when the id was agreed on, and so
// are the sizes that follow. A request may be in several agreements, of which other ranks' rows
// tell one from the other; then any of their ids says what this rank means. Ids are never given
// again.
//
// Which ids there are the root decides (IdTable): it gives them and takes them back in its
// responses, so every rank's cache is alike. Pure; one thread.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/negotiation/agreement.h"
#include "runtime/negotiation/sizes.h"
#include "runtime/plan/step_plan.h"

namespace rueda::negotiation {

using plan::CacheId;
using plan::RequestId;

class ResponseCache {
 public:
  struct Agreed {
    RequestId request_id = 0;
    RequestPtr request;  // this rank's
    SizesPtr sizes;
  };

  // The number of exactly this request.
  std::optional<RequestId> find(const wire::Request& request) const;
  // Null when unknown, or forgotten.
  RequestPtr request(RequestId id) const;
  bool knows(RequestId id) const { return requests_.count(id) != 0; }
  bool knows_name(const std::string& name) const { return of_name_.count(name) != 0; }
  // The id under which it was agreed on last. The request is known.
  CacheId id_of(RequestId id) const { return requests_.at(id).ids.back(); }
  // Null when unknown. Holds until the cache changes.
  const Agreed* get(CacheId id) const;
  size_t size() const { return agreed_.size(); }

  // The root gives an id. One that is known stays as it is.
  void put(CacheId id, const wire::Request& request, SizesPtr sizes);
  // It was agreed on again.
  void use(CacheId id);
  // The root takes it back. The request is known no more if it was its last.
  void forget(CacheId id);

 private:
  struct Known {
    RequestPtr request;
    std::vector<CacheId> ids;  // in the order of use
  };
  std::unordered_map<CacheId, Agreed> agreed_;
  std::unordered_map<RequestId, Known> requests_;
  std::unordered_multimap<size_t, RequestId> by_hash_;
  // How many: a tensor may come with other properties (the last, smaller batch of an epoch).
  std::unordered_map<std::string, size_t> of_name_;
  RequestId next_ = 0;
};

}  // namespace rueda::negotiation
