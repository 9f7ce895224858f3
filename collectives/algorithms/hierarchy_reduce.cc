// allreduce over hosts.
#include <algorithm>
#include <vector>

#include "collectives/algorithms/hierarchy_call.h"
#include "collectives/algorithms/host_exchange.h"
#include "collectives/base/rounding.h"
#include "collectives/desc/copy_bytes.h"

namespace rueda::algorithms {
namespace {

// Up to this one rank of a host leads everything: more messages would cost more than the bytes.
constexpr int64_t kOneLeaderBytes = 4 << 10;
// Of a chunk, for each slice: long enough that frames and round trips do not matter, short enough
// that the stages overlap.
constexpr int64_t kSliceBytes = 512 << 10;
constexpr int64_t kLeastSliceBytes = 32 << 10;
constexpr int64_t kUnderWay = 6;  // chunks

// How a vector is cut: chunks of `length` elements, each of them into slices, and these among the
// local ranks.
struct Cut {
  const HostMap& map;
  int64_t unit;
  int64_t total;
  int64_t length = 1;
  bool one_leader = false;

  Cut(const HostMap& host_map, const CollectiveDesc& desc, int64_t elements)
      : map(host_map), unit(shard_unit(desc.dtype)), total(elements) {
    const auto bytes = static_cast<int64_t>(size_of(desc.dtype));
    const auto slices = static_cast<int64_t>(map.slices());
    one_leader = total * bytes <= kOneLeaderBytes;
    // A sixteenth of the whole, within bounds; whole units, so that shards are.
    const int64_t least = slices * kLeastSliceBytes / bytes;
    const int64_t most = slices * kSliceBytes / bytes;
    length = round_up(std::clamp(total / 16, least, most), unit);
  }
  int64_t chunks() const { return (total + length - 1) / length; }
  int64_t count_of(int64_t chunk) const { return std::min(length, total - chunk * length); }
  int64_t slice_begin(int64_t count, size_t slice) const {
    if (one_leader) return slice == 0 ? 0 : count;
    return shard_begin(count, static_cast<Rank>(slice), static_cast<Rank>(map.slices()), unit);
  }
  // Of what the slices of a local rank have.
  int64_t local_begin(int64_t count, size_t local) const {
    return slice_begin(count, map.slices_begin(map.host(), local));
  }
  std::vector<int64_t> local_counts(int64_t count, int64_t scale) const {
    std::vector<int64_t> counts;
    for (size_t local = 0; local < map.local_size(); ++local)
      counts.push_back((local_begin(count, local + 1) - local_begin(count, local)) * scale);
    return counts;
  }
};

class Allreduce final : public HierarchyCall {
 public:
  Allreduce(Hierarchy* hierarchy, const CollectiveDesc& desc, std::span<const Part> tensors)
      : HierarchyCall(hierarchy, desc, tensors),
        list_(tensors),
        bytes_(static_cast<int64_t>(size_of(desc.dtype))),
        cut_(map_, desc, list_.total()),
        // A single tensor moves from and to its own memory, unless it would have to be scaled there
        // before all ranks have begun.
        straight_(tensors.size() == 1 && (!alone() || desc.scaling.prescale == 1.0)) {
    const int64_t chunks = cut_.chunks();
    const int64_t whole = cut_.count_of(0);
    for (int64_t i = 0; i < std::min(chunks, kUnderWay); ++i) prepare(&ring_[i], whole);
    if (chunks > 0 && cut_.count_of(chunks - 1) != whole)
      prepare(&short_, cut_.count_of(chunks - 1));
  }

  Status step(bool* moved, bool* done) override {
    RUEDA_RETURN_IF_ERROR(channel_failure());
    const int64_t chunks = cut_.chunks();
    while (scattered_ < chunks && scattered_ < finished_ + kUnderWay &&
           h_.scatter_turns().is_at(call_)) {
      reduce_scatter(scattered_);
      if (++scattered_ == chunks) h_.scatter_turns().pass(call_);
      *moved = true;
    }
    for (int64_t index = finished_; index < scattered_; ++index)
      RUEDA_RETURN_IF_ERROR(move_on(&chunk(index), moved));
    while (gathered_ < scattered_ && chunk(gathered_).stage == Stage::kCrossed &&
           h_.gather_turns().is_at(call_)) {
      allgather(&chunk(gathered_));
      if (++gathered_ == chunks) h_.gather_turns().pass(call_);
      *moved = true;
    }
    while (finished_ < gathered_ && (alone() || chunk(finished_).allgather->done())) {
      Chunk& c = chunk(finished_);
      if (!straight_) unpack(list_, desc_.dtype, c.begin, c.count, c.staging.data());
      ++finished_;
      *moved = true;
    }
    *done = finished_ == chunks;
    return {};
  }

 private:
  enum class Stage : uint8_t { kScattering, kCrossing, kCrossed };
  struct Chunk {
    Stage stage = Stage::kScattering;
    int64_t begin = 0;
    int64_t count = 0;
    std::unique_ptr<shm::ChannelOp> reduce_scatter;
    std::unique_ptr<shm::ChannelOp> allgather;
    std::vector<std::byte> staging;  // a batch: the chunk as one vector
    std::vector<std::byte> led;      // the slices that this rank leads
    std::vector<std::unique_ptr<HostExchange>> exchanges;
  };

  Chunk& chunk(int64_t index) {
    if (cut_.count_of(index) != cut_.count_of(0)) return short_;
    return ring_[index % kUnderWay];
  }

