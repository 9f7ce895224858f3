// allgather, broadcast, alltoall and barrier by direct exchange: bytes are moved, nothing is
// computed.
#include <algorithm>
#include <cstring>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/meeting.h"
#include "collectives/desc/copy_bytes.h"

namespace rueda::algorithms::direct {
namespace {

constexpr int64_t kFlatBroadcastBytes = 64 << 10;  // up to here the root sends to everybody itself

ByteView view(const std::byte* from, int64_t bytes) { return {from, static_cast<size_t>(bytes)}; }
ByteSpan span(std::byte* to, int64_t bytes) { return {to, static_cast<size_t>(bytes)}; }

}  // namespace

Script allgather(const Group& group, const CollectiveDesc& desc, std::span<const Part> tensors) {
  const auto size = static_cast<size_t>(group.size());
  const auto me = static_cast<size_t>(group.rank);
  const auto bytes_of = [&](size_t tensor, size_t rank) {
    return desc.counts[tensor * size + rank];
  };
  // Block of each rank over all tensors; of several it travels through memory of our own.
  std::vector<int64_t> block(size, 0);
  for (size_t i = 0; i < desc.counts.size(); ++i) block[i % size] += desc.counts[i];
  const bool single = tensors.size() == 1;
  std::vector<std::byte> outgoing(single ? 0 : static_cast<size_t>(block[me]));
  std::vector<std::vector<std::byte>> incoming(size);
  for (size_t rank = 0; rank < size && !single; ++rank) {
    if (rank != me) incoming[rank].resize(static_cast<size_t>(block[rank]));
  }
  std::vector<int64_t> read(size);
  Transfers moves(2 * (size - 1));
  Meeting meeting(group, desc.meets && !meets_by_itself(desc, group.size()));

  for (Status last;;) {
    const Call call = co_await next_call(last);
    meeting.begin(call.tag);
    const std::byte* mine = single ? tensors[0].in : outgoing.data();
    int64_t offset = 0;
    for (size_t i = 0; i < tensors.size() && !single; ++i) {
      copy_bytes(outgoing.data() + offset, tensors[i].in, bytes_of(i, me));
      offset += bytes_of(i, me);
    }
    offset = 0;
    for (size_t rank = 0; rank < size; ++rank) {
      if (rank != me && block[rank] > 0) {
        std::byte* into = single ? tensors[0].out + offset : incoming[rank].data();
        moves.recv(group.transport, group.members[rank], call.tag, span(into, block[rank]));
      }
      offset += block[rank];
    }
    for (size_t step = 1; step < size && block[me] > 0; ++step)
      moves.send(group.transport, group.members[(me + step) % size], call.tag,
                 view(mine, block[me]));
    last = co_await moves.finished();
    if (!last.ok()) continue;
    read.assign(size, 0);
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::byte* to = tensors[i].out;
      for (size_t rank = 0; rank < size; ++rank) {
        const int64_t bytes = bytes_of(i, rank);
        if (rank == me && to != tensors[i].in) copy_bytes(to, tensors[i].in, bytes);
        if (rank != me && !single) copy_bytes(to, incoming[rank].data() + read[rank], bytes);
        read[rank] += bytes;
        to += bytes;
      }
    }
    last = co_await meeting.finished();
  }
}

