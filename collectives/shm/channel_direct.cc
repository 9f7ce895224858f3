// Tensors that peers can reach where they are: mapped, or read by the kernel.
//
//   combine   reductions: my shard from everybody's input, block by block while it is in cache,
//             into everybody's result if all are mapped, else into mine    then combined = n + 1
//   fetch     reductions whose results are not mapped, when all have combined: the others' shards;
//             other kinds: what is for me, from its owner                   then fetched = n + 1
//   end       when all have fetched: no peer touches my tensors any more
//
// Each stage takes the operations in order, and goes on with the next operation while another stage
// waits for peers: on busy cores a peer's answer comes only after a scheduler's slice, and an
// operation that waited for it alone would hold up all that come after it. A batch may have tensors
// on this protocol and others in buffers; both are worked on at the same time.
#include <algorithm>

#include "collectives/host/monotonic.h"
#include "collectives/shm/channel_state.h"
#include "collectives/shm/cma.h"

namespace rueda::shm {

using host::ChannelControl;

bool Channel::State::run_direct() {
  direct = std::max(direct, finished);
  fetched = std::max(fetched, direct);
  combined = std::max(combined, fetched);
  int64_t budget = kRoundBytes;
  // Fetch first: a peer's tensor is free after it. Again after combining, for what needs no wait.
  bool moved = fetch_ops(&budget);
  moved |= combine_ops(&budget);
  moved |= fetch_ops(&budget);
  for (; direct != fetched; ++direct, moved = true) {
    const ChannelOp* op = running(direct);
    const ChannelOp::Progress& p = op->progress();
    if (p.size != Size::kLarge || !p.exposed) continue;
    if (!all_reached(&ChannelControl::fetched, direct + 1)) break;
    // In place the others' shards have come only now.
    if (op->times_ != nullptr && op->times_->wire.begin != 0)
      op->times_->wire.end = host::monotonic_ns();
  }
  return moved;
}

bool Channel::State::combine_ops(int64_t* budget) {
  bool moved = false;
  for (; combined != decided; ++combined, moved = true) {
    ChannelOp* op = running(combined);
    const ChannelOp::Progress& p = op->progress();
    if (p.size != Size::kLarge) continue;
    if (!combine_some(op, budget)) return !dead && !gone;
    if (p.fetches_results) post(&ChannelControl::combined, combined + 1);
  }
  return moved;
}

bool Channel::State::fetch_ops(int64_t* budget) {
  bool moved = false;
  for (; fetched != combined; ++fetched, moved = true) {
    ChannelOp* op = running(fetched);
    const ChannelOp::Progress& p = op->progress();
    if (p.size != Size::kLarge) continue;
    if (p.fetches_results && !all_reached(&ChannelControl::combined, fetched + 1)) break;
    if (!fetch_some(op, budget)) return !dead && !gone;
    post(&ChannelControl::fetched, fetched + 1);
  }
  return moved;
}

// True when all is combined; false when the round's budget is used up, or after a failure.
bool Channel::State::combine_some(ChannelOp* op, int64_t* budget) {
  ChannelOp::Progress& p = op->progress();
  if (p.combines.empty()) return true;
  const StageStamp stamp(op->times_, &StageTimes::wire);
  for (; p.next_piece < p.combines.size(); ++p.next_piece, p.piece_done = 0) {
    const Combine& work = p.combines[p.next_piece];
    const int64_t block =
        (work.push ? kBlockBytes : static_cast<int64_t>(scratch_block())) / p.element;
    while (p.piece_done < work.count) {
      if (*budget <= 0) return false;
      const int64_t count = std::min(block, work.count - p.piece_done);
      if (!combine_block(op, work, p.piece_done, count)) return false;
      p.piece_done += count;
      *budget -= count * p.element * static_cast<int64_t>(size);
    }
  }
  return true;
}

// A rank's input as it is to be combined, in the scratch block of that rank if it cannot be read in
// place. Null after a failure.
const std::byte* Channel::State::input_of(ChannelOp* op, const Combine& work, size_t rank,
                                          int64_t begin, int64_t count) {
  const ChannelOp::Progress& p = op->progress();
  const Place& place = p.places[rank * p.listed.size() + work.listed][0];
  std::byte* block = scratch.data() + rank * scratch_block();
  const std::byte* in = place.mapped == nullptr ? nullptr : place.mapped + begin * p.element;
  if (rank == me) {
    in = op->tensors()[p.listed[work.listed]].in + begin * p.element;
  } else if (place.mapped == nullptr) {
    const Status cma =
        read_peer(peers[rank].pid, place.remote + static_cast<uint64_t>(begin * p.element), block,
                  static_cast<size_t>(count * p.element));
    if (!cma.ok()) {
      lose(cma);
      return nullptr;
    }
    in = block;
  }
  if (op->desc().scaling.prescale == 1.0) return in;
  kernels::scaled_copy(op->desc().dtype, in, block, static_cast<size_t>(count),
                       op->desc().scaling.prescale);
  return block;
}

bool Channel::State::combine_block(ChannelOp* op, const Combine& work, int64_t offset,
                                   int64_t count) {
  const ChannelOp::Progress& p = op->progress();
  const int64_t begin = work.begin + offset;
  for (size_t rank = 0; rank < size; ++rank) {
    inputs[rank] = input_of(op, work, rank, begin, count);
    if (inputs[rank] == nullptr) return false;
  }
  const Part& part = op->tensors()[p.listed[work.listed]];
  std::byte* own = work.out + offset * p.element;
  const auto bytes = static_cast<size_t>(count * p.element);
  // In place, the result's lines are in cache already; elsewhere writing past the cache saves
  // reading them.
  const bool large = work.push && part.count * p.element >= kStreamBytes;
  std::byte* result = large && part.in != part.out ? scratch.data() + size * scratch_block() : own;
  kernels::reduce(op->desc().dtype, op->desc().op, inputs, result, static_cast<size_t>(count),
                  op->desc().scaling.finish);
  if (!work.push) return true;
  if (result != own) kernels::copy_streaming(result, own, bytes);
  for (size_t step = 1; step < size; ++step) {
    const size_t rank = (me + step) % size;
    const auto& [in, out] = p.places[rank * p.listed.size() + work.listed];
    std::byte* to = out.mapped + begin * p.element;
    if (large && in.mapped != out.mapped) {
      kernels::copy_streaming(result, to, bytes);
    } else {
      std::memcpy(to, result, bytes);
    }
  }
  return true;
}

// True when all blocks are here.
bool Channel::State::fetch_some(ChannelOp* op, int64_t* budget) {
  ChannelOp::Progress& p = op->progress();
  if (p.fetches.empty()) return true;
  const StageStamp stamp(op->times_, &StageTimes::wire);
  // combine_some has left next_piece at the end of combines.
  while (p.next_piece < p.combines.size() + p.fetches.size()) {
    const Fetch& work = p.fetches[p.next_piece - p.combines.size()];
    while (p.piece_done < work.bytes) {
      if (*budget <= 0) return false;
      const int64_t bytes = std::min(kRoundBytes / 4, work.bytes - p.piece_done);
      const Place from = work.place.at(p.piece_done);
      std::byte* to = work.out + p.piece_done;
      if (from.mapped != nullptr) {
        move_out(p.streams, from.mapped, to, bytes);
      } else {
        const Status cma =
            read_peer(peers[work.from].pid, from.remote, to, static_cast<size_t>(bytes));
        if (!cma.ok()) {
          lose(cma);
          return false;
        }
      }
      p.piece_done += bytes;
      *budget -= bytes;
    }
    ++p.next_piece;
    p.piece_done = 0;
  }
  return true;
}

}  // namespace rueda::shm
