#include "collectives/communicator/window_pipeline.h"

#include <algorithm>
#include <limits>

#include "collectives/base/check.h"

namespace rueda::communicator {

using transport::WindowControl;

WindowPipeline::WindowPipeline(Rank rank, std::vector<std::shared_ptr<transport::Arena>> arenas,
                               std::vector<transport::Ringer> ringers)
    : rank_(rank),
      arenas_(std::move(arenas)),
      ringers_(std::move(ringers)),
      windows_(arenas_.front()->layout().windows),
      chunk_bytes_(static_cast<int64_t>(arenas_.front()->layout().chunk_bytes)),
      scratch_(kOneShotBytes) {}

void WindowPipeline::start(std::shared_ptr<AllreduceJob> job) {
  const int64_t total = job->list.total();
  const int64_t bytes = static_cast<int64_t>(size_of(job->dtype));
  Running running;
  running.chunk_elements = chunk_bytes_ / bytes;
  running.first = end_;
  running.last =
      end_ + static_cast<uint64_t>((total + running.chunk_elements - 1) / running.chunk_elements);
  bytes_ += static_cast<uint64_t>(total * bytes);
  end_ = running.last;
  if (running.first == running.last) {
    job->done = true;  // no element, nothing to wait for
    return;
  }
  running.job = std::move(job);
  jobs_.push_back(std::move(running));
}

bool WindowPipeline::progress() {
  bool moved = false;
  // Unpack first: it frees windows. Reduce before pack: peers wait for it.
  while (!jobs_.empty()) {
    const bool unpacked = unpack_next();
    const bool reduced = reduce_next();
    const bool packed = pack_next();
    if (!unpacked && !reduced && !packed) break;
    moved = true;
  }
  return moved;
}

WindowPipeline::Chunk WindowPipeline::chunk(uint64_t number) const {
  const auto it = std::find_if(jobs_.begin(), jobs_.end(), [number](const Running& r) {
    return number >= r.first && number < r.last;
  });
  RUEDA_CHECK(it != jobs_.end(), "a chunk belongs to a job");
  Chunk result{};
  result.running = &*it;
  result.begin = static_cast<int64_t>(number - it->first) * it->chunk_elements;
  result.count = std::min(it->chunk_elements, it->job->list.total() - result.begin);
  const int64_t bytes = result.count * static_cast<int64_t>(size_of(it->job->dtype));
  result.one_shot = bytes * static_cast<int64_t>(arenas_.size()) <= kOneShotBytes;
  result.slot = number % windows_;
  return result;
}

uint64_t WindowPipeline::lowest(std::atomic<uint64_t> WindowControl::*counter) const {
  uint64_t value = std::numeric_limits<uint64_t>::max();
  for (const auto& arena : arenas_) {
    value = std::min(value, (arena->windows()->*counter).load(std::memory_order_acquire));
  }
  return value;
}

void WindowPipeline::post(std::atomic<uint64_t> WindowControl::*counter, uint64_t value) {
  (arenas_[static_cast<size_t>(rank_)]->windows()->*counter)
      .store(value, std::memory_order_release);
  for (size_t peer = 0; peer < ringers_.size(); ++peer) {
    if (static_cast<Rank>(peer) != rank_) ringers_[peer].ring();
  }
}

bool WindowPipeline::pack_next() {
  if (packed_ == end_) return false;
  if (packed_ >= windows_ && lowest(&WindowControl::unpacked) < packed_ - windows_ + 1)
    return false;
  const Chunk c = chunk(packed_);
  const AllreduceJob& job = *c.running->job;
  pack(job.list, job.dtype, c.begin, c.count, job.scaling.prescale,
       c.window(*arenas_[static_cast<size_t>(rank_)]));
  post(&WindowControl::packed, ++packed_);
  return true;
}

bool WindowPipeline::reduce_next() {
  if (reduced_ == packed_ || lowest(&WindowControl::packed) <= reduced_) return false;
  const Chunk c = chunk(reduced_);
  const AllreduceJob& job = *c.running->job;
  const auto bytes = static_cast<int64_t>(size_of(job.dtype));
  const auto size = static_cast<Rank>(arenas_.size());
  const int64_t unit = share_unit(job.dtype);
  const int64_t begin = c.one_shot ? 0 : share_begin(c.count, rank_, size, unit);
  const int64_t end = c.one_shot ? c.count : share_begin(c.count, rank_ + 1, size, unit);
  std::vector<const std::byte*> inputs;
  inputs.reserve(arenas_.size());
  for (const auto& arena : arenas_) inputs.push_back(c.window(*arena) + begin * bytes);
  std::byte* out =
      c.one_shot ? scratch_.data() : c.window(*arenas_[static_cast<size_t>(rank_)]) + begin * bytes;
  if (end > begin) {
    kernels::reduce(job.dtype, job.op, inputs, out, static_cast<size_t>(end - begin),
                    job.scaling.finish);
  }
  if (c.one_shot) unpack(job.list, job.dtype, c.begin, c.count, out);
  post(&WindowControl::reduced, ++reduced_);
  return true;
}

bool WindowPipeline::unpack_next() {
  if (unpacked_ == reduced_) return false;
  const Chunk c = chunk(unpacked_);
  if (!c.one_shot) {
    if (lowest(&WindowControl::reduced) <= unpacked_) return false;
    const AllreduceJob& job = *c.running->job;
    const auto bytes = static_cast<int64_t>(size_of(job.dtype));
    const auto size = static_cast<Rank>(arenas_.size());
    const int64_t unit = share_unit(job.dtype);
    for (Rank owner = 0; owner < size; ++owner) {
      const int64_t begin = share_begin(c.count, owner, size, unit);
      const int64_t count = share_begin(c.count, owner + 1, size, unit) - begin;
      unpack(job.list, job.dtype, c.begin + begin, count,
             c.window(*arenas_[static_cast<size_t>(owner)]) + begin * bytes);
    }
  }
  post(&WindowControl::unpacked, ++unpacked_);
  if (unpacked_ == jobs_.front().last) {
    jobs_.front().job->done = true;
    jobs_.pop_front();
  }
  return true;
}

}  // namespace rueda::communicator
