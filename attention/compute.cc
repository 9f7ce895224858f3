#include "attention/compute.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "attention/kernel_registry.h"

namespace rueda::attention {
namespace {

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
};

void number_rows(const Run& run, const std::vector<int32_t>* numbers, std::vector<int32_t>* rows) {
  rows->resize(static_cast<size_t>(run.count));
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t row = run.at(i);
    (*rows)[static_cast<size_t>(i)] = numbers == nullptr ? static_cast<int32_t>(row)
                                                         : (*numbers)[static_cast<size_t>(row)];
  }
}

// All tiles of one batch and KV head.
void one_head(const AttentionPlan& plan, bool backward, std::span<const Tile> tiles,
              const QuerySide& queries, const KeySide& keys, int64_t batch, int64_t head) {
  static thread_local std::unique_ptr<Scratch> own;
  if (own == nullptr) own = std::make_unique<Scratch>();
  Scratch& scratch = *own;
  const AttentionSpec& spec = plan.spec;
  const auto q_bytes = static_cast<int64_t>(size_of(spec.dtype));
  const auto k_bytes = static_cast<int64_t>(size_of(keys.dtype));
  const int64_t count = plan.heads.queries_of(head, plan.head_group());
  const LocalKernel* kernel = kernel_for(spec.dtype, keys.dtype, spec.head_dim);
  KernelTile call;
  call.head_dim = spec.head_dim;
  call.scale = static_cast<float>(spec.softmax_scale());
  call.low = plan.band.low;
  call.high = plan.band.high;
  bool placed = false;
  for (const Tile& tile : tiles) {
    if (head < tile.head_begin || head >= tile.head_end ||
        (head - tile.head_begin) % tile.head_step != 0) {
      continue;
    }
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
    call.queries = tile.q.count;
    call.keys = tile.k.count;
    call.q_rows = scratch.q_rows.data();
    call.k_rows = scratch.k_rows.data();
    call.q_pos = tile.q_pos;
    call.q_step = tile.q_step;
    call.k_pos = tile.k_pos;
    call.k_step = tile.k_step;
    (backward ? kernel->backward : kernel->forward)(call, scratch.floats);
  }
}

}  // namespace

void in_parallel(int64_t count, int threads, const std::function<void(int64_t)>& fn) {
  const int64_t helpers = std::min<int64_t>(threads, count) - 1;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr trouble;  // the first
  const auto work = [&] {
    try {
      for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) fn(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (trouble == nullptr) trouble = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(std::max<int64_t>(0, helpers)));
  try {
    for (int64_t i = 0; i < helpers; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads here: those that there are compute everything.
  }
  work();
  for (std::thread& thread : others) thread.join();
  if (trouble != nullptr) std::rethrow_exception(trouble);
}

void compute(const AttentionPlan& plan, bool backward, std::span<const Tile> tiles,
             const QuerySide& queries, const KeySide& keys, int threads) {
  if (tiles.empty()) return;
  const int64_t heads = plan.heads.kv_end - plan.heads.kv_begin;
  in_parallel(plan.spec.batch * heads, threads, [&](int64_t job) {
    one_head(plan, backward, tiles, queries, keys, job / heads,
             plan.heads.kv_begin + job % heads);
  });
}

}  // namespace rueda::attention