Script broadcast(const Group& group, const CollectiveDesc& desc, std::span<const Part> tensors) {
  const Rank size = group.size();
  int64_t total = 0;
  for (const int64_t bytes : desc.counts) total += bytes;
  const bool is_root = group.rank == desc.root;
  const bool single = tensors.size() == 1;
  std::vector<std::byte> staging(single ? 0 : static_cast<size_t>(total));
  // The chain: what the left neighbour sent goes on to the right one, segment by segment.
  const bool chain = total > kFlatBroadcastBytes;
  const int64_t segments = (total + kSegmentBytes - 1) / kSegmentBytes;
  const auto length = [&](int64_t segment) {
    return std::min(kSegmentBytes, total - segment * kSegmentBytes);
  };
  const Rank left = group.member((group.rank + size - 1) % size);
  const Rank right = group.member((group.rank + 1) % size);
  const bool is_last = (group.rank - desc.root + size) % size == size - 1;
  std::vector<Transfers> arrivals(chain && !is_root ? static_cast<size_t>(segments) : 0);
  for (Transfers& arrival : arrivals) arrival.reserve(1);
  Transfers moves(static_cast<size_t>(chain ? segments : size));
  Meeting meeting(group, desc.meets);

  for (Status last;;) {
    const Call call = co_await next_call(last);
    last = {};
    meeting.begin(call.tag);
    std::byte* data = single ? tensors[0].out : staging.data();
    const std::byte* source = single && is_root ? tensors[0].in : data;
    int64_t at = 0;
    for (size_t i = 0; i < tensors.size() && is_root && !single; ++i) {
      copy_bytes(data + at, tensors[i].in, desc.counts[i]);
      at += desc.counts[i];
    }
    if (total > 0 && !chain && is_root) {
      for (Rank step = 1; step < size; ++step)
        moves.send(group.transport, group.member((desc.root + step) % size), call.tag,
                   view(source, total));
    } else if (total > 0 && !chain) {
      moves.recv(group.transport, group.member(desc.root), call.tag, span(data, total));
    }
    for (size_t segment = 0; segment < arrivals.size(); ++segment) {
      const auto number = static_cast<int64_t>(segment);
      arrivals[segment].recv(group.transport, left, call.tag,
                             span(data + number * kSegmentBytes, length(number)));
    }
    for (int64_t segment = 0; chain && segment < segments; ++segment) {
      if (!is_root) last = co_await arrivals[static_cast<size_t>(segment)].finished();
      if (!last.ok()) break;
      if (!is_last)
        moves.send(group.transport, right, call.tag,
                   view(source + segment * kSegmentBytes, length(segment)));
    }
    if (last.ok()) last = co_await moves.finished();
    if (last.ok()) last = co_await meeting.finished();
    if (!last.ok()) continue;
    at = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (is_root && tensors[i].in != tensors[i].out)
        copy_bytes(tensors[i].out, tensors[i].in, desc.counts[i]);
      if (!is_root && !single) copy_bytes(tensors[i].out, data + at, desc.counts[i]);
      at += desc.counts[i];
    }
  }
}

Script alltoall(const Group& group, const CollectiveDesc& desc, std::span<const Part> tensors) {
  const auto size = static_cast<size_t>(group.size());
  const auto me = static_cast<size_t>(group.rank);
  std::vector<int64_t> send_begin(size + 1, 0);
  std::vector<int64_t> recv_begin(size + 1, 0);
  for (size_t rank = 0; rank < size; ++rank) {
    send_begin[rank + 1] = send_begin[rank] + desc.counts[me * size + rank];
    recv_begin[rank + 1] = recv_begin[rank] + desc.counts[rank * size + me];
  }
  const auto sent = [&](size_t rank) { return send_begin[rank + 1] - send_begin[rank]; };
  const auto received = [&](size_t rank) { return recv_begin[rank + 1] - recv_begin[rank]; };
  Transfers moves(2 * (size - 1));
  Meeting meeting(group, desc.meets && !meets_by_itself(desc, group.size()));

  for (Status last;;) {
    const Call call = co_await next_call(last);
    const std::byte* in = tensors[0].in;
    std::byte* out = tensors[0].out;
    meeting.begin(call.tag);
    for (size_t step = 1; step < size; ++step) {
      const size_t from = (me + size - step) % size;
      if (received(from) == 0) continue;
      moves.recv(group.transport, group.members[from], call.tag,
                 span(out + recv_begin[from], received(from)));
    }
    for (size_t step = 1; step < size; ++step) {
      const size_t to = (me + step) % size;
      if (sent(to) == 0) continue;
      moves.send(group.transport, group.members[to], call.tag, view(in + send_begin[to], sent(to)));
    }
    copy_bytes(out + recv_begin[me], in + send_begin[me], sent(me));
    last = co_await moves.finished();
    if (last.ok()) last = co_await meeting.finished();
  }
}

Script barrier(const Group& group, const CollectiveDesc&, std::span<const Part>) {
  Meeting meeting(group, true);
  for (Status last;;) {
    const Call call = co_await next_call(last);
    meeting.begin(call.tag);
    last = co_await meeting.finished();
  }
}

}  // namespace rueda::algorithms::direct
