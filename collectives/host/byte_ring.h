// ByteRing: a single-producer single-consumer stream of bytes in memory that two ranks share.
//
//   RingHeader | data[capacity]      tail: bytes ever written     head: bytes ever read
//                                    both only grow: [head, tail) is in the ring, at mod capacity
//
// The ring itself owns nothing; both sides hold one over the same memory. capacity is a power of
// two. Hostile memory: the other side's counter is read once per call and refused when impossible,
// so a damaged header can end the stream but never leads outside the ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/base/types.h"

namespace rueda::host {

struct RingHeader {
  alignas(128) std::atomic<uint64_t> tail;  // written by the producer only
  std::atomic<uint32_t> wants_room;         // likewise: it waits for room, the consumer wakes it
  alignas(128) std::atomic<uint64_t> head;  // written by the consumer only
};

class ByteRing {
 public:
  static constexpr size_t bytes_for(size_t capacity) { return sizeof(RingHeader) + capacity; }

  ByteRing() = default;
  // memory: bytes_for(capacity) zeroed bytes, aligned to 128.
  ByteRing(std::byte* memory, size_t capacity)
      : header_(reinterpret_cast<RingHeader*>(memory)),
        data_(memory + sizeof(RingHeader)),
        capacity_(capacity) {}

  // Producer: copies as much of `bytes` as fits, returns how much. False in `sane` when the header
  // is damaged.
  size_t write(ByteView bytes, bool* sane);
  // Consumer: copies what is there, at most into.size().
  size_t read(ByteSpan into, bool* sane);
  // Consumer: is anything there? Producer: is there room?
  bool readable() const;
  bool writable() const;
  // Producer: whether it waits for room. Once it does, it tries to write once more before it
  // sleeps: either that finds room, or the consumer's next look finds the wish.
  void want_room(bool wanted);
  // Consumer, after reading and a full fence (fence_before_rings).
  bool room_is_wanted() const;

 private:
  RingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace rueda::host
