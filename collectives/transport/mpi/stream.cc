#include "collectives/transport/mpi/stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/transport/mpi/engine.h"

namespace rueda::mpi {
namespace {

constexpr size_t kSmallChunk = 4 << 10;

}  // namespace

Chunk Stream::take_chunk(size_t wanted) {
  const bool small = std::min(wanted, chunk_bytes_) <= kSmallChunk;
  auto& spare = small ? small_spare_ : spare_;
  if (!spare.empty()) {
    Chunk chunk = std::move(spare.back());
    spare.pop_back();
    chunk.size = chunk.read = 0;
    return chunk;
  }
  const size_t capacity = std::min(chunk_bytes_, small ? kSmallChunk : chunk_bytes_);
  return {std::make_unique_for_overwrite<std::byte[]>(capacity), capacity, 0, 0};
}

void Stream::give_back(Chunk chunk) {
  auto& spare = chunk.capacity <= kSmallChunk ? small_spare_ : spare_;
  if (chunk.capacity <= chunk_bytes_ && spare.size() < kMostSpare)
    spare.push_back(std::move(chunk));
}

Result<size_t> Stream::write(std::span<const ByteView> pieces) {
  const std::lock_guard lock(mutex_);
  if (!failed_.ok()) return failed_;
  size_t total = 0, left = 0;
  for (const ByteView piece : pieces) left += piece.size();
  for (ByteView piece : pieces) {
    while (!piece.empty()) {
      if (open_.capacity == 0) {
        if (ready_.size() + sending_count_ >= kMostChunks) return total;
        open_ = take_chunk(left);
      }
      const size_t count = std::min(piece.size(), open_.capacity - open_.size);
      std::memcpy(open_.bytes.get() + open_.size, piece.data(), count);
      open_.size += count;
      total += count;
      left -= count;
      piece = piece.subspan(count);
      if (open_.size < open_.capacity) continue;
      ready_.push_back(std::exchange(open_, Chunk()));
      ++handed_over_;
    }
  }
  return total;
}

size_t Stream::flush() {
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    if (open_.size > 0) {
      ready_.push_back(std::exchange(open_, Chunk()));
      ++handed_over_;
    }
    count = std::exchange(handed_over_, 0);
  }
  if (count > 0) engine_->kick();
  return count;
}

Result<size_t> Stream::read(ByteSpan into) {
  size_t total = 0;
  bool room = false;
  {
    const std::lock_guard lock(mutex_);
    while (!into.empty() && !arrived_.empty()) {
      Chunk& chunk = arrived_.front();
      const size_t count = std::min(into.size(), chunk.size - chunk.read);
      std::memcpy(into.data(), chunk.bytes.get() + chunk.read, count);
      chunk.read += count;
      total += count;
      into = into.subspan(count);
      if (chunk.read < chunk.size) break;
      give_back(arrived_.pop_front());
      room = announced_ > received_;
    }
    if (total == 0 && !into.empty() && arrived_.empty()) {
      if (!failed_.ok()) return failed_;
      if (ending_ && received_ == announced_) return end_status_;
    }
  }
  if (room) engine_->kick();
  return total;
}

void Stream::announce(size_t chunks) {
  {
    const std::lock_guard lock(mutex_);
    announced_ += chunks;
  }
  engine_->kick();
}

void Stream::end(const Status& status, Clock::time_point deadline) {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    end_status_ = status;
    deadline_ = deadline;
  }
  engine_->kick();
}

void Stream::set_blocked(bool blocked) {
  const std::lock_guard lock(mutex_);
  blocked_ = blocked;
}

void Stream::detach() {
  {
    const std::lock_guard lock(mutex_);
    news_ = {};
    detached_ = true;
    deadline_ = Clock::now() + Engine::kLinger;
  }
  engine_->kick();
}

}  // namespace rueda::mpi
