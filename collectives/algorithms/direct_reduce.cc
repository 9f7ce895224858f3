// reduce-scatter and allreduce by direct exchange.
#include <algorithm>
#include <cstring>
#include <memory>

#include "collectives/algorithms/direct.h"

namespace rueda::algorithms::direct {
namespace {

constexpr size_t kSlots = 2;  // segments whose contributions are received at the same time

// The numbers of one rank's part in a reduce-scatter of `total` elements.
struct Shards {
  std::vector<int64_t> begin;  // size + 1, elements
  int64_t segment = 1;         // elements
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
  Contributions(const Group* group, const Shards* shards, int64_t element_bytes)
      : group_(group), shards_(shards), bytes_(element_bytes) {
    const int64_t longest =
        std::min(shards_->segment, shards_->begin[static_cast<size_t>(group_->rank) + 1] -
                                       shards_->begin[static_cast<size_t>(group_->rank)]);
    slot_bytes_ = static_cast<size_t>(longest * bytes_);
    memory_.resize(kSlots * static_cast<size_t>(group_->size()) * slot_bytes_);
  }
  void post(int64_t segment) {
    if (segment >= shards_->segments_of(group_->rank)) return;
    const int64_t count = shards_->segment_count(group_->rank, segment);
    for (Rank peer = 0; peer < group_->size(); ++peer) {
      if (peer == group_->rank) continue;
      waiting_[slot(segment)].add(
          group_->transport->recv(group_->members[static_cast<size_t>(peer)], group_->tag,
                                  span(at(segment, peer), 0, count, bytes_)));
    }
  }
  Transfers::Finished arrived(int64_t segment) { return waiting_[slot(segment)].finished(); }
  std::byte* at(int64_t segment, Rank peer) {
    return memory_.data() +
           (slot(segment) * static_cast<size_t>(group_->size()) + static_cast<size_t>(peer)) *
               slot_bytes_;
  }

