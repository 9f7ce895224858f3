// VirtualWorld: a Root with as many ranks as asked for and no threads, transports or clocks. Each
// virtual rank keeps what its coordinator would keep: the cache, what is pending, what was
// answered.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/negotiation/response_cache.h"
#include "runtime/negotiation/root.h"
#include "tests/runtime/requests.h"

namespace rueda::testing {

struct VirtualRank {
  negotiation::ResponseCache cache;
  uint64_t evictions = 0;
  std::map<std::string, wire::Request> pending;
  std::vector<std::string> answered;  // in order, names
  std::map<std::string, Status> last;
  std::string trouble;  // not empty: a response that cannot be
};

class VirtualWorld {
 public:
  VirtualWorld(Rank size, Config world_config)
      : config(world_config), ranks(static_cast<size_t>(size)), root(config, 7, rank_names(size)) {}

  // What a coordinator sends for these requests.
  wire::RequestList list(Rank rank, const std::vector<wire::Request>& requests) {
    VirtualRank& me = ranks[static_cast<size_t>(rank)];
    wire::RequestList out;
    out.epoch = 7;
    out.evictions = me.evictions;
    for (const wire::Request& r : requests) {
      me.pending[r.name] = r;
      if (const auto id = me.cache.find(r)) {
        out.cached.push_back(me.cache.id_of(*id));
      } else {
        out.requests.push_back(r);
      }
    }
    return out;
  }
  Status submit(Rank rank, const std::vector<wire::Request>& requests, double now) {
    return root.on_requests(rank, list(rank, requests), at(now));
  }
  Status submit_all(const std::vector<wire::Request>& requests, double now) {
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      RUEDA_RETURN_IF_ERROR(submit(static_cast<Rank>(rank), requests, now));
    return {};
  }
  Status await(Rank rank, const std::string& wire_name, double now) {
    wire::RequestList out;
    out.awaited = {wire_name};
    out.evictions = ranks[static_cast<size_t>(rank)].evictions;
    return root.on_requests(rank, out, at(now));
  }

  // Delivers what was decided; gives back the batches as wire names, errors as "!name".
  std::vector<std::vector<std::string>> deliver(double now) {
    std::vector<std::vector<std::string>> batches;
    const auto decided = root.take_responses(at(now));
    if (!decided) return batches;
    for (const wire::Response& response : decided->responses) {
      std::vector<std::string> batch;
      for (const wire::ResponseEntry& entry : response.entries) {
        const std::string name =
            entry.name.empty()
                ? ranks[0].cache.get(static_cast<plan::CacheId>(entry.cache_id))->request->name
                : entry.name;
        batch.push_back((response.error.empty() ? "" : "!") + name);
      }
      batches.push_back(batch);
    }
    for (VirtualRank& rank : ranks) take(&rank, *decided);
    return batches;
  }

  Config config;
  std::vector<VirtualRank> ranks;
  negotiation::Root root;

 private:
  static void take(VirtualRank* rank, const wire::ResponseList& decided) {
    for (const wire::Response& response : decided.responses) {
      for (const wire::ResponseEntry& entry : response.entries) {
        std::string name = entry.name;
        if (name.empty()) {
          const auto* known = rank->cache.get(static_cast<plan::CacheId>(entry.cache_id));
          if (known == nullptr) {
            rank->trouble = "unknown number";
            return;
          }
          name = known->request->name;
        }
        const auto it = rank->pending.find(name);
        if (it == rank->pending.end()) {
          if (response.error.empty())
            rank->trouble = "answer for " + name + ", which is not pending";
          continue;
        }
        if (response.error.empty() && entry.cache_id >= 0) {
          const auto id = static_cast<plan::CacheId>(entry.cache_id);
          rank->cache.put(id, it->second, nullptr);
          rank->cache.use(id);
        }
        rank->answered.push_back(name);
        rank->last[name] =
            response.error.empty() ? Status() : Status(response.error_code, response.error);
        rank->pending.erase(it);
      }
    }
    for (const plan::CacheId id : decided.evicted) {
      rank->cache.forget(id);
      ++rank->evictions;
    }
  }
};

}  // namespace rueda::testing
