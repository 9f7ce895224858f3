// Chunk by chunk through buffers. Chunk number s, counted over all operations of the generation,
// uses buffer s mod buffers on every rank and passes three stages:
//
//   pack     what others need of my part of the chunk goes into my buffer     then packed = s + 1
//   reduce   when all have packed s: combine my shard in rank order, my own   then reduced = s + 1
//            input straight from my tensor, into my result and, for the
//            others, into my buffer
//   unpack   when all have reduced s: copy the others' shards to my result    then unpacked = s + 1
//
// A buffer is packed again only when everybody has unpacked what was in it. While ranks wait for
// one stage of a chunk they work on other stages of its neighbours. Kinds that combine nothing
// skip reduce and wait only for ranks that have something for them; reducescatter ends with reduce.
// Cost of an allreduce of N bytes: every input is read and every output written once in its own
// memory, and (4P-2)N more bytes move in cache.
#include <algorithm>

#include "collectives/desc/copy_bytes.h"
#include "collectives/host/monotonic.h"
#include "collectives/shm/channel_state.h"

namespace rueda::shm {
namespace {

// Elements of a chunk: [begin, begin + count) of what a list holds.
struct Range {
  int64_t begin = 0;
  int64_t count = 0;
};

Range range_of(const ChannelOp::Progress& p, uint64_t chunk, int64_t total) {
  const int64_t begin = static_cast<int64_t>(chunk - p.first) * p.chunk;
  return {begin, std::clamp<int64_t>(total - begin, 0, p.chunk)};
}

}  // namespace

ChannelOp* Channel::State::op_of(uint64_t chunk, uint64_t* cursor) {
  *cursor = std::max(*cursor, finished);
  while (running(*cursor)->progress().last <= chunk) ++*cursor;
  return running(*cursor);
}

bool Channel::State::run_staged() {
  // Unpack first: it frees buffers. Reduce before pack: peers wait for it.
  const bool did_unpack = unpack_next();
  const bool did_reduce = reduce_next();
  const bool did_pack = pack_next();
  return did_unpack || did_reduce || did_pack;
}

bool Channel::State::pack_next() {
  if (packed == chunks || packed - unpacked >= buffers) return false;
  if (packed >= buffers && !all_reached(&host::ChannelControl::unpacked, packed - buffers + 1))
    return false;
  const ChannelOp& op = *op_of(packed, &pack_cursor);
  const ChannelOp::Progress& p = op.progress();
  const StageStamp stamp(op.times_, &StageTimes::packed);
  std::byte* to = buffer(me, packed);
  switch (op.desc().kind) {
    case CollectiveKind::kAllreduce: {
      const PartList& list = p.staged[0];
      const Range range = range_of(p, packed, list.total());
      const double factor = op.desc().scaling.prescale;
      if (factor != 1.0) {  // the own shard too: it has to be scaled somewhere
        pack(list, op.desc().dtype, range.begin, range.count, factor, to);
        break;
      }
      const int64_t unit = shard_unit(op.desc().dtype);
      const auto ranks = static_cast<Rank>(size);
      const int64_t begin = shard_begin(range.count, static_cast<Rank>(me), ranks, unit);
      const int64_t end = shard_begin(range.count, static_cast<Rank>(me) + 1, ranks, unit);
      pack(list, op.desc().dtype, range.begin, begin, 1.0, to);
      pack(list, op.desc().dtype, range.begin + end, range.count - end, 1.0, to + end * p.element);
      break;
    }
    case CollectiveKind::kReducescatter:
      for (size_t rank = 0; rank < size; ++rank) {
        if (rank == me && op.desc().scaling.prescale == 1.0) continue;
        const Range range = range_of(p, packed, op.desc().counts[rank]);
        kernels::scaled_copy(op.desc().dtype,
                             op.tensors()[0].in + (p.begins[rank] + range.begin) * p.element,
                             to + static_cast<int64_t>(rank) * p.chunk * p.element,
                             static_cast<size_t>(range.count), op.desc().scaling.prescale);
      }
      break;
    case CollectiveKind::kAlltoall: {
      if (p.through_staging[me] == 0) break;
      const std::byte* from = op.tensors()[0].in;
      for (size_t rank = 0; rank < size; ++rank) {
        const int64_t block = op.desc().counts[me * size + rank];
        const Range range = range_of(p, packed, rank == me ? 0 : block);
        if (range.count > 0)
          copy_bytes(to + slot(me, rank) * p.chunk, from + range.begin, range.count);
        from += block;
      }
      break;
    }
    default: {  // allgather, broadcast
      const PartList& list = p.staged[me];
      const Range range = range_of(p, packed, list.total());
      if (range.count == 0) break;
      list.for_each_piece(range.begin, range.count, [&](const Piece& piece) {
        copy_bytes(to + piece.offset, list.parts()[piece.part].in + piece.begin, piece.count);
      });
    }
  }
  if (op.times_ != nullptr && op.times_->wire.begin == 0)
    op.times_->wire.begin = host::monotonic_ns();
  post(&host::ChannelControl::packed, ++packed);
  keep_own(op, packed - 1);
  return true;
}

// A gathering kind's own block, while peers already read the chunk; it is still in cache.
void Channel::State::keep_own(const ChannelOp& op, uint64_t chunk) {
  const CollectiveKind kind = op.desc().kind;
  if (kind != CollectiveKind::kAllgather && kind != CollectiveKind::kBroadcast) return;
  const ChannelOp::Progress& p = op.progress();
  const PartList& list = p.staged[me];
  const Range range = range_of(p, chunk, list.total());
  list.for_each_piece(range.begin, range.count, [&](const Piece& piece) {
    const Part& part = list.parts()[piece.part];
    if (part.in == part.out) return;
    move_out(p.streams, part.in + piece.begin, part.out + piece.begin, piece.count);
  });
}

bool Channel::State::reduce_next() {
  if (reduced == packed) return false;
  const ChannelOp& op = *op_of(reduced, &reduce_cursor);
  const ChannelOp::Progress& p = op.progress();
  const bool combines = op.desc().kind == CollectiveKind::kAllreduce;
  if (!combines && op.desc().kind != CollectiveKind::kReducescatter) {
    ++reduced;
    return true;
  }
  if (!all_reached(&host::ChannelControl::packed, reduced + 1)) return false;
  const bool scaled = op.desc().scaling.prescale != 1.0;
  const StageStamp stamp(op.times_, &StageTimes::wire);
  // Combines elements that begin at `offset` in everybody's buffer; mine are at `own`.
  const auto reduce = [&](int64_t offset, const std::byte* own, std::byte* out, int64_t count) {
    for (size_t rank = 0; rank < size; ++rank)
      inputs[rank] = buffer(rank, reduced) + offset * p.element;
    if (!scaled) inputs[me] = own;
    kernels::reduce(op.desc().dtype, op.desc().op, inputs, out, static_cast<size_t>(count),
                    op.desc().scaling.finish);
  };
  if (combines) {
    const PartList& list = p.staged[0];
    const Range range = range_of(p, reduced, list.total());
    const int64_t unit = shard_unit(op.desc().dtype);
    const auto ranks = static_cast<Rank>(size);
    const int64_t begin = shard_begin(range.count, static_cast<Rank>(me), ranks, unit);
    const int64_t end = shard_begin(range.count, static_cast<Rank>(me) + 1, ranks, unit);
    const int64_t block = kBlockBytes / p.element;
    list.for_each_piece(range.begin + begin, end - begin, [&](const Piece& piece) {
      const Part& part = list.parts()[piece.part];
      for (int64_t done = 0; done < piece.count; done += block) {
        const int64_t count = std::min(block, piece.count - done);
        const int64_t at = (piece.begin + done) * p.element;
        const int64_t offset = begin + piece.offset + done;
        reduce(offset, part.in + at, part.out + at, count);
        if (size > 1)
          copy_bytes(buffer(me, reduced) + offset * p.element, part.out + at, count * p.element);
      }
    });
  } else {
    const Range range = range_of(p, reduced, op.desc().counts[me]);
    if (range.count > 0) {
      reduce(static_cast<int64_t>(me) * p.chunk,
             op.tensors()[0].in + (p.begins[me] + range.begin) * p.element,
             op.tensors()[0].out + range.begin * p.element, range.count);
    }
  }
  ++reduced;
  if (combines) post(&host::ChannelControl::reduced, reduced);
  return true;
}

bool Channel::State::unpack_next() {
  if (unpacked == reduced) return false;
  const ChannelOp& op = *op_of(unpacked, &unpack_cursor);
  const ChannelOp::Progress& p = op.progress();
  const auto has_packed = [&](size_t rank) {
    return peers[rank].control->packed.load(std::memory_order_acquire) >= base + unpacked + 1;
  };
  switch (op.desc().kind) {
    case CollectiveKind::kAllreduce: {
      if (!all_reached(&host::ChannelControl::reduced, unpacked + 1)) return false;
      const StageStamp stamp(op.times_, &StageTimes::unpacked);
      const PartList& list = p.staged[0];
      const Range range = range_of(p, unpacked, list.total());
      const int64_t unit = shard_unit(op.desc().dtype);
      const auto ranks = static_cast<Rank>(size);
      for (Rank rank = 0; rank < ranks; ++rank) {
        if (static_cast<size_t>(rank) == me) continue;
        const int64_t begin = shard_begin(range.count, rank, ranks, unit);
        const int64_t end = shard_begin(range.count, rank + 1, ranks, unit);
        unpack(list, op.desc().dtype, range.begin + begin, end - begin,
               buffer(static_cast<size_t>(rank), unpacked) + begin * p.element);
      }
      break;
    }
    case CollectiveKind::kReducescatter: break;
    case CollectiveKind::kAlltoall: {
      const auto from_staging = [&](size_t rank) {
        if (rank == me || p.through_staging[rank] == 0) return Range{};
        return range_of(p, unpacked, op.desc().counts[rank * size + me]);
      };
      for (size_t rank = 0; rank < size; ++rank) {
        if (from_staging(rank).count > 0 && !has_packed(rank)) return false;
      }
      if (op.times_ != nullptr) op.times_->wire.end = host::monotonic_ns();
      const StageStamp stamp(op.times_, &StageTimes::unpacked);
      std::byte* out = op.tensors()[0].out;
      for (size_t rank = 0; rank < size; ++rank) {
        const Range range = from_staging(rank);
        if (range.count > 0) {
          move_out(p.streams, buffer(rank, unpacked) + slot(rank, me) * p.chunk, out + range.begin,
                   range.count);
        }
        out += op.desc().counts[rank * size + me];
      }
      break;
    }
    default: {  // allgather, broadcast
      const auto from_staging = [&](size_t rank) {
        return rank == me ? Range{} : range_of(p, unpacked, p.staged[rank].total());
      };
      for (size_t rank = 0; rank < size; ++rank) {
        if (from_staging(rank).count > 0 && !has_packed(rank)) return false;
      }
      if (op.times_ != nullptr) op.times_->wire.end = host::monotonic_ns();
      const StageStamp stamp(op.times_, &StageTimes::unpacked);
      for (size_t rank = 0; rank < size; ++rank) {
        const Range range = from_staging(rank);
        const std::byte* const from = buffer(rank, unpacked);
        const PartList& list = p.staged[rank];
        list.for_each_piece(range.begin, range.count, [&](const Piece& piece) {
          move_out(p.streams, from + piece.offset, list.parts()[piece.part].out + piece.begin,
                   piece.count);
        });
      }
    }
  }
  post(&host::ChannelControl::unpacked, ++unpacked);
  return true;
}

}  // namespace rueda::shm
