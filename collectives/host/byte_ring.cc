#include "collectives/host/byte_ring.h"

#include <algorithm>
#include <cstring>

namespace rueda::host {

size_t ByteRing::write(ByteView bytes, bool* sane) {
  const uint64_t tail = header_->tail.load(std::memory_order_relaxed);
  const uint64_t used = tail - header_->head.load(std::memory_order_acquire);
  if (used > capacity_) {
    *sane = false;
    return 0;
  }
  const size_t count = std::min<size_t>(bytes.size(), capacity_ - used);
  const size_t at = tail & (capacity_ - 1);
  const size_t first = std::min(count, capacity_ - at);
  if (count == 0) return 0;
  std::memcpy(data_ + at, bytes.data(), first);
  std::memcpy(data_, bytes.data() + first, count - first);
  header_->tail.store(tail + count, std::memory_order_release);
  return count;
}

size_t ByteRing::read(ByteSpan into, bool* sane) {
  const uint64_t head = header_->head.load(std::memory_order_relaxed);
  const uint64_t used = header_->tail.load(std::memory_order_acquire) - head;
  if (used > capacity_) {
    *sane = false;
    return 0;
  }
  const size_t count = std::min<size_t>(into.size(), used);
  const size_t at = head & (capacity_ - 1);
  const size_t first = std::min(count, capacity_ - at);
  if (count == 0) return 0;
  std::memcpy(into.data(), data_ + at, first);
  std::memcpy(into.data() + first, data_, count - first);
  header_->head.store(head + count, std::memory_order_release);
  return count;
}

bool ByteRing::readable() const {
  return header_->tail.load(std::memory_order_acquire) !=
         header_->head.load(std::memory_order_relaxed);
}

bool ByteRing::writable() const {
  return header_->tail.load(std::memory_order_relaxed) -
             header_->head.load(std::memory_order_acquire) <
         capacity_;
}

void ByteRing::want_room(bool wanted) {
  if (!wanted) {
    header_->wants_room.store(0, std::memory_order_relaxed);
    return;
  }
  header_->wants_room.exchange(1, std::memory_order_seq_cst);
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

bool ByteRing::room_is_wanted() const {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer does not model fences; a read-modify-write orders the same accesses.
  return header_->wants_room.fetch_add(0, std::memory_order_seq_cst) != 0;
#else
  return header_->wants_room.load(std::memory_order_relaxed) != 0;
#endif
}

}  // namespace rueda::host
