// A fused batch as one long vector: the tensors of a batch laid end to end, addressed by element.
//
// Pure: the index arithmetic of packing and unpacking, without the copying.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/base/types.h"

namespace rueda {

// One tensor of a batch. Borrowed memory; in and out may be the same.
struct Part {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t count = 0;  // elements

  bool operator==(const Part&) const = default;
};

// A run of elements inside one part.
struct Piece {
  size_t part = 0;
  int64_t begin = 0;  // first element, within the part
  int64_t count = 0;
  int64_t offset = 0;  // elements from the begin of the asked range
};

class PartList {
 public:
  PartList() : begins_{0} {}
  explicit PartList(std::span<const Part> parts) : PartList() {
    for (const Part& part : parts) add(part);
  }
  // clear and then add within what was reserved allocate nothing.
  void reserve(size_t parts);
  void clear();
  void add(const Part& part);
  // The same tensors in other memory.
  void use(std::span<const Part> parts) { std::copy(parts.begin(), parts.end(), parts_.begin()); }

  int64_t total() const { return begins_.back(); }  // elements
  // Calls fn(Piece) for the pieces that make up elements [begin, begin + count), in order; empty
  // parts give none.
  template <typename Function>
  void for_each_piece(int64_t begin, int64_t count, Function fn) const {
    // The last part that begins at or before `begin`.
    size_t part = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) -
                                      begins_.begin()) -
                  1;
    const int64_t end = begin + count;
    for (int64_t at = begin; at < end; ++part) {
      const int64_t run = std::min(end, begins_[part + 1]) - at;
      if (run <= 0) continue;
      fn(Piece{part, at - begins_[part], run, at - begin});
      at += run;
    }
  }
  std::span<const Part> parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
  std::vector<int64_t> begins_;  // one more than parts
};

// Copies elements [begin, begin + count) between the parts and contiguous memory, scaling on the
// way (pack).
void pack(const PartList& list, DType dtype, int64_t begin, int64_t count, double factor,
          std::byte* to);
void unpack(const PartList& list, DType dtype, int64_t begin, int64_t count, const std::byte* from);

// Elements in 64 bytes: shards that begin on such boundaries do not meet in a cache line.
int64_t shard_unit(DType dtype);

// Cuts [0, total) into `size` shards whose boundaries are multiples of `unit`, as equal as that
// allows.
int64_t shard_begin(int64_t total, Rank rank, Rank size, int64_t unit);

}  // namespace rueda
