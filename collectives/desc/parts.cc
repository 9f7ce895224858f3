#include "collectives/desc/parts.h"

#include <cstring>

#include "collectives/kernels/kernels.h"

namespace rueda {

void PartList::reserve(size_t parts) {
  parts_.reserve(parts);
  begins_.reserve(parts + 1);
}

void PartList::clear() {
  parts_.clear();
  begins_.resize(1);
}

void PartList::add(const Part& part) {
  parts_.push_back(part);
  begins_.push_back(begins_.back() + part.count);
}

void pack(const PartList& list, DType dtype, int64_t begin, int64_t count, double factor,
          std::byte* to) {
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  list.for_each_piece(begin, count, [&](const Piece& piece) {
    kernels::scaled_copy(dtype, list.parts()[piece.part].in + piece.begin * bytes,
                         to + piece.offset * bytes, static_cast<size_t>(piece.count), factor);
  });
}

void unpack(const PartList& list, DType dtype, int64_t begin, int64_t count,
            const std::byte* from) {
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  list.for_each_piece(begin, count, [&](const Piece& piece) {
    std::memcpy(list.parts()[piece.part].out + piece.begin * bytes, from + piece.offset * bytes,
                static_cast<size_t>(piece.count * bytes));
  });
}

int64_t shard_unit(DType dtype) { return 64 / static_cast<int64_t>(size_of(dtype)); }

int64_t shard_begin(int64_t total, Rank rank, Rank size, int64_t unit) {
  const int64_t units = (total + unit - 1) / unit;
  return std::min(total, split_begin(units, rank, size) * unit);
}

}  // namespace rueda
