// IdTable: which cache ids there are, what they mean, and which are taken back. Kept by the root;
// pure, one thread.
//
//   assign ---> known ---> evicted ---------> told to the ranks ---------> gone
//                  unused for longest     by the next list     all have handled it
//
// Evictions are numbered, and every rank's lists say how many it has handled: a rank may have sent
// an id before it hears that the id was evicted, so what it meant is kept until no such message can
// be under way. What is about to be used is never evicted: a member of the plan in force, a tensor
// that is ready and held back, and whatever the next list of responses speaks of.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/negotiation/requests.h"
#include "runtime/negotiation/sizes.h"
#include "runtime/plan/step_plan.h"

namespace rueda::negotiation {

using plan::CacheId;

class IdTable {
 public:
  struct Entry {
    Requests requests;
    SizesPtr sizes;
    int64_t bytes = 0;  // of the tensor, as batches count them
  };

  // capacity: ids at a time; 0: none.
  IdTable(size_t capacity, size_t ranks);

  // Kinds that may have ids, but not names that are used once.
  static bool cacheable(const wire::Request& request);
  size_t size() const { return known_.size(); }
  // Null when unknown, or evicted. Holds until something is assigned.
  const Entry* get(CacheId id) const;
  // What a rank means by this id; null: nothing.
  RequestPtr meaning(Rank rank, CacheId id) const;
  // Under which id exactly these requests were agreed on. by_rank: as Requests::are.
  std::optional<CacheId> find(const std::vector<RequestPtr>& by_rank) const;

  // An id for what the ranks have just agreed on, if there is room or something to forget for it.
  std::optional<CacheId> assign(Entry entry);
  // It was agreed on again, and the next list speaks of it.
  void use(CacheId id);
  // It is ready, and held back; or not any more.
  void hold(CacheId id, bool held);
  // These are the plan in force, until it is over.
  void begin_plan(const std::vector<CacheId>& ids);
  void end_plan();

  struct Gone {
    CacheId id = 0;
    RequestPtr request;  // of some rank
  };
  // What assign() has evicted since the last call.
  std::vector<Gone> take_evicted() { return std::exchange(fresh_evicted_, {}); }
  // The responses so far have gone out, and with them what was evicted; what they speak of may be
  // evicted from now on.
  void next_list() {
    ++list_;
    announced_ = evictions_;
  }

  // A rank's list says how many evictions the rank has handled. False: it cannot have.
  bool on_handled(Rank rank, uint64_t evictions);
  // The rank sends no ids any more: it has left, or joined.
  void on_silent(Rank rank);
  // Those that had joined will have handled, when they speak again, what was evicted until now.
  void on_end_join();

 private:
  struct Known {
    Entry entry;
    size_t kind = 0;    // of order_: unnamed operations, or named ones
    uint64_t used = 0;  // when, in uses
    uint64_t list = 0;  // the list that speaks of it
    bool held = false;
    bool planned = false;             // and in no order
    std::list<CacheId>::iterator at;  // in its order
  };
  struct Evicted {
    CacheId id = 0;
    Requests requests;
  };
  using Order = std::list<CacheId>;  // the least recently used first

  std::optional<CacheId> oldest(size_t kind) const;
  bool make_room(size_t kind);
  void evict(CacheId id);
  void put_last(CacheId id, Known* known);
  void forget_handled();

  const size_t capacity_;
  std::unordered_map<CacheId, Known> known_;
  std::unordered_multimap<size_t, CacheId> by_hash_;  // of requests
  std::array<Order, 2> order_;
  std::array<size_t, 2> counts_{};  // planned ones too
  std::vector<CacheId> planned_;
  CacheId next_ = 0;
  uint64_t uses_ = 0;
  uint64_t list_ = 1;

  uint64_t evictions_ = 0;
  uint64_t announced_ = 0;  // of them
  std::vector<Gone> fresh_evicted_;
  std::deque<Evicted> evicted_;                       // the last has number evictions_
  std::unordered_map<CacheId, uint64_t> evicted_at_;  // its number
  struct Member {
    uint64_t handled = 0;
    bool silent = false;
  };
  std::vector<Member> ranks_;
};

}  // namespace rueda::negotiation
