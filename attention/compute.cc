#include "attention/compute.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>

namespace rueda::attention {

struct Scratch {
  Scratch()
      : floats(static_cast<float*>(
            ::operator new[](kScratchFloats * sizeof(float), std::align_val_t{64}))) {}
  ~Scratch() { ::operator delete[](floats, std::align_val_t{64}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* floats;
  std::vector<int32_t> q_rows, k_rows;
  std::vector<QueryHead> heads;
  std::vector<float> slopes;
};

namespace {

// Some tiles' rows [q_begin, q_end) and [k_begin, k_end), as indices into the shards.
struct Block {
  int64_t q_begin = 0, q_end = kUnlimited, k_begin = 0, k_end = kUnlimited;
};

// Scratch that no call uses: fresh memory costs more than a small tile.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Scratch>();
    auto one = std::move(free_.back());
    free_.pop_back();
    return one;
  }
  void give(std::unique_ptr<Scratch> one) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(one));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

ScratchPool& scratch_pool() {
  static ScratchPool& pool = *new ScratchPool;  // outlives every thread
  return pool;
}

// A tile, or several whose queries follow each other and all see the same keys:
// these are packed once.
struct Joined {
  Tile tile;
  bool full = false;  // every query sees every key, whatever the positions say
};

bool continues(const Joined& one, const Joined& next) {
  const Tile &a = one.tile, &b = next.tile;
  return one.full && next.full && a.k == b.k && a.q.step == b.q.step &&
         b.q.begin == a.q.at(a.q.count) && a.head_begin == b.head_begin &&
         a.head_end == b.head_end && a.head_step == b.head_step;
}

// joins: not where the places of queries matter even to who sees everything.
std::vector<Joined> joined_of(std::span<const Tile> tiles, bool joins) {
  constexpr size_t kLookBack = 4;  // a zigzag shard has two runs of queries and two of keys
  std::vector<Joined> joined;
  for (const Tile& tile : tiles) {
    const Joined next{tile, tile.pairs == tile.q.count * tile.k.count};
    const auto last = static_cast<std::ptrdiff_t>(joins ? std::min(joined.size(), kLookBack) : 0);
    const auto found = std::find_if(joined.end() - last, joined.end(),
                                    [&](const Joined& one) { return continues(one, next); });
    if (found == joined.end()) {
      joined.push_back(next);
    } else {
      found->tile.q.count += tile.q.count;
      found->tile.pairs += tile.pairs;
    }
  }
  return joined;
}

// What of a tile lies in the block.
Tile part_of(const Tile& tile, const Block& block) {
  const auto cut = [](Run* run, int64_t* pos, int64_t step, int64_t begin, int64_t end) {
    const Run some = clip(*run, begin, end - 1);
    if (some.count > 0) *pos += (some.begin - run->begin) / run->step * step;
    *run = some;
  };
  Tile part = tile;
  cut(&part.q, &part.q_pos, part.q_step, block.q_begin, block.q_end);
  cut(&part.k, &part.k_pos, part.k_step, block.k_begin, block.k_end);
  return part;
}

void number_rows(const Run& run, const std::vector<int32_t>* numbers, std::vector<int32_t>* rows) {
  rows->resize(static_cast<size_t>(run.count));
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t row = run.at(i);
    (*rows)[static_cast<size_t>(i)] =
        numbers == nullptr ? static_cast<int32_t>(row) : (*numbers)[static_cast<size_t>(row)];
  }
}

// All tiles of one batch and KV head, as far as they lie in the block.
void one_head(const AttentionPlan& plan, const LocalKernel& kernel, bool backward,
              std::span<const Joined> joined, const QuerySide& queries, const KeySide& keys,
              int64_t batch, int64_t head, const Block& block, Scratch* own) {
  Scratch& scratch = *own;
  const AttentionSpec& spec = plan.spec;
  const auto q_bytes = static_cast<int64_t>(size_of(spec.dtype));
  const auto k_bytes = static_cast<int64_t>(size_of(keys.dtype));
  const int64_t count = plan.heads.queries_of(head, plan.head_group());
  KernelTile call;
  call.head_dim = spec.head_dim;
  call.scale = static_cast<float>(spec.softmax_scale());
  call.softcap = static_cast<float>(spec.softcap);
  bool placed = false;
  for (const Joined& each : joined) {
    const Tile& whole = each.tile;
    if (head < whole.head_begin || head >= whole.head_end ||
        (head - whole.head_begin) % whole.head_step != 0) {
      continue;
    }
    const Tile tile = part_of(whole, block);
    if (tile.q.count == 0 || tile.k.count == 0) continue;
    if (!placed) {
      placed = true;
      const int64_t stride = queries.wide->row_stride(head);
      scratch.heads.assign(static_cast<size_t>(count), {});
      for (int64_t g = 0; g < count; ++g) {
        QueryHead& one = scratch.heads[static_cast<size_t>(g)];
        const int64_t wide = queries.wide->offset(batch, head, g);
        const int64_t narrow = queries.narrow->offset(batch, head, g);
        const auto dtype = static_cast<uint8_t>(spec.dtype);
        one.q = {queries.q + wide * q_bytes, stride, dtype};
        if (backward) {
          one.dout = {queries.dout + wide * q_bytes, stride, dtype};
          one.lse = queries.lse + narrow;
          one.delta = queries.delta + narrow;
          if (queries.lse_low != nullptr) one.lse_low = queries.lse_low + narrow;
          one.dq = queries.dq + wide;
        } else {
          one.acc = queries.acc + wide;
          one.m = queries.m + narrow;
          one.l = queries.l + narrow;
        }
      }
      if (!spec.alibi_slopes.empty()) {
        const int64_t first = std::max(head * plan.head_group(), plan.heads.q_begin);
        const bool by_entry = std::ssize(spec.alibi_slopes) > spec.heads;  // of the batch
        const float* slopes =
            spec.alibi_slopes.data() + (by_entry ? batch * spec.heads : 0) + first;
        scratch.slopes.assign(slopes, slopes + count);
        call.slopes = scratch.slopes.data();
      }
      call.heads = scratch.heads.data();
      call.head_count = count;
      call.acc_stride = stride;
      call.ml_stride = queries.narrow->row_stride(head);
      const int64_t at = keys.wide->offset(batch, head);
      call.k = {keys.k + at * k_bytes, keys.wide->row_stride(head),
                static_cast<uint8_t>(keys.dtype)};
      call.v = {keys.v + at * k_bytes, call.k.stride, call.k.dtype};
      if (backward) {
        call.dk = keys.dk + at;
        call.dv = keys.dv + at;
        call.dkv_stride = call.k.stride;
      }
    }
    number_rows(tile.q, queries.wide->numbers(head), &scratch.q_rows);
    number_rows(tile.k, keys.wide->numbers(head), &scratch.k_rows);
    call.low = each.full ? -kUnlimited : plan.band.low;
    call.high = each.full ? kUnlimited : plan.band.high;
    call.queries = tile.q.count;
    call.keys = tile.k.count;
    call.q_rows = scratch.q_rows.data();
    call.k_rows = scratch.k_rows.data();
    call.q_pos = tile.q_pos;
    call.q_step = tile.q_step;
    call.k_pos = tile.k_pos;
    call.k_step = tile.k_step;
    (backward ? kernel.backward : kernel.forward)(call, scratch.floats);
  }
}

// Heads and rows that tiles touch.
struct Extent {
  int64_t head_begin = kUnlimited, head_end = 0;
  int64_t q_begin = kUnlimited, q_end = 0, k_begin = kUnlimited, k_end = 0;
  int64_t pairs = 0;
};

Extent extent_of(std::span<const Tile> tiles) {
  Extent e;
  for (const Tile& tile : tiles) {
    e.head_begin = std::min(e.head_begin, tile.head_begin);
    e.head_end = std::max(e.head_end, tile.head_end);
    e.q_begin = std::min(e.q_begin, tile.q.begin);
    e.q_end = std::max(e.q_end, tile.q.last() + 1);
    e.k_begin = std::min(e.k_begin, tile.k.begin);
    e.k_end = std::max(e.k_end, tile.k.last() + 1);
    e.pairs += tile.pairs;
  }
  return e;
}

// The rows [begin, end) in `count` ranges: the i-th begins here.
int64_t range_begin(int64_t begin, int64_t end, int64_t i, int64_t count) {
  return begin + (end - begin) * i / count;
}

// Into how many ranges rows are cut where threads share a head: a power of two, two jobs for a
// thread so that a causal mask's halves are shared evenly; 1: not at all.
int64_t ranges_of(const AttentionPlan& plan, bool backward, const Extent& e, int64_t jobs,
                  int threads) {
  constexpr int64_t kFewestRows = 96;
  if (threads <= 1 || jobs % threads == 0 || jobs >= 4 * threads) return 1;
  if (e.pairs * plan.spec.head_dim < kFewestProducts) return 1;
  const int64_t rows =
      backward ? std::min(e.q_end - e.q_begin, e.k_end - e.k_begin) : e.q_end - e.q_begin;
  int64_t ranges = 1;
  while (jobs * ranges < 2 * threads && rows / (2 * ranges) >= kFewestRows) ranges *= 2;
  return ranges;
}

}  // namespace

