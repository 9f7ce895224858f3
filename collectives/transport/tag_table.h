// TagTable: what waits for its counterpart, by tag: a hash of queues, one set for each tag that has
// anything in it.
//
//   sends   ours that wait for a grant      <->  grants       the peer's offers of a buffer
//   recvs   ours that wait for a message    <->  unexpected   messages that wait for a recv
//
// The n-th of a queue meets the n-th of the other; recvs and unexpected are never both there.
//
// Ownership: owns the sets of queues, borrows what is in them. Allocates only where more tags are
// in use at a time than ever before. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/transport/intrusive_list.h"
#include "collectives/transport/pool.h"
#include "collectives/transport/transport.h"
#include "collectives/transport/unexpected.h"

namespace rueda::transport {

// A peer has a buffer of this size.
struct Grant : Link {
  uint64_t bytes = 0;
  uint16_t meta = 0;
};

struct TagQueues {
  Tag tag = 0;
  List<Transfer> sends;  // the eager ones behind one that waits too: they leave in order
  List<Grant> grants;
  uint32_t granted = 0;   // number of grants
  uint32_t promised = 0;  // of them, for sends that are queued already and will take them
  List<Transfer> recvs;
  List<Unexpected> unexpected;

  bool empty() const {
    return sends.empty() && grants.empty() && recvs.empty() && unexpected.empty();
  }

 private:
  friend class TagTable;
  TagQueues* next_ = nullptr;  // with the same hash
};

class TagTable {
 public:
  TagTable();
  // Null where nothing of this tag waits.
  TagQueues* find(Tag tag) const;
  TagQueues* get(Tag tag);
  // To be called after something was taken out; the queues must not be used after it. Null: nothing
  // happens.
  void drop_if_empty(TagQueues* queues);
  // fn(TagQueues&) may take things out; what is empty then is dropped.
  template <typename Function>
  void for_each(Function fn) {
    for (TagQueues*& bucket : buckets_) {
      for (TagQueues** at = &bucket; *at != nullptr;) {
        fn(**at);
        if ((*at)->empty()) {
          drop(at);
        } else {
          at = &(*at)->next_;
        }
      }
    }
  }
  size_t tags() const { return pool_.in_use(); }
  // So many at once need no allocation.
  void reserve(size_t tags);

 private:
  size_t bucket_of(Tag tag) const;
  void drop(TagQueues** at);
  void grow();

  std::vector<TagQueues*> buckets_;  // a power of two
  int shift_;                        // 64 less its logarithm
  Pool<TagQueues> pool_;
};

}  // namespace rueda::transport
