// Decoding on tensors of the host.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "attention/compute.h"
#include "attention/decode_shares.h"
#include "attention/decode_work.h"
#include "attention/spec.h"
#include "attention/sums.h"
#include "collectives/kernels/kernels.h"

namespace rueda::attention {
namespace {

// Keys are cut into at most so many chunks for each sequence, of at least so many keys. Neither
// depends on threads: nor do bits.
constexpr int64_t kMostChunks = 16, kFewestKeys = 2048;
constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

void clear(float* rows, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i, rows += width) {
    std::fill_n(rows, width, 0.0f);
    rows[width - 2] = kNoKeys;
  }
}

// Adds one partial result to another.
void add(const float* part, float* sum, int64_t d) {
  merge(part, part + d, part + d + 1, 1, d, sum, sum + d, sum + d + 1);
}

// A part of a span, which a kernel computes at once.
using Chunk = DecodeSpan;

std::vector<Chunk> chunks_of(const DecodeSpec& s) {
  std::vector<Chunk> chunks;
  for (const DecodeSpan& span : spans_of(s)) {
    const int64_t keys = span.end - span.begin;
    const int64_t count = std::clamp<int64_t>(keys / kFewestKeys, 1, kMostChunks);
    for (int64_t c = 0; c < count; ++c) {
      Chunk chunk = span;
      chunk.begin = span.begin + keys * c / count;
      chunk.end = span.begin + keys * (c + 1) / count;
      chunks.push_back(chunk);
    }
  }
  return chunks;
}

// Where places [begin, end) of a sequence lie in the cache.
void number_rows(const DecodeSpec& s, const Chunk& chunk, std::vector<int32_t>* rows) {
  rows->resize(index(chunk.end - chunk.begin));
  for (int64_t place = chunk.begin; place < chunk.end; ++place) {
    const int64_t in = place % s.block_tokens;
    const int64_t block =
        s.block_table.empty()
            ? chunk.sequence
            : s.block_table[index(chunk.sequence * s.table_blocks + place / s.block_tokens)];
    (*rows)[index(place - chunk.begin)] = static_cast<int32_t>(block * s.block_tokens + in);
  }
}

// Partial results of all rows over this rank's keys.
void compute_here(const DecodeSpec& s, const Means& means, const std::byte* q, const std::byte* k,
                  const std::byte* v, Link* link, float* partial) {
  const DecodeShares rows(s);
  const int64_t d = s.head_dim, group = s.heads / s.kv_heads, some = s.queries * group;
  const auto bytes = static_cast<int64_t>(size_of(s.dtype));
  const auto dtype = static_cast<uint8_t>(s.dtype);
  clear(partial, rows.all(), rows.width);
  const std::vector<Chunk> chunks = chunks_of(s);
  if (chunks.empty()) return;
  std::vector<std::vector<int32_t>> places(chunks.size());
  int64_t keys = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    number_rows(s, chunks[c], &places[c]);
    keys += chunks[c].end - chunks[c].begin;
  }
  Means alone = means;
  alone.threads = 1;
  const bool is_little = keys * s.queries * s.heads * d < kFewestProducts;
  const LocalKernel* const kernel = means.kernels->find({s.dtype, s.dtype, d, s.changes_scores()});
  std::vector<int32_t> q_rows(index(s.queries));
  for (int64_t i = 0; i < s.queries; ++i) q_rows[index(i)] = static_cast<int32_t>(i);
  // (chunk, KV head, query, head of the group)
  const auto jobs = static_cast<int64_t>(chunks.size()) * s.kv_heads;
  auto* const parts = reinterpret_cast<float*>(link->take(jobs * some * rows.width * 4));
  in_parallel(is_little ? alone : means, jobs, [&](int64_t job) {
    const int64_t c = job / s.kv_heads, head = job % s.kv_heads;
    const Chunk& chunk = chunks[index(c)];
    float* const mine = parts + job * some * rows.width;
    clear(mine, some, rows.width);
    std::vector<QueryHead> heads(index(group));
    for (int64_t g = 0; g < group; ++g) {
      QueryHead& one = heads[index(g)];
      const int64_t row = chunk.sequence * s.queries * s.heads + head * group + g;
      one.q = {q + row * d * bytes, s.heads * d, dtype};
      one.acc = mine + g * rows.width;
      one.m = one.acc + d;
      one.l = one.acc + d + 1;
    }
    KernelTile tile;
    tile.queries = s.queries;
    tile.keys = chunk.end - chunk.begin;
    tile.head_dim = d;
    tile.q_rows = q_rows.data();
    tile.k_rows = places[index(c)].data();
    tile.q_pos = s.lengths[index(chunk.sequence)] - s.queries;
    tile.k_pos = chunk.begin * s.ranks + s.rank;
    tile.k_step = s.ranks;
    tile.low = chunk.left < 0 ? -kUnlimited : -chunk.left;
    tile.high = s.causal ? 0 : kUnlimited;
    tile.scale = static_cast<float>(softmax_scale(s.scale, s.head_dim));
    tile.softcap = static_cast<float>(s.softcap);
    if (!s.alibi_slopes.empty()) {
      const bool each = std::ssize(s.alibi_slopes) > s.heads;  // of each sequence
      tile.slopes = &s.alibi_slopes[index((each ? chunk.sequence * s.heads : 0) + head * group)];
    }
    tile.heads = heads.data();
    tile.head_count = group;
    tile.acc_stride = tile.ml_stride = group * rows.width;
    tile.k = {k + head * d * bytes, s.kv_heads * d, dtype};
    tile.v = {v + head * d * bytes, s.kv_heads * d, dtype};
    const KernelScratch scratch;
    kernel->forward(tile, scratch.floats());
  });
  // A row's chunks, in order.
  const bool is_much = jobs * some * rows.width >= kFewestProducts;
  in_parallel(is_much && !is_little ? means : alone, s.kv_heads, [&](int64_t head) {
    for (size_t c = 0; c < chunks.size(); ++c) {
      const float* part = parts + (static_cast<int64_t>(c) * s.kv_heads + head) * some * rows.width;
      for (int64_t i = 0; i < s.queries; ++i) {
        for (int64_t g = 0; g < group; ++g, part += rows.width) {
          const int64_t row = (chunks[c].sequence * s.queries + i) * s.heads + head * group + g;
          add(part, partial + row * rows.width, d);
        }
      }
    }
  });
  link->give(reinterpret_cast<const std::byte*>(parts));
}