 private:
  static size_t slot(int64_t segment) { return static_cast<size_t>(segment) % kSlots; }
  const Group* group_;
  const Shards* shards_;
  int64_t bytes_;
  size_t slot_bytes_ = 0;
  std::vector<std::byte> memory_;
  Transfers waiting_[kSlots];
};

void send_contributions(const Group& group, const Shards& shards, const std::byte* in,
                        int64_t bytes, Transfers* sends) {
  int64_t longest = 0;
  for (Rank peer = 0; peer < group.size(); ++peer)
    longest = std::max(longest, shards.segments_of(peer));
  // Segment by segment over all peers, each rank beginning with its right neighbour, so that no
  // owner is flooded.
  for (int64_t segment = 0; segment < longest; ++segment) {
    for (Rank step = 1; step < group.size(); ++step) {
      const Rank peer = (group.rank + step) % group.size();
      if (segment >= shards.segments_of(peer)) continue;
      sends->add(group.transport->send(group.members[static_cast<size_t>(peer)], group.tag,
                                       view(in, shards.segment_begin(peer, segment),
                                            shards.segment_count(peer, segment), bytes)));
    }
  }
}

std::vector<const std::byte*> in_rank_order(const Group& group, Contributions* contributions,
                                            int64_t segment, const std::byte* own) {
  std::vector<const std::byte*> inputs;
  for (Rank peer = 0; peer < group.size(); ++peer) {
    inputs.push_back(peer == group.rank ? own : contributions->at(segment, peer));
  }
  return inputs;
}

}  // namespace

Task reduce_scatter(Group group, const std::byte* in, std::byte* out, std::vector<int64_t> counts,
                    DType dtype, ReduceOp op, Scaling scaling) {
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  Shards shards;
  shards.begin.push_back(0);
  for (const int64_t count : counts) shards.begin.push_back(shards.begin.back() + count);
  shards.segment = kSegmentBytes / bytes;
  const int64_t total = shards.begin.back();

  std::vector<std::byte> scaled;
  if (scaling.prescale != 1.0) {
    scaled.resize(static_cast<size_t>(total * bytes));
    kernels::scaled_copy(dtype, in, scaled.data(), static_cast<size_t>(total), scaling.prescale);
    in = scaled.data();
  }
  Contributions contributions(&group, &shards, bytes);
  for (size_t ahead = 0; ahead < kSlots; ++ahead) contributions.post(static_cast<int64_t>(ahead));
  Transfers sends;
  send_contributions(group, shards, in, bytes, &sends);
  for (int64_t segment = 0; segment < shards.segments_of(group.rank); ++segment) {
    const Status arrived = co_await contributions.arrived(segment);
    RUEDA_CO_RETURN_IF_ERROR(arrived);
    const int64_t begin = shards.segment_begin(group.rank, segment);
    const auto inputs = in_rank_order(group, &contributions, segment, in + begin * bytes);
    kernels::reduce(dtype, op, inputs,
                    out + (begin - shards.begin[static_cast<size_t>(group.rank)]) * bytes,
                    static_cast<size_t>(shards.segment_count(group.rank, segment)), scaling.finish);
    contributions.post(segment + static_cast<int64_t>(kSlots));
  }
  const Status sent = co_await sends.finished();
  co_return sent;
}

Task allreduce(Group group, PartList list, DType dtype, ReduceOp op, Scaling scaling) {
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  const int64_t total = list.total();
  Shards shards;
  for (Rank rank = 0; rank <= group.size(); ++rank) {
    shards.begin.push_back(shard_begin(total, rank, group.size(), shard_unit(dtype)));
  }
  shards.segment = kSegmentBytes / bytes;

  // One tensor is sent from and received into its own memory; a batch goes through one staging
  // buffer.
  const bool single = list.parts().size() == 1;
  const std::byte* in = single ? list.parts()[0].in : nullptr;
  std::byte* result = single ? list.parts()[0].out : nullptr;
  std::vector<std::byte> staging;
  if (!single || scaling.prescale != 1.0) {
    staging.resize(static_cast<size_t>(total * bytes));
    pack(list, dtype, 0, total, scaling.prescale, staging.data());
    in = staging.data();
    if (!single) result = staging.data();
  }

  Contributions contributions(&group, &shards, bytes);
  for (size_t ahead = 0; ahead < kSlots; ++ahead) contributions.post(static_cast<int64_t>(ahead));
  Transfers moves;
  send_contributions(group, shards, in, bytes, &moves);
  // Results of the other shards. Where result and in are the same memory this is safe: an owner
  // answers a segment only after all contributions to it have left their senders.
  const transport::Tag result_tag = group.tag + 1;
  for (Rank owner = 0; owner < group.size(); ++owner) {
    if (owner == group.rank) continue;
    for (int64_t segment = 0; segment < shards.segments_of(owner); ++segment) {
      moves.add(group.transport->recv(group.members[static_cast<size_t>(owner)], result_tag,
                                      span(result, shards.segment_begin(owner, segment),
                                           shards.segment_count(owner, segment), bytes)));
    }
  }
  for (int64_t segment = 0; segment < shards.segments_of(group.rank); ++segment) {
    const Status arrived = co_await contributions.arrived(segment);
    RUEDA_CO_RETURN_IF_ERROR(arrived);
    const int64_t begin = shards.segment_begin(group.rank, segment);
    const int64_t count = shards.segment_count(group.rank, segment);
    const auto inputs = in_rank_order(group, &contributions, segment, in + begin * bytes);
    kernels::reduce(dtype, op, inputs, result + begin * bytes, static_cast<size_t>(count),
                    scaling.finish);
    contributions.post(segment + static_cast<int64_t>(kSlots));
    for (Rank step = 1; step < group.size(); ++step) {
      const Rank peer = (group.rank + step) % group.size();
      moves.add(group.transport->send(group.members[static_cast<size_t>(peer)], result_tag,
                                      view(result, begin, count, bytes)));
    }
  }
  const Status moved = co_await moves.finished();
  RUEDA_CO_RETURN_IF_ERROR(moved);
  if (!single) unpack(list, dtype, 0, total, result);
  co_return Status();
}

}  // namespace rueda::algorithms::direct
