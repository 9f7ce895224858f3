// Unexpected: a message that has come before anybody asked for it; and the pool of their memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "collectives/base/types.h"
#include "collectives/transport/intrusive_list.h"

namespace rueda::transport {

// Lies in front of its body.
struct Unexpected : Link {
  size_t bytes = 0;
  uint16_t meta = 0;
  uint16_t size_class = 0;
  ByteSpan body() { return {reinterpret_cast<std::byte*>(this + 1), bytes}; }
};

// Keeps what is given back for the next message of about that size, up to a bound.
//
// Ownership: whoever takes one gives it back to the same pool. Threads: one.
class UnexpectedPool {
 public:
  static constexpr size_t kLeastBytes = 64;
  static constexpr size_t kMostBytes = 64 << 10;  // of a message

  explicit UnexpectedPool(size_t most_kept_bytes) : most_kept_(most_kept_bytes) {}
  ~UnexpectedPool();
  UnexpectedPool(const UnexpectedPool&) = delete;
  UnexpectedPool& operator=(const UnexpectedPool&) = delete;

  // Allocates where no kept one is large enough.
  Unexpected* take(size_t bytes, uint16_t meta);
  // From now on there are at least `count` that have room for `bytes`, those in use too, as far as
  // the bound allows.
  void reserve(size_t bytes, size_t count);
  void give_back(Unexpected* message);
  size_t kept_bytes() const { return kept_; }

 private:
  Unexpected* make(size_t size_class);
  static constexpr size_t kClasses = 11;  // powers of two
  static size_t class_of(size_t bytes);
  static size_t capacity(size_t size_class) { return kLeastBytes << size_class; }
  static_assert(kLeastBytes << (kClasses - 1) == kMostBytes);

  size_t most_kept_;
  size_t kept_ = 0;
  std::array<List<Unexpected>, kClasses> free_;  // by size class
  std::array<size_t, kClasses> all_{};           // how many there are, by size class
};

}  // namespace rueda::transport
