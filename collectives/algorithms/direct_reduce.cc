// reduce-scatter and allreduce by direct exchange.
#include <algorithm>
#include <cstring>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/meeting.h"

namespace rueda::algorithms::direct {
namespace {

constexpr size_t kAhead = 2;  // segments whose contributions are received at the same time

// The numbers of one rank's part in a reduce-scatter.
struct Shards {
  std::vector<int64_t> begin;  // size + 1, elements
  int64_t segment = 1;         // elements

  int64_t total() const { return begin.back(); }
  int64_t segments_of(Rank rank) const {
    const auto r = static_cast<size_t>(rank);
    return (begin[r + 1] - begin[r] + segment - 1) / segment;
  }
  int64_t segment_begin(Rank rank, int64_t index) const {
    return begin[static_cast<size_t>(rank)] + index * segment;
  }
  int64_t segment_count(Rank rank, int64_t index) const {
    return std::min(segment, begin[static_cast<size_t>(rank) + 1] - segment_begin(rank, index));
  }
  // Of all ranks but one.
  size_t segments_of_others(Rank rank) const {
    int64_t sum = 0;
    for (Rank other = 0; other + 1 < static_cast<Rank>(begin.size()); ++other)
      sum += other == rank ? 0 : segments_of(other);
    return static_cast<size_t>(sum);
  }
};

ByteView view(const std::byte* base, int64_t element, int64_t count, int64_t bytes) {
  return {base + element * bytes, static_cast<size_t>(count * bytes)};
}
ByteSpan span(std::byte* base, int64_t element, int64_t count, int64_t bytes) {
  return {base + element * bytes, static_cast<size_t>(count * bytes)};
}

// Receives the peers' contributions to this rank's shard, segment by segment, two segments ahead.
class Contributions {
 public:
  Contributions(const Group& group, const Shards& shards, int64_t element_bytes)
      : group_(group),
        shards_(shards),
        bytes_(element_bytes),
        inputs_(static_cast<size_t>(group.size())) {
    const auto me = static_cast<size_t>(group.rank);
    const int64_t longest = std::min(shards.segment, shards.begin[me + 1] - shards.begin[me]);
    segment_bytes_ = static_cast<size_t>(longest * bytes_);
    memory_.resize(kAhead * inputs_.size() * segment_bytes_);
    for (Transfers& waiting : waiting_) waiting.reserve(inputs_.size());
  }
  void begin(transport::Tag tag) {
    tag_ = tag;
    for (size_t ahead = 0; ahead < kAhead; ++ahead) post(static_cast<int64_t>(ahead));
  }
  Transfers::Finished arrived(int64_t segment) { return waiting_[place(segment)].finished(); }
  // Everybody's, in rank order; then the next segment is received.
  void reduce(int64_t segment, const CollectiveDesc& desc, const std::byte* own, std::byte* out) {
    for (Rank peer = 0; peer < group_.size(); ++peer)
      inputs_[static_cast<size_t>(peer)] = peer == group_.rank ? own : at(segment, peer);
    kernels::reduce(desc.dtype, desc.op, inputs_, out,
                    static_cast<size_t>(shards_.segment_count(group_.rank, segment)),
                    desc.scaling.finish);
    post(segment + static_cast<int64_t>(kAhead));
  }

 private:
  void post(int64_t segment) {
    if (segment >= shards_.segments_of(group_.rank)) return;
    const int64_t count = shards_.segment_count(group_.rank, segment);
    for (Rank peer = 0; peer < group_.size(); ++peer) {
      if (peer == group_.rank) continue;
      waiting_[place(segment)].recv(group_.transport, group_.member(peer), tag_,
                                    span(at(segment, peer), 0, count, bytes_));
    }
  }
  std::byte* at(int64_t segment, Rank peer) {
    return memory_.data() +
           (place(segment) * inputs_.size() + static_cast<size_t>(peer)) * segment_bytes_;
  }
  static size_t place(int64_t segment) { return static_cast<size_t>(segment) % kAhead; }

