#include "collectives/algorithms/adasum.h"

#include <algorithm>
#include <cstring>

#include "collectives/base/check.h"
#include "collectives/kernels/adasum.h"

namespace rueda::algorithms {
namespace {

// Elements that are worked on without a break: others of the coordinator's tasks get their turn.
constexpr int64_t kBlock = 64 << 10;

// Lets the others have a turn.
class Pause : public Waiter {
 public:
  bool ready() override { return ++asked_ > 2; }  // by co_await, and by the advance that suspends
  void await_resume() {}

 private:
  int asked_ = 0;
};

// Which elements of each tensor this rank owns, and where everybody's lie here.
class Shards {
 public:
  Shards(std::span<const Part> parts, Rank rank, Rank size, DType dtype)
      : parts_(parts), rank_(rank), size_(size), unit_(shard_unit(dtype)) {
    offsets_.push_back(0);
    for (size_t i = 0; i < parts.size(); ++i) offsets_.push_back(offsets_.back() + count(i, rank));
  }
  int64_t begin(size_t part, Rank owner) const {
    return shard_begin(parts_[part].count, owner, size_, unit_);
  }
  int64_t count(size_t part, Rank owner) const {
    return begin(part, owner + 1) - begin(part, owner);
  }
  int64_t total() const { return offsets_.back(); }             // elements of this rank
  int64_t offset(size_t part) const { return offsets_[part]; }  // within them
  int64_t count(size_t part) const { return count(part, rank_); }
  int64_t begin(size_t part) const { return begin(part, rank_); }

