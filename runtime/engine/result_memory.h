// Memory of results that requests own (allgather, alltoall, recv without an output).
//
// New memory costs a page fault for every 4 KB, for large results more than moving the bytes. So a
// few blocks that their owners have let go of are kept for the next result of about that size: a
// loop that drops each result before or soon after the next one works in the same blocks.
// Threads: any.
#pragma once

#include <cstddef>
#include <memory>

namespace rueda::engine {

class ResultMemory {
 public:
  ResultMemory() = default;
  // 64-byte aligned, not cleared. data() is null where there is no memory.
  explicit ResultMemory(size_t bytes);
  ~ResultMemory();
  ResultMemory(ResultMemory&& other) noexcept;
  ResultMemory& operator=(ResultMemory&& other) noexcept;

  std::byte* data() const { return data_; }

  // What is kept for later results of this process.
  static constexpr size_t kMostKept = size_t{256} << 20;
  static size_t kept_bytes();

 private:
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace rueda::engine
