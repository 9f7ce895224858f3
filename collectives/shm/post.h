// What a rank writes into a post cell and how its peers read it.
//
// A payload lies in the cell's lines, 56 bytes in each beside the line's sequence number: the
// payload is stored first, the number with release order, and a reader acquires the number of every
// line that it uses. So a small payload needs no flag in a line of its own. A payload that is too
// long for lines lies in the cell's block, and the first line is its flag.
// Source: the LL protocol of NCCL, which sends a flag with every 4 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "collectives/host/arena.h"

namespace rueda::shm::post {

inline constexpr size_t kLinePayload = host::PostLine::kPayload;

// Lines of a payload; an empty one has a line too.
inline size_t lines_of(size_t bytes) {
  return bytes <= kLinePayload ? 1 : (bytes + kLinePayload - 1) / kLinePayload;
}

inline void write(host::PostCell* cell, uint64_t sequence, const std::byte* payload, size_t bytes) {
  host::PostLine* line = cell->lines;
  for (; bytes > kLinePayload; ++line, payload += kLinePayload, bytes -= kLinePayload) {
    std::memcpy(line->payload, payload, kLinePayload);
    line->sequence.store(sequence, std::memory_order_release);
  }
  if (bytes != 0) std::memcpy(line->payload, payload, bytes);
  line->sequence.store(sequence, std::memory_order_release);
}

// Are all lines of such a payload there?
inline bool is_there(const host::PostCell* cell, uint64_t sequence, size_t bytes) {
  const size_t lines = lines_of(bytes);
  for (size_t i = lines; i-- > 0;) {  // the last is written last
    if (cell->lines[i].sequence.load(std::memory_order_acquire) != sequence) return false;
  }
  return true;
}

inline void read(const host::PostCell* cell, std::byte* to, size_t bytes) {
  const host::PostLine* line = cell->lines;
  for (; bytes > kLinePayload; ++line, to += kLinePayload, bytes -= kLinePayload)
    std::memcpy(to, line->payload, kLinePayload);
  if (bytes != 0) std::memcpy(to, line->payload, bytes);
}

// ---- where a tensor lies: | 2 bits what | 62 bits where |
enum class Where : uint64_t { kNowhere = 0, kHeap = 1, kPrivate = 2 };

inline constexpr uint64_t kWhereBits = 62;
inline constexpr uint64_t kPlaceMask = (uint64_t{1} << kWhereBits) - 1;

inline uint64_t location(Where where, uint64_t place) {
  return (static_cast<uint64_t>(where) << kWhereBits) | place;
}

}  // namespace rueda::shm::post