 private:
  std::span<const Part> parts_;
  Rank rank_;
  Rank size_;
  int64_t unit_;
  std::vector<int64_t> offsets_;
};

// A tensor's elements [begin, begin + count).
ByteView view(const std::byte* tensor, int64_t begin, int64_t count, int64_t element) {
  return {tensor + begin * element, static_cast<size_t>(count * element)};
}
ByteSpan span(std::byte* tensor, int64_t begin, int64_t count, int64_t element) {
  return {tensor + begin * element, static_cast<size_t>(count * element)};
}

// Nothing may have no address.
void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// To and from the type that is computed in.
void widen(DType dtype, const std::byte* in, float* out, int64_t count) {
  if (dtype == DType::kFloat32) {
    copy_bytes(out, in, count * static_cast<int64_t>(sizeof(float)));
  } else {
    kernels::convert_to_f32(dtype, in, out, static_cast<size_t>(count));
  }
}
void widen(DType, const std::byte* in, double* out, int64_t count) {
  copy_bytes(out, in, count * static_cast<int64_t>(sizeof(double)));
}
void narrow(DType dtype, const float* in, std::byte* out, int64_t count) {
  if (dtype == DType::kFloat32) {
    copy_bytes(out, in, count * static_cast<int64_t>(sizeof(float)));
  } else {
    kernels::convert_from_f32(dtype, in, out, static_cast<size_t>(count));
  }
}
void narrow(DType, const double* in, std::byte* out, int64_t count) {
  copy_bytes(out, in, count * static_cast<int64_t>(sizeof(double)));
}

struct Pair {
  Rank a;  // the first rank of each half
  Rank b;
  Rank a_ranks;
  Rank b_ranks;
};

// The pairs of the level whose whole vectors stand for `ranks` ranks.
std::vector<Pair> pairs_of_level(Rank ranks, Rank size) {
  std::vector<Pair> pairs;
  for (Rank a = 0; a + ranks < size; a += 2 * ranks)
    pairs.push_back({a, a + ranks, ranks, std::min(ranks, size - a - ranks)});
  return pairs;
}

// T: what is computed in.
template <typename T>
Script run(const direct::Group& group, const CollectiveDesc& desc, std::span<const Part> parts) {
  constexpr auto kWork = static_cast<DType>(sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64);
  const DType dtype = desc.dtype;
  const double factor = desc.scaling.prescale * desc.scaling.finish.factor;
  const auto element = static_cast<int64_t>(size_of(dtype));
  const Rank size = group.size();
  transport::Transport* const transport = group.transport;
  const Shards shards(parts, group.rank, size, dtype);

  // Everybody's vectors, by rank, this rank's shard of each; what comes in 16 bits comes elsewhere.
  std::vector<T> vectors(static_cast<size_t>(size * shards.total()));
  std::vector<std::byte> narrow_vectors;
  if (dtype != kWork) narrow_vectors.resize(static_cast<size_t>(size * shards.total() * element));
  std::byte* const arriving =
      dtype == kWork ? reinterpret_cast<std::byte*>(vectors.data()) : narrow_vectors.data();
  const auto vector = [&](Rank rank, size_t part) {
    return vectors.data() + rank * shards.total() + shards.offset(part);
  };
  Transfers contributions;
  Transfers moves;
  Transfers exchange;
  std::vector<kernels::Products> table;

  for (Status last;;) {
    const Call call = co_await next_call(last);
    const transport::Tag result_tag = call.tag + 1;
    const transport::Tag products_tag = call.tag + 2;  // and one more for each level
    for (Rank step = 1; step < size; ++step) {
      const Rank peer = (group.rank + step) % size;
      for (size_t i = 0; i < parts.size(); ++i) {
        const int64_t theirs = shards.count(i, peer);
        if (shards.count(i) > 0) {
          contributions.recv(
              transport, group.member(peer), call.tag,
              span(arriving, peer * shards.total() + shards.offset(i), shards.count(i), element));
        }
        if (theirs == 0) continue;
        moves.send(transport, group.member(peer), call.tag,
                   view(parts[i].in, shards.begin(i, peer), theirs, element));
        // Where out is in this is safe: an owner answers after it has heard from all owners, and
        // these have everybody's contributions then.
        moves.recv(transport, group.member(peer), result_tag,
                   span(parts[i].out, shards.begin(i, peer), theirs, element));
      }
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      widen(dtype, view(parts[i].in, shards.begin(i), shards.count(i), element).data(),
            vector(group.rank, i), shards.count(i));
    }
    last = co_await contributions.finished();
    if (!last.ok()) continue;
    for (Rank rank = 0; rank < size && dtype != kWork; ++rank) {
      if (rank == group.rank) continue;
      widen(dtype, arriving + rank * shards.total() * element,
            vectors.data() + rank * shards.total(), shards.total());
      co_await Pause();
    }

    transport::Tag level = 0;
    for (Rank ranks = 1; ranks < size && last.ok(); ranks *= 2, ++level) {
      const std::vector<Pair> pairs = pairs_of_level(ranks, size);
      const size_t cells = pairs.size() * parts.size();
      table.assign(static_cast<size_t>(size) * cells, {});  // by owner of shard
      kernels::Products* mine = table.data() + static_cast<size_t>(group.rank) * cells;
      for (size_t cell = 0; cell < cells; ++cell) {
        const Pair& pair = pairs[cell / parts.size()];
        const size_t part = cell % parts.size();
        for (int64_t at = 0; at < shards.count(part); at += kBlock) {
          const auto count = static_cast<size_t>(std::min(kBlock, shards.count(part) - at));
          mine[cell] +=
              kernels::products(vector(pair.a, part) + at, vector(pair.b, part) + at, count);
          if (count == kBlock) co_await Pause();
        }
      }
      const auto bytes = static_cast<int64_t>(cells * sizeof(kernels::Products));
      for (Rank step = 1; step < size; ++step) {
        const Rank peer = (group.rank + step) % size;
        auto* base = reinterpret_cast<std::byte*>(table.data());
        exchange.send(transport, group.member(peer), products_tag + level,
                      view(base, group.rank, 1, bytes));
        exchange.recv(transport, group.member(peer), products_tag + level,
                      span(base, peer, 1, bytes));
      }
      last = co_await exchange.finished();
      for (size_t cell = 0; cell < cells && last.ok(); ++cell) {
        kernels::Products sum;
        for (size_t owner = 0; owner < static_cast<size_t>(size); ++owner)
          sum += table[owner * cells + cell];
        const Pair& pair = pairs[cell / parts.size()];
        const size_t part = cell % parts.size();
        const auto weights = kernels::adasum_weights(sum, pair.a_ranks, pair.b_ranks);
        for (int64_t at = 0; at < shards.count(part); at += kBlock) {
          const auto count = static_cast<size_t>(std::min(kBlock, shards.count(part) - at));
          kernels::weighted_sum(vector(pair.a, part) + at, vector(pair.b, part) + at, count,
                                weights);
          if (count == kBlock) co_await Pause();
        }
      }
    }
    if (!last.ok()) continue;

    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t count = shards.count(i);
      T* result = vector(0, i);
      auto* bytes = reinterpret_cast<std::byte*>(result);
      kernels::scaled_copy(kWork, bytes, bytes, static_cast<size_t>(count), factor);
      const ByteSpan own = span(parts[i].out, shards.begin(i), count, element);
      narrow(dtype, result, own.data(), count);
      for (Rank step = 1; step < size && count > 0; ++step)
        moves.send(transport, group.member((group.rank + step) % size), result_tag, own);
    }
    last = co_await moves.finished();
  }
}

}  // namespace

Script adasum(const direct::Group& group, const CollectiveDesc& desc,
              std::span<const Part> tensors) {
  RUEDA_CHECK(is_floating(desc.dtype), "Adasum is of floats");
  if (desc.dtype == DType::kFloat64) return run<double>(group, desc, tensors);
  return run<float>(group, desc, tensors);
}

}  // namespace rueda::algorithms
