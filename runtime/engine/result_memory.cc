#include "runtime/engine/result_memory.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "collectives/base/rounding.h"

namespace rueda::engine {
namespace {

constexpr size_t kLeast = 64 << 10;  // the allocator is good enough below
constexpr size_t kBlocks = 4;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKeeps = false;  // so that they see who uses a result too long
#else
constexpr bool kKeeps = true;
#endif

struct Block {
  std::byte* data;
  size_t capacity;
};

struct Kept {
  Kept() { blocks.reserve(kBlocks + 1); }
  std::mutex mutex;
  std::vector<Block> blocks;  // oldest first; never grows beyond what is reserved
  size_t bytes = 0;
};

Kept& kept() {
  static auto* const kept = new Kept;  // results may die after static objects
  return *kept;
}

// So that sizes which differ a little share blocks; an eighth more at most.
size_t rounded(size_t bytes) {
  if (bytes < kLeast) return std::max<size_t>(bytes, 1);
  const size_t step = std::bit_floor(bytes) / 8;
  return round_up(bytes, step);
}

void release(std::byte* data) { ::operator delete[](data, std::align_val_t(64)); }

}  // namespace

ResultMemory::ResultMemory(size_t bytes) : capacity_(rounded(bytes)) {
  if (kKeeps && capacity_ >= kLeast) {
    Kept& all = kept();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found =
        std::find_if(all.blocks.rbegin(), all.blocks.rend(),
                     [&](const Block& block) { return block.capacity == capacity_; });
    if (found != all.blocks.rend()) {
      data_ = found->data;
      all.bytes -= capacity_;
      all.blocks.erase(std::next(found).base());
      return;
    }
  }
  data_ = static_cast<std::byte*>(::operator new[](capacity_, std::align_val_t(64), std::nothrow));
}

ResultMemory::~ResultMemory() {
  if (data_ == nullptr) return;
  if (!kKeeps || capacity_ < kLeast || capacity_ > kMostKept) {
    release(data_);
    return;
  }
  Kept& all = kept();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.blocks.push_back({data_, capacity_});
  all.bytes += capacity_;
  while (all.blocks.size() > kBlocks || all.bytes > kMostKept) {
    const Block surplus = all.blocks.front();
    all.blocks.erase(all.blocks.begin());
    all.bytes -= surplus.capacity;
    release(surplus.data);
  }
}

ResultMemory::ResultMemory(ResultMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}

ResultMemory& ResultMemory::operator=(ResultMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

size_t ResultMemory::kept_bytes() {
  Kept& all = kept();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.bytes;
}

}  // namespace rueda::engine