  void prepare(Chunk* c, int64_t count) {
    c->count = count;
    const int64_t mine =
        cut_.local_begin(count, map_.local() + 1) - cut_.local_begin(count, map_.local());
    if (!straight_) c->staging.resize(static_cast<size_t>(count * bytes_));
    if (!alone()) {
      c->led.resize(static_cast<size_t>(mine * bytes_));
      CollectiveDesc scatter;
      scatter.kind = CollectiveKind::kReducescatter;
      scatter.dtype = desc_.dtype;
      scatter.op = desc_.op;
      // Nothing is finished before the hosts are combined.
      scatter.scaling.prescale = straight_ ? desc_.scaling.prescale : 1.0;
      scatter.counts = cut_.local_counts(count, 1);
      c->reduce_scatter = channel_op(h_.scatter_channel(), std::move(scatter));
      CollectiveDesc gather;
      gather.kind = CollectiveKind::kAllgather;
      gather.counts = cut_.local_counts(count, bytes_);
      c->allgather = channel_op(h_.gather_channel(), std::move(gather));
    }
    const size_t end = map_.slices_begin(map_.host(), map_.local() + 1);
    for (size_t slice = map_.slices_begin(map_.host(), map_.local()); slice < end; ++slice) {
      HostExchange::Plan plan;
      plan.transport = group_.transport;
      for (size_t host = 0; host < map_.hosts(); ++host)
        plan.members.push_back(transport_rank(map_.leader(host, slice)));
      plan.host = map_.host();
      plan.dtype = desc_.dtype;
      plan.op = desc_.op;
      plan.finish = desc_.scaling.finish;
      plan.wire = h_.wire_of(desc_.dtype, desc_.op);
      const int64_t elements = cut_.slice_begin(count, slice + 1) - cut_.slice_begin(count, slice);
      plan.exchange =
          h_.exchange_of(elements * static_cast<int64_t>(size_of(plan.wire.value_or(desc_.dtype))));
      c->exchanges.push_back(std::make_unique<HostExchange>(std::move(plan), elements));
    }
  }

  void begin() override {
    list_.use(tensors_);
    scattered_ = gathered_ = finished_ = 0;
    if (cut_.chunks() > 0) return;
    h_.scatter_turns().pass(call_);
    h_.gather_turns().pass(call_);
  }

  // A chunk's place in the output, or before it is handed out to the batch's tensors.
  std::byte* result(Chunk* c) {
    return straight_ ? tensors_[0].out + c->begin * bytes_ : c->staging.data();
  }
  std::byte* slices(Chunk* c) { return alone() ? result(c) : c->led.data(); }

  void reduce_scatter(int64_t index) {
    Chunk& c = chunk(index);
    c.stage = Stage::kScattering;
    c.begin = index * cut_.length;
    post_exchanges(&c, index);
    if (!straight_)
      pack(list_, desc_.dtype, c.begin, c.count, desc_.scaling.prescale, c.staging.data());
    const std::byte* in = straight_ ? tensors_[0].in + c.begin * bytes_ : c.staging.data();
    if (alone()) {
      if (straight_) copy_bytes(result(&c), in, c.count * bytes_);
      return;
    }
    c.reduce_scatter->tensors()[0].in = in;
    c.reduce_scatter->tensors()[0].out = c.led.data();
    c.reduce_scatter->set_watched(index == 0);
    c.reduce_scatter->start({});
  }

  void post_exchanges(Chunk* c, int64_t index) {
    // | call | 8 bits: chunks that may be under way, slices |: matched in order beyond that.
    const auto lap = static_cast<uint64_t>(index % kUnderWay);
    const size_t first = map_.slices_begin(map_.host(), map_.local());
    for (size_t i = 0; i < c->exchanges.size(); ++i)
      c->exchanges[i]->post(tag_ + 2 * (lap + kUnderWay * ((first + i) % 16)));
  }

  void start_exchanges(Chunk* c) {
    const size_t first = map_.slices_begin(map_.host(), map_.local());
    const int64_t own = cut_.local_begin(c->count, map_.local());
    for (size_t i = 0; i < c->exchanges.size(); ++i)
      c->exchanges[i]->start(slices(c) + (cut_.slice_begin(c->count, first + i) - own) * bytes_);
  }

  Status move_on(Chunk* c, bool* moved) {
    if (c->stage == Stage::kScattering && (alone() || c->reduce_scatter->done())) {
      start_exchanges(c);
      c->stage = Stage::kCrossing;
      *moved = true;
    }
    if (c->stage != Stage::kCrossing) return {};
    bool all = true;
    for (auto& exchange : c->exchanges) {
      *moved |= exchange->step();
      all = all && exchange->done();
      if (exchange->done()) RUEDA_RETURN_IF_ERROR(exchange->status());
    }
    if (all) c->stage = Stage::kCrossed;
    return {};
  }

  void allgather(Chunk* c) {
    if (alone()) return;
    c->allgather->tensors()[0].in = c->led.data();
    c->allgather->tensors()[0].out = result(c);
    c->allgather->start({});
  }

  PartList list_;
  int64_t bytes_;
  Cut cut_;
  bool straight_;
  Chunk ring_[kUnderWay];
  Chunk short_;  // the last one, if it is shorter
  int64_t scattered_ = 0;
  int64_t gathered_ = 0;
  int64_t finished_ = 0;
};

}  // namespace

std::unique_ptr<HierarchyCall> hierarchical_allreduce(Hierarchy* hierarchy,
                                                      const CollectiveDesc& desc,
                                                      std::span<const Part> tensors) {
  return std::make_unique<Allreduce>(hierarchy, desc, tensors);
}

}  // namespace rueda::algorithms
