#include "collectives/transport/tag_table.h"

namespace rueda::transport {
namespace {

constexpr int kFirstBits = 4;

}  // namespace

TagTable::TagTable() : buckets_(size_t{1} << kFirstBits), shift_(64 - kFirstBits) {}

// Tags differ in some bits only: the golden ratio spreads them (Knuth, The Art of Computer
// Programming 3, 6.4).
size_t TagTable::bucket_of(Tag tag) const {
  return static_cast<size_t>((tag * 0x9e37'79b9'7f4a'7c15ull) >> shift_);
}

TagQueues* TagTable::find(Tag tag) const {
  TagQueues* queues = buckets_[bucket_of(tag)];
  while (queues != nullptr && queues->tag != tag) queues = queues->next_;
  return queues;
}

TagQueues* TagTable::get(Tag tag) {
  if (TagQueues* there = find(tag)) return there;
  if (tags() == buckets_.size()) grow();
  TagQueues*& bucket = buckets_[bucket_of(tag)];
  TagQueues* queues = pool_.take();
  queues->tag = tag;
  queues->next_ = bucket;
  bucket = queues;
  return queues;
}

void TagTable::drop_if_empty(TagQueues* queues) {
  if (queues == nullptr || !queues->empty()) return;
  TagQueues** at = &buckets_[bucket_of(queues->tag)];
  while (*at != queues) at = &(*at)->next_;
  drop(at);
}

void TagTable::drop(TagQueues** at) {
  TagQueues* queues = *at;
  *at = queues->next_;
  queues->granted = queues->promised = 0;
  pool_.give_back(queues);
}

void TagTable::reserve(size_t tags) {
  pool_.reserve(tags);
  while (buckets_.size() < tags) grow();
}

void TagTable::grow() {
  std::vector<TagQueues*> before(2 * buckets_.size());
  before.swap(buckets_);
  --shift_;
  for (TagQueues* queues : before) {
    while (queues != nullptr) {
      TagQueues* const next = queues->next_;
      TagQueues*& bucket = buckets_[bucket_of(queues->tag)];
      queues->next_ = bucket;
      bucket = queues;
      queues = next;
    }
  }
}

}  // namespace rueda::transport