// Merged rows, first of them `begin`, to results: lse by row, out dense.
void write_results(const DecodeSpec& s, float* rows, int64_t begin, int64_t count, float* lse,
                   std::byte* out) {
  const int64_t d = s.head_dim;
  const auto bytes = static_cast<int64_t>(size_of(s.dtype));
  std::vector<float> sink(index(d + 2), 0.0f);  // a partial result of one key without a value
  sink.back() = 1;
  for (int64_t i = 0; i < count; ++i, rows += d + 2, out += d * bytes) {
    if (!s.sinks.empty()) {
      sink[index(d)] = s.sinks[index((begin + i) % s.heads)];
      add(sink.data(), rows, d);
    }
    finish(rows, rows + d, rows + d + 1, 1, d, nullptr);
    lse[i] = rows[d];
    if (s.dtype == DType::kFloat32) {
      std::memcpy(out, rows, index(d * bytes));
    } else {
      kernels::convert_from_f32(s.dtype, rows, out, index(d));
    }
  }
}

class HostDecode final : public DecodeWork {
 public:
  // Borrows all.
  HostDecode(const DecodeSpec& spec, Link* link, const Means& means, const DecodeTensors& tensors)
      : s_(spec), shares_(spec), link_(link), means_(means), t_(tensors) {}

  Result<std::byte*> take(DecodeSlot slot, int64_t bytes) override {
    return memory_[static_cast<size_t>(slot)] = link_->take(bytes);
  }

  Status perform(DecodeStep step) override {
    switch (step) {
      case DecodeStep::kPlaceQueries: place_queries(); break;
      case DecodeStep::kAttend: attend(); break;
      case DecodeStep::kMerge: merge(); break;
      case DecodeStep::kPut: put(); break;
    }
    return {};
  }

 private:
  std::byte* at(DecodeSlot slot) const { return memory_[static_cast<size_t>(slot)]; }
  float* floats(DecodeSlot slot) const { return reinterpret_cast<float*>(at(slot)); }

  void place_queries() {
    const int64_t row = shares_.row_bytes();
    std::copy_n(t_.q, shares_.count(s_.rank) * row,  // may be nothing
                at(DecodeSlot::kQueries) + shares_.begin(s_.rank) * row);
  }

  void attend() {
    const std::byte* const all = at(DecodeSlot::kQueries);
    compute_here(s_, means_, all == nullptr ? t_.q : all, t_.k, t_.v, link_,
                 floats(DecodeSlot::kPartial));
  }

  void merge() {
    const int64_t count = shares_.count(s_.rank), width = shares_.width;
    const int64_t begin = shares_.begin(s_.rank);
    auto* const sums = reinterpret_cast<float*>(link_->take(count * width * 4));
    clear(sums, count, width);
    for (Rank rank = 0; rank < s_.ranks; ++rank) {
      const int64_t came = rank < s_.rank ? rank : rank - 1;
      const float* part = rank == s_.rank ? floats(DecodeSlot::kPartial) + begin * width
                                          : floats(DecodeSlot::kCame) + came * count * width;
      for (int64_t i = 0; i < count; ++i) add(part + i * width, sums + i * width, s_.head_dim);
    }
    std::byte* const results = at(DecodeSlot::kResults) + shares_.result_at(s_.rank);
    write_results(s_, sums, begin, count, reinterpret_cast<float*>(results), results + count * 4);
  }

  void put() {
    for (Rank rank = 0; rank < s_.ranks; ++rank) {
      if (rank == s_.rank || shares_.results_travel()) put(rank);
    }
  }

  void put(Rank rank) {
    const std::byte* const results = at(DecodeSlot::kResults) + shares_.result_at(rank);
    const int64_t n = shares_.count(rank), row = shares_.row_bytes();
    const int64_t begin = shares_.begin(rank) - shares_.first();
    std::copy_n(results + n * 4, n * row, t_.out + begin * row);
    for (int64_t i = 0; t_.lse != nullptr && i < n; ++i) {
      const int64_t head = (begin + i) % s_.heads;
      const int64_t query = (begin + i) / s_.heads % s_.queries;
      const int64_t sequence = (begin + i) / s_.heads / s_.queries;
      std::memcpy(t_.lse + (sequence * s_.heads + head) * s_.queries + query, results + i * 4, 4);
    }
  }

  const DecodeSpec& s_;
  const DecodeShares shares_;
  Link* const link_;
  const Means& means_;
  const DecodeTensors& t_;
  std::array<std::byte*, kDecodeSlots> memory_{};
};

}  // namespace

Status decode(const DecodeSpec& spec, Link* link, const Means& means,
              const DecodeTensors& tensors) {
  HostDecode work(spec, link, means, tensors);
  return decode(spec, link, &work);
}

}  // namespace rueda::attention