  const Group& group_;
  const Shards& shards_;
  int64_t bytes_;
  transport::Tag tag_ = 0;
  size_t segment_bytes_ = 0;
  std::vector<std::byte> memory_;
  std::vector<const std::byte*> inputs_;  // by rank
  Transfers waiting_[kAhead];
};

void send_contributions(const Group& group, const Shards& shards, const std::byte* in,
                        int64_t bytes, transport::Tag tag, Transfers* sends) {
  int64_t longest = 0;
  for (Rank peer = 0; peer < group.size(); ++peer)
    longest = std::max(longest, shards.segments_of(peer));
  // Segment by segment over all peers, each rank beginning with its right neighbour, so that no
  // owner is flooded.
  for (int64_t segment = 0; segment < longest; ++segment) {
    for (Rank step = 1; step < group.size(); ++step) {
      const Rank peer = (group.rank + step) % group.size();
      if (segment >= shards.segments_of(peer)) continue;
      sends->send(group.transport, group.member(peer), tag,
                  view(in, shards.segment_begin(peer, segment), shards.segment_count(peer, segment),
                       bytes));
    }
  }
}

Shards shards_of(const CollectiveDesc& desc, Rank size, int64_t total) {
  Shards shards;
  shards.segment = kSegmentBytes / static_cast<int64_t>(size_of(desc.dtype));
  for (Rank rank = 0; rank <= size; ++rank)
    shards.begin.push_back(shard_begin(total, rank, size, shard_unit(desc.dtype)));
  return shards;
}

Shards shards_of(const CollectiveDesc& desc) {
  Shards shards;
  shards.segment = kSegmentBytes / static_cast<int64_t>(size_of(desc.dtype));
  shards.begin.push_back(0);
  for (const int64_t count : desc.counts) shards.begin.push_back(shards.begin.back() + count);
  return shards;
}

}  // namespace

Script reduce_scatter(const Group& group, const CollectiveDesc& desc,
                      std::span<const Part> tensors) {
  const auto bytes = static_cast<int64_t>(size_of(desc.dtype));
  const Shards shards = shards_of(desc);
  const int64_t own_begin = shards.begin[static_cast<size_t>(group.rank)];
  const bool scales = desc.scaling.prescale != 1.0;
  std::vector<std::byte> scaled(scales ? static_cast<size_t>(shards.total() * bytes) : 0);
  Contributions contributions(group, shards, bytes);
  Transfers sends(shards.segments_of_others(group.rank));
  Meeting meeting(group, desc.meets && !meets_by_itself(desc, group.size()));

  for (Status last;;) {
    const Call call = co_await next_call(last);
    last = {};
    meeting.begin(call.tag);
    const std::byte* in = tensors[0].in;
    if (scales) {
      kernels::scaled_copy(desc.dtype, in, scaled.data(), static_cast<size_t>(shards.total()),
                           desc.scaling.prescale);
      in = scaled.data();
    }
    contributions.begin(call.tag);
    send_contributions(group, shards, in, bytes, call.tag, &sends);
    for (int64_t segment = 0; segment < shards.segments_of(group.rank) && last.ok(); ++segment) {
      last = co_await contributions.arrived(segment);
      if (!last.ok()) break;
      const int64_t begin = shards.segment_begin(group.rank, segment);
      contributions.reduce(segment, desc, in + begin * bytes,
                           tensors[0].out + (begin - own_begin) * bytes);
    }
    if (last.ok()) last = co_await sends.finished();
    if (last.ok()) last = co_await meeting.finished();
  }
}

Script allreduce(const Group& group, const CollectiveDesc& desc, std::span<const Part> tensors) {
  const auto bytes = static_cast<int64_t>(size_of(desc.dtype));
  PartList list(tensors);
  const int64_t total = list.total();
  const Shards shards = shards_of(desc, group.size(), total);
  // One tensor is sent from and received into its own memory; a batch goes through one staging
  // buffer.
  const bool single = tensors.size() == 1;
  const bool stages = !single || desc.scaling.prescale != 1.0;
  std::vector<std::byte> staging(stages ? static_cast<size_t>(total * bytes) : 0);
  Contributions contributions(group, shards, bytes);
  const auto own_segments = static_cast<size_t>(shards.segments_of(group.rank));
  Transfers moves(2 * shards.segments_of_others(group.rank) +
                  own_segments * static_cast<size_t>(group.size() - 1));
  Meeting meeting(group, desc.meets && !meets_by_itself(desc, group.size()));

  for (Status last;;) {
    const Call call = co_await next_call(last);
    last = {};
    meeting.begin(call.tag);
    list.use(tensors);
    const std::byte* in = stages ? staging.data() : tensors[0].in;
    std::byte* result = single ? tensors[0].out : staging.data();
    if (stages) pack(list, desc.dtype, 0, total, desc.scaling.prescale, staging.data());
    contributions.begin(call.tag);
    send_contributions(group, shards, in, bytes, call.tag, &moves);
    // Results of the other shards. Where result and in are the same memory this is safe: an owner
    // answers a segment only after all contributions to it have left their senders.
    const transport::Tag result_tag = call.tag + 1;
    for (Rank owner = 0; owner < group.size(); ++owner) {
      if (owner == group.rank) continue;
      for (int64_t segment = 0; segment < shards.segments_of(owner); ++segment) {
        moves.recv(group.transport, group.member(owner), result_tag,
                   span(result, shards.segment_begin(owner, segment),
                        shards.segment_count(owner, segment), bytes));
      }
    }
    for (int64_t segment = 0; segment < shards.segments_of(group.rank) && last.ok(); ++segment) {
      last = co_await contributions.arrived(segment);
      if (!last.ok()) break;
      const int64_t begin = shards.segment_begin(group.rank, segment);
      const int64_t count = shards.segment_count(group.rank, segment);
      contributions.reduce(segment, desc, in + begin * bytes, result + begin * bytes);
      for (Rank step = 1; step < group.size(); ++step) {
        moves.send(group.transport, group.member((group.rank + step) % group.size()), result_tag,
                   view(result, begin, count, bytes));
      }
    }
    if (last.ok()) last = co_await moves.finished();
    if (last.ok() && !single) unpack(list, desc.dtype, 0, total, result);
    if (last.ok()) last = co_await meeting.finished();
  }
}

}  // namespace rueda::algorithms::direct
