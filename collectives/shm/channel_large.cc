// Large operations: what a post says of each tensor, and the protocol that follows from all posts.
#include <algorithm>
#include <numeric>

#include "collectives/shm/channel_state.h"

namespace rueda::shm {
namespace {

using post::Where;

bool lies_in(const HeapView& heap, const std::byte* memory, int64_t bytes) {
  if (heap.base == nullptr || memory == nullptr) return false;
  const auto begin = reinterpret_cast<uintptr_t>(heap.base);
  const auto at = reinterpret_cast<uintptr_t>(memory);
  return at >= begin && at - begin <= heap.bytes &&
         static_cast<uint64_t>(bytes) <= heap.bytes - (at - begin);
}

uint64_t describe(const HeapView& heap, const std::byte* memory, int64_t bytes,
                  ShmProtocol protocol) {
  if (bytes == 0 || memory == nullptr) return post::location(Where::kNowhere, 0);
  if (lies_in(heap, memory, bytes))
    return post::location(Where::kHeap, static_cast<uint64_t>(memory - heap.base));
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return post::location(Where::kPrivate, protocol == ShmProtocol::kCma ? address : 0);
}

// False for what no rank writes.
bool find_place(const HeapView& heap, uint64_t word, int64_t bytes, Place* place) {
  *place = {};
  const uint64_t offset = word & post::kPlaceMask;
  switch (static_cast<Where>(word >> post::kWhereBits)) {
    case Where::kNowhere: return offset == 0;
    case Where::kPrivate: place->remote = offset; return true;
    case Where::kHeap:
      if (heap.base == nullptr || offset > heap.bytes ||
          static_cast<uint64_t>(bytes) > heap.bytes - offset) {
        return false;
      }
      place->mapped = heap.base + offset;
      return true;
  }
  return false;
}

// A quarter of what there is to do, so that the stages overlap; 64 KB at least, so that a wait is
// worth it; at most a buffer.
int64_t chunk_for(int64_t bytes, size_t staging_bytes) {
  constexpr int64_t kLeast = 64 << 10;
  const int64_t quarter = (bytes / 4 + 4095) / 4096 * 4096;
  return std::min(std::max(kLeast, quarter), static_cast<int64_t>(staging_bytes));
}

uint64_t chunks_of(int64_t total, int64_t chunk) {
  return static_cast<uint64_t>((total + chunk - 1) / chunk);
}

}  // namespace

// Bytes of a listed part's input on a rank; of an allreduce the output has as many, of the other
// kinds nobody asks.
int64_t Channel::State::listed_bytes(const ChannelOp& op, size_t rank, size_t index) const {
  const ChannelOp::Progress& p = op.progress();
  const size_t part = p.listed[index];
  switch (op.desc().kind) {
    case CollectiveKind::kAllreduce: return op.tensors()[part].count * p.element;
    case CollectiveKind::kReducescatter: return p.begins.back() * p.element;
    case CollectiveKind::kBroadcast:
      return rank == static_cast<size_t>(op.desc().root) ? op.tensors()[part].count : 0;
    case CollectiveKind::kAllgather: return op.desc().counts[part * size + rank];
    default: {  // alltoall
      int64_t bytes = 0;
      for (size_t to = 0; to < size; ++to) bytes += op.desc().counts[rank * size + to];
      return bytes;
    }
  }
}

void Channel::State::enter_large(ChannelOp* op) {
  const ChannelOp::Progress& p = op->progress();
  const bool with_outputs = op->desc().kind == CollectiveKind::kAllreduce;
  for (size_t i = 0; i < p.listed.size(); ++i) {
    const Part& part = op->tensors()[p.listed[i]];
    const int64_t bytes = listed_bytes(*op, me, i);
    words[2 * i] = describe(peers[me].heap, part.in, bytes, op->desc().protocol);
    words[2 * i + 1] =
        with_outputs ? describe(peers[me].heap, part.out, bytes, op->desc().protocol) : uint64_t{0};
  }
  post::write(cell(me, p.number), sequence(p.number),
              reinterpret_cast<const std::byte*>(words.data()), p.payload[me]);
}

bool Channel::State::read_large(ChannelOp* op) {
  ChannelOp::Progress& p = op->progress();
  for (; p.ready < size; ++p.ready) {
    if (!post::is_there(cell(p.ready, p.number), sequence(p.number), p.payload[p.ready]))
      return false;
    if (!read_places(op, p.ready)) {
      fail(Status(Code::kDataLoss, "local rank " + std::to_string(p.ready) +
                                       " names memory outside its heap in a post"));
      return false;
    }
  }
  return true;
}

bool Channel::State::read_places(ChannelOp* op, size_t rank) {
  ChannelOp::Progress& p = op->progress();
  const size_t listed = p.listed.size();
  post::read(cell(rank, p.number), reinterpret_cast<std::byte*>(words.data()), 16 * listed);
  for (size_t i = 0; i < listed; ++i) {
    const int64_t bytes = listed_bytes(*op, rank, i);
    for (size_t which = 0; which < 2; ++which) {
      if (!find_place(peers[rank].heap, words[2 * i + which], bytes,
                      &p.places[rank * listed + i][which])) {
        return false;
      }
    }
  }
  return true;
}

void Channel::State::choose_protocols(ChannelOp* op) {
  ChannelOp::Progress& p = op->progress();
  p.combines.clear();
  p.fetches.clear();
  for (PartList& list : p.staged) list.clear();
  p.fetches_results = p.exposed = false;
  p.next_piece = 0;
  p.piece_done = 0;
  p.direct_bytes[0] = p.direct_bytes[1] = 0;
  p.first = p.last = chunks;
  switch (op->desc().kind) {
    case CollectiveKind::kAllreduce: choose_allreduce(op); break;
    case CollectiveKind::kReducescatter: choose_reducescatter(op); break;
    case CollectiveKind::kAlltoall: choose_alltoall(op); break;
    default: choose_gather(op);
  }
  chunks = p.last;
}

void Channel::State::choose_allreduce(ChannelOp* op) {
  ChannelOp::Progress& p = op->progress();
  const size_t listed = p.listed.size();
  const int64_t unit = shard_unit(op->desc().dtype);
  size_t next = 0;
  for (size_t i = 0; i < op->tensors().size(); ++i) {
    const Part& part = op->tensors()[i];
    const int64_t bytes = part.count * p.element;
    bool in_place = next < listed && p.listed[next] == i;
    bool by_cma = in_place && op->desc().protocol == ShmProtocol::kCma && bytes >= kCmaBytes;
    const size_t index = in_place ? next++ : 0;
    for (size_t rank = 0; rank < size && (in_place || by_cma); ++rank) {
      const auto& [in, out] = p.places[rank * listed + index];
      in_place = in_place && in.mapped != nullptr && out.mapped != nullptr;
      by_cma = by_cma && in.reachable() && out.reachable();
    }
    if (!in_place && !by_cma) {
      p.staged[0].add(part);
      continue;
    }
    const auto begin_of = [&](size_t rank) {
      return shard_begin(part.count, static_cast<Rank>(rank), static_cast<Rank>(size), unit);
    };
    const int64_t begin = begin_of(me);
    p.combines.push_back(
        {index, begin, begin_of(me + 1) - begin, in_place, part.out + begin * p.element});
    p.exposed = size > 1;
    p.direct_bytes[in_place ? 0 : 1] += static_cast<uint64_t>(bytes);
    if (in_place) continue;
    p.fetches_results = true;
    for (size_t step = 1; step < size; ++step) {
      const size_t rank = (me + step) % size;
      const int64_t offset = begin_of(rank) * p.element;
      p.fetches.push_back({rank, p.places[rank * listed + index][1].at(offset), part.out + offset,
                           begin_of(rank + 1) * p.element - offset});
    }
  }
  const int64_t total = p.staged[0].total();
  p.chunk = chunk_for(total * p.element, staging_bytes) / p.element;
  p.last += chunks_of(total, p.chunk);
}

void Channel::State::choose_reducescatter(ChannelOp* op) {
  ChannelOp::Progress& p = op->progress();
  bool in_place = true;
  bool by_cma = op->desc().protocol == ShmProtocol::kCma && p.bytes >= kCmaBytes;
  for (size_t rank = 0; rank < size; ++rank) {
    in_place = in_place && p.places[rank][0].mapped != nullptr;
    by_cma = by_cma && p.places[rank][0].reachable();
  }
  if (in_place || by_cma) {
    p.combines.push_back({0, p.begins[me], op->desc().counts[me], false, op->tensors()[0].out});
    p.exposed = size > 1;
    p.direct_bytes[in_place ? 0 : 1] = static_cast<uint64_t>(p.bytes);
    return;
  }
  const int64_t longest = *std::max_element(op->desc().counts.begin(), op->desc().counts.end());
  p.chunk = portion(longest * p.element, size) / p.element;
  p.last += chunks_of(longest, p.chunk);
}

// Bytes for each rank in a buffer that has something for so many.
int64_t Channel::State::portion(int64_t longest_bytes, size_t count) const {
  const auto ranks = std::max<int64_t>(1, static_cast<int64_t>(count));
  const int64_t bytes = chunk_for(longest_bytes * ranks, staging_bytes) / ranks;
  return bytes >= 64 ? bytes / 64 * 64 : bytes / 16 * 16;
}

// A block that goes from one rank to all: straight from there, or through its buffers. block.in is
// of use on its owner only.
void Channel::State::add_block(ChannelOp* op, size_t from, const Place& place, const Part& block) {
  ChannelOp::Progress& p = op->progress();
  if (block.count == 0) return;
  const bool by_cma =
      op->desc().protocol == ShmProtocol::kCma && block.count >= kCmaBytes && place.remote != 0;
  if (place.mapped == nullptr && !by_cma) {
    p.staged[from].add(block);
    return;
  }
  p.direct_bytes[by_cma ? 1 : 0] += static_cast<uint64_t>(block.count);
  if (from == me) {
    p.exposed = size > 1;
    if (block.in == block.out) return;
    p.fetches.push_back({me, {const_cast<std::byte*>(block.in), 0}, block.out, block.count});
  } else {
    p.fetches.push_back({from, place, block.out, block.count});
  }
}

void Channel::State::choose_gather(ChannelOp* op) {
  ChannelOp::Progress& p = op->progress();
  const size_t listed = p.listed.size();
  size_t next = 0;
  for (size_t i = 0; i < op->tensors().size(); ++i) {
    const Part& part = op->tensors()[i];
    const bool is_listed = next < listed && p.listed[next] == i;
    const size_t index = is_listed ? next++ : 0;
    const auto place = [&](size_t rank) {
      return is_listed ? p.places[rank * listed + index][0] : Place{};
    };
    if (op->desc().kind == CollectiveKind::kBroadcast) {
      const auto root = static_cast<size_t>(op->desc().root);
      add_block(op, root, place(root), part);
      continue;
    }
    const int64_t* row = &op->desc().counts[i * size];
    // From the next rank on, the own block last: not all read the same memory at once.
    int64_t begin = std::accumulate(row, row + me + 1, int64_t{0});
    for (size_t step = 1; step <= size; ++step) {
      const size_t rank = (me + step) % size;
      if (rank == 0) begin = 0;
      add_block(op, rank, place(rank), {part.in, part.out + begin, row[rank]});
      begin += row[rank];
    }
  }
  int64_t longest = 0;
  for (const PartList& list : p.staged) longest = std::max(longest, list.total());
  p.chunk = chunk_for(longest, staging_bytes);
  p.last += chunks_of(longest, p.chunk);
}

void Channel::State::choose_alltoall(ChannelOp* op) {
  ChannelOp::Progress& p = op->progress();
  int64_t longest = 0;
  std::byte* out = op->tensors()[0].out;
  for (size_t from = 0; from <= me; ++from) out += op->desc().counts[from * size + me];
  for (size_t step = 1; step <= size; ++step) {
    const size_t from = (me + step) % size;
    if (from == 0) out = op->tensors()[0].out;
    const int64_t* row = &op->desc().counts[from * size];
    const Place& place = p.places[from][0];
    const int64_t all = listed_bytes(*op, from, 0);
    const bool by_cma =
        op->desc().protocol == ShmProtocol::kCma && all >= kCmaBytes && place.remote != 0;
    const bool straight = place.mapped != nullptr || by_cma;
    p.through_staging[from] = static_cast<uint8_t>(!straight);
    int64_t offset = 0;
    for (size_t to = 0; to < me; ++to) offset += row[to];
    if (from == me) {
      p.exposed = straight && size > 1;
      auto* in = const_cast<std::byte*>(op->tensors()[0].in);
      if (row[me] != 0) p.fetches.push_back({me, {in + offset, 0}, out, row[me]});
    } else if (straight && row[me] != 0) {
      p.fetches.push_back({from, place.at(offset), out, row[me]});
    }
    if (straight) {
      p.direct_bytes[by_cma ? 1 : 0] += static_cast<uint64_t>(all);
    } else {
      for (size_t to = 0; to < size; ++to) longest = std::max(longest, to == from ? 0 : row[to]);
    }
    out += row[me];
  }
  p.chunk = portion(longest, size - 1);
  p.last += chunks_of(longest, p.chunk);
}

}  // namespace rueda::shm
