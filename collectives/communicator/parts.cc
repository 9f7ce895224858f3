#include "collectives/communicator/parts.h"

#include <algorithm>
#include <cstring>

#include "collectives/kernels/kernels.h"

namespace rueda::communicator {

PartList::PartList(std::span<const Part> parts) : parts_(parts.begin(), parts.end()), begins_{0} {
  for (const Part& part : parts_) begins_.push_back(begins_.back() + part.count);
}

std::vector<Piece> PartList::pieces(int64_t begin, int64_t count) const {
  std::vector<Piece> result;
  const int64_t end = begin + count;
  // The last part that begins at or before `begin`.
  auto it = std::upper_bound(begins_.begin(), begins_.end(), begin);
  size_t part = static_cast<size_t>(it - begins_.begin()) - 1;
  for (int64_t at = begin; at < end; ++part) {
    const int64_t run = std::min(end, begins_[part + 1]) - at;
    if (run <= 0) continue;
    result.push_back({part, at - begins_[part], run, at - begin});
    at += run;
  }
  return result;
}

void pack(const PartList& list, DType dtype, int64_t begin, int64_t count, double factor,
          std::byte* to) {
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  for (const Piece& piece : list.pieces(begin, count)) {
    kernels::scaled_copy(dtype, list.parts()[piece.part].in + piece.begin * bytes,
                         to + piece.offset * bytes, static_cast<size_t>(piece.count), factor);
  }
}

void unpack(const PartList& list, DType dtype, int64_t begin, int64_t count,
            const std::byte* from) {
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  for (const Piece& piece : list.pieces(begin, count)) {
    std::memcpy(list.parts()[piece.part].out + piece.begin * bytes, from + piece.offset * bytes,
                static_cast<size_t>(piece.count * bytes));
  }
}

int64_t share_unit(DType dtype) { return 64 / static_cast<int64_t>(size_of(dtype)); }

int64_t share_begin(int64_t total, Rank rank, Rank size, int64_t unit) {
  const int64_t units = (total + unit - 1) / unit;
  return std::min(total, split_begin(units, rank, size) * unit);
}

}  // namespace rueda::communicator