KernelScratch::KernelScratch() : scratch_(scratch_pool().take()) {}
KernelScratch::~KernelScratch() { scratch_pool().give(std::move(scratch_)); }
float* KernelScratch::floats() const { return scratch_->floats; }

void compute(const AttentionPlan& plan, bool backward, std::span<const Tile> tiles,
             const QuerySide& queries, const KeySide& keys, const Means& means) {
  if (tiles.empty()) return;
  const LocalKernel& kernel = *means.kernels->find(
      {plan.spec.dtype, keys.dtype, plan.spec.head_dim, plan.spec.changes_scores()});
  const Extent e = extent_of(tiles);
  const std::vector<Joined> joined = joined_of(tiles, plan.spec.alibi_slopes.empty());
  const int64_t heads = e.head_end - e.head_begin;
  const int64_t jobs = plan.spec.batch * heads;
  const int64_t ranges = ranges_of(plan, backward, e, jobs, means.threads);
  // Forward: a range of queries has sums of its own. Backward: in turn p, range i of the queries
  // meets range i ^ p of the keys, so that no two threads add to the same row, and each row's sums
  // come in one order.
  const int64_t turns = backward ? ranges : 1;
  for (int64_t turn = 0; turn < turns; ++turn) {
    in_parallel(means, jobs * ranges, [&](int64_t number) {
      const int64_t job = number / ranges, range = number % ranges;
      Block block;
      if (ranges > 1) {
        block.q_begin = range_begin(e.q_begin, e.q_end, range, ranges);
        block.q_end = range_begin(e.q_begin, e.q_end, range + 1, ranges);
      }
      if (ranges > 1 && backward) {
        block.k_begin = range_begin(e.k_begin, e.k_end, range ^ turn, ranges);
        block.k_end = range_begin(e.k_begin, e.k_end, (range ^ turn) + 1, ranges);
      }
      const KernelScratch scratch;
      one_head(plan, kernel, backward, joined, queries, keys, job / heads,
               e.head_begin + job % heads, block, &*scratch);
    });
  }
}

}  // namespace rueda::attention
