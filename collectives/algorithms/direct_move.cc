// allgather, broadcast and alltoall by direct exchange: bytes are moved, nothing is computed.
#include <algorithm>
#include <cstring>

#include "collectives/algorithms/direct.h"
#include "collectives/desc/copy_bytes.h"

namespace rueda::algorithms::direct {
namespace {

constexpr int64_t kFlatBroadcastBytes = 64 << 10;  // up to here the root sends to everybody itself

}  // namespace

Task allgather(Group group, std::vector<GatherPart> parts) {
  const auto size = static_cast<size_t>(group.size());
  const auto me = static_cast<size_t>(group.rank);
  // Block of each rank over all parts, and where each part's blocks lie in its output.
  std::vector<int64_t> block(size, 0);
  for (const GatherPart& part : parts) {
    for (size_t rank = 0; rank < size; ++rank) block[rank] += part.bytes[rank];
  }
  const bool single = parts.size() == 1;
  std::vector<std::byte> outgoing;
  std::vector<std::vector<std::byte>> incoming(size);
  const std::byte* mine = nullptr;
  if (single) {
    mine = parts[0].in;
  } else {
    outgoing.reserve(static_cast<size_t>(block[me]));
    for (const GatherPart& part : parts)
      outgoing.insert(outgoing.end(), part.in, part.in + part.bytes[me]);
    mine = outgoing.data();
  }
  Transfers moves;
  int64_t offset = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    if (rank != me && block[rank] > 0) {
      ByteSpan into;
      if (single) {
        into = {parts[0].out + offset, static_cast<size_t>(block[rank])};
      } else {
        incoming[rank].resize(static_cast<size_t>(block[rank]));
        into = incoming[rank];
      }
      moves.add(group.transport->recv(group.members[rank], group.tag, into));
    }
    offset += block[rank];
  }
  for (size_t step = 1; step < size && block[me] > 0; ++step) {
    const size_t peer = (me + step) % size;
    moves.add(group.transport->send(group.members[peer], group.tag,
                                    {mine, static_cast<size_t>(block[me])}));
  }
  const Status moved = co_await moves.finished();
  RUEDA_CO_RETURN_IF_ERROR(moved);
  std::vector<int64_t> read(size, 0);
  for (const GatherPart& part : parts) {
    std::byte* to = part.out;
    for (size_t rank = 0; rank < size; ++rank) {
      if (rank == me) {
        copy_bytes(to, part.in, part.bytes[rank]);
      } else if (!single) {
        copy_bytes(to, incoming[rank].data() + read[rank], part.bytes[rank]);
        read[rank] += part.bytes[rank];
      }
      to += part.bytes[rank];
    }
  }
  co_return Status();
}

Task broadcast(Group group, Rank root, std::vector<BroadcastPart> parts) {
  const Rank size = group.size();
  int64_t total = 0;
  for (const BroadcastPart& part : parts) total += part.bytes;
  const bool is_root = group.rank == root;
  const bool single = parts.size() == 1;
  std::vector<std::byte> staging;
  std::byte* data = nullptr;
  const std::byte* source = nullptr;
  if (single) {
    data = parts[0].out;
    source = is_root ? parts[0].in : parts[0].out;
  } else {
    staging.resize(static_cast<size_t>(total));
    data = staging.data();
    source = data;
    int64_t at = 0;
    for (const BroadcastPart& part : parts) {
      if (is_root) copy_bytes(data + at, part.in, part.bytes);
      at += part.bytes;
    }
  }
  Transfers moves;
  if (total > 0 && total <= kFlatBroadcastBytes) {
    if (is_root) {
      for (Rank step = 1; step < size; ++step) {
        const Rank peer = (root + step) % size;
        moves.add(group.transport->send(group.members[static_cast<size_t>(peer)], group.tag,
                                        {source, static_cast<size_t>(total)}));
      }
    } else {
      moves.add(group.transport->recv(group.members[static_cast<size_t>(root)], group.tag,
                                      {data, static_cast<size_t>(total)}));
    }
  } else if (total > 0) {
    // The chain: what the left neighbour sent goes on to the right one, segment by segment.
    const Rank place = (group.rank - root + size) % size;
    const Rank left = group.members[static_cast<size_t>((group.rank + size - 1) % size)];
    const Rank right = group.members[static_cast<size_t>((group.rank + 1) % size)];
    const int64_t segments = (total + kSegmentBytes - 1) / kSegmentBytes;
    std::vector<Transfers> arrivals(static_cast<size_t>(is_root ? 0 : segments));
    for (size_t segment = 0; segment < arrivals.size(); ++segment) {
      const int64_t begin = static_cast<int64_t>(segment) * kSegmentBytes;
      arrivals[segment].add(group.transport->recv(
          left, group.tag,
          {data + begin, static_cast<size_t>(std::min(kSegmentBytes, total - begin))}));
    }
    for (int64_t segment = 0; segment < segments; ++segment) {
      if (!is_root) {
        const Status arrived = co_await arrivals[static_cast<size_t>(segment)].finished();
        RUEDA_CO_RETURN_IF_ERROR(arrived);
      }
      if (place == size - 1) continue;  // the end of the chain
      const int64_t begin = segment * kSegmentBytes;
      moves.add(group.transport->send(
          right, group.tag,
          {source + begin, static_cast<size_t>(std::min(kSegmentBytes, total - begin))}));
    }
  }
  const Status moved = co_await moves.finished();
  RUEDA_CO_RETURN_IF_ERROR(moved);
  int64_t at = 0;
  for (const BroadcastPart& part : parts) {
    if (is_root)
      copy_bytes(part.out, part.in, part.bytes);
    else if (!single)
      copy_bytes(part.out, data + at, part.bytes);
    at += part.bytes;
  }
  co_return Status();
}

Task alltoall(Group group, const std::byte* in, std::byte* out, std::vector<int64_t> send_bytes,
              std::vector<int64_t> recv_bytes) {
  const auto size = static_cast<size_t>(group.size());
  const auto me = static_cast<size_t>(group.rank);
  std::vector<int64_t> send_begin(size + 1, 0);
  std::vector<int64_t> recv_begin(size + 1, 0);
  for (size_t rank = 0; rank < size; ++rank) {
    send_begin[rank + 1] = send_begin[rank] + send_bytes[rank];
    recv_begin[rank + 1] = recv_begin[rank] + recv_bytes[rank];
  }
  Transfers moves;
  for (size_t step = 1; step < size; ++step) {
    const size_t from = (me + size - step) % size;
    if (recv_bytes[from] == 0) continue;
    moves.add(
        group.transport->recv(group.members[from], group.tag,
                              {out + recv_begin[from], static_cast<size_t>(recv_bytes[from])}));
  }
  for (size_t step = 1; step < size; ++step) {
    const size_t to = (me + step) % size;
    if (send_bytes[to] == 0) continue;
    moves.add(group.transport->send(group.members[to], group.tag,
                                    {in + send_begin[to], static_cast<size_t>(send_bytes[to])}));
  }
  copy_bytes(out + recv_begin[me], in + send_begin[me], send_bytes[me]);
  const Status moved = co_await moves.finished();
  co_return moved;
}

}  // namespace rueda::algorithms::direct
