// allreduce and reducescatter over hosts.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "collectives/algorithms/hierarchy_call.h"
#include "collectives/base/rounding.h"

namespace rueda::algorithms {
namespace {

// Up to this one rank of a host carries everything: more messages would cost more than the bytes.
constexpr int64_t kOneCarrierBytes = 4 << 10;
// Of a chunk, for each slice: long enough that frames and round trips do not matter, short enough
// that the stages overlap.
constexpr int64_t kSliceBytes = 512 << 10;
constexpr int64_t kLeastSliceBytes = 32 << 10;
constexpr size_t kUnderWay = 6;  // chunks

class Allreduce final : public HierarchyCall {
 public:
  Allreduce(Hierarchy* hierarchy, direct::Group group, uint64_t call, std::vector<Part> parts,
            DType dtype, ReduceOp op, const Scaling& scaling)
      : HierarchyCall(hierarchy, std::move(group), call),
        list_(parts),
        dtype_(dtype),
        op_(op),
        scaling_(scaling),
        bytes_(static_cast<int64_t>(size_of(dtype))) {
    const int64_t total = list_.total();
    const auto slices = static_cast<int64_t>(map_.slices());
    const int64_t unit = shard_unit(dtype);
    one_carrier_ = total * bytes_ <= kOneCarrierBytes;
    // A sixteenth of the whole, within bounds; whole units, so that shards are.
    const int64_t least = slices * kLeastSliceBytes / bytes_;
    const int64_t most = slices * kSliceBytes / bytes_;
    length_ = round_up(std::clamp(total / 16, least, most), unit);
    chunks_ = (total + length_ - 1) / length_;
    // A single tensor that needs no scaling moves from and to its own memory.
    straight_ = list_.parts().size() == 1;
    if (chunks_ == 0) {
      h_.down_turns().pass(call_);
      h_.up_turns().pass(call_);
    }
  }

  Status step(bool* moved, bool* done) override {
    RUEDA_RETURN_IF_ERROR(channel_failure());
    while (next_down_ < chunks_ && next_down_ < finished_ + static_cast<int64_t>(kUnderWay) &&
           h_.down_turns().is_at(call_)) {
      begin_down(next_down_);
      if (++next_down_ == chunks_) h_.down_turns().pass(call_);
      *moved = true;
    }
    for (int64_t index = finished_; index < next_down_; ++index)
      RUEDA_RETURN_IF_ERROR(move_on(&chunk(index), moved));
    while (next_up_ < next_down_ && chunk(next_up_).stage == Stage::kCrossed &&
           h_.up_turns().is_at(call_)) {
      begin_up(&chunk(next_up_));
      if (++next_up_ == chunks_) h_.up_turns().pass(call_);
      *moved = true;
    }
    while (finished_ < next_up_ && chunk(finished_).up.done) {
      Chunk& c = chunk(finished_);
      if (!straight_) unpack(list_, dtype_, c.begin, c.count, c.staging.data());
      ++finished_;
      *moved = true;
    }
    *done = finished_ == chunks_;
    return {};
  }

 private:
  enum class Stage : uint8_t { kDown, kCrossing, kCrossed, kUp };
  struct Chunk {
    Stage stage = Stage::kDown;
    int64_t begin = 0;
    int64_t count = 0;
    shm::Job down;
    shm::Job up;
    std::vector<std::byte> staging;  // a batch: the chunk as one vector
    std::vector<std::byte> carried;  // this rank's slices, unless they have a better place
    std::byte* slices = nullptr;     // where they are
    std::vector<std::unique_ptr<HostExchange>> exchanges;
  };

  Chunk& chunk(int64_t index) { return ring_[static_cast<size_t>(index) % kUnderWay]; }
  int64_t slice_begin(const Chunk& c, size_t slice) const {
    if (one_carrier_) return slice == 0 ? 0 : c.count;
    return shard_begin(c.count, static_cast<Rank>(slice), static_cast<Rank>(map_.slices()),
                       shard_unit(dtype_));
  }
  int64_t local_begin(const Chunk& c, size_t local) const {
    return slice_begin(c, map_.slices_begin(map_.host(), local));
  }

  void begin_down(int64_t index) {
    Chunk& c = chunk(index);
    c.stage = Stage::kDown;
    c.begin = index * length_;
    c.count = std::min(length_, list_.total() - c.begin);
    const int64_t mine = local_begin(c, map_.local() + 1) - local_begin(c, map_.local());
    if (!straight_) c.staging.resize(static_cast<size_t>(c.count * bytes_));
    if (!alone()) c.carried.resize(static_cast<size_t>(mine * bytes_));
    c.slices = alone() ? result(&c) : c.carried.data();
    post_exchanges(&c, index);
    Part part{straight_ ? list_.parts()[0].in + c.begin * bytes_ : c.staging.data(), c.slices, 0};
    double prescale = scaling_.prescale;
    if (!straight_) {
      pack(list_, dtype_, c.begin, c.count, prescale, c.staging.data());
      prescale = 1.0;
    }
    if (alone()) {
      if (part.in != part.out || prescale != 1.0)
        kernels::scaled_copy(dtype_, part.in, part.out, static_cast<size_t>(c.count), prescale);
      c.down.done = true;
      return;
    }
    c.down.kind = CollectiveKind::kReducescatter;
    c.down.dtype = dtype_;
    c.down.op = op_;
    c.down.scaling.prescale = prescale;  // nothing is finished before the hosts are combined
    c.down.parts = {part};
    c.down.counts = local_counts(c, 1);
    start(h_.down(), &c.down);
  }

  // A chunk's place in the output, or before it is handed out to the batch's tensors.
  std::byte* result(Chunk* c) {
    return straight_ ? list_.parts()[0].out + c->begin * bytes_ : c->staging.data();
  }

  std::vector<int64_t> local_counts(const Chunk& c, int64_t unit) const {
    std::vector<int64_t> counts;
    for (size_t local = 0; local < map_.local_size(); ++local)
      counts.push_back((local_begin(c, local + 1) - local_begin(c, local)) * unit);
    return counts;
  }

  void post_exchanges(Chunk* c, int64_t index) {
    c->exchanges.clear();
    const size_t end = map_.slices_begin(map_.host(), map_.local() + 1);
    for (size_t slice = map_.slices_begin(map_.host(), map_.local()); slice < end; ++slice) {
      HostExchange::Plan plan;
      plan.transport = group_.transport;
      for (size_t host = 0; host < map_.hosts(); ++host)
        plan.members.push_back(transport_rank(map_.carrier(host, slice)));
      plan.host = map_.host();
      // | call | 8 bits: chunks that may be under way, slices |: matched in order beyond that.
      const auto lap = static_cast<uint64_t>(index) % kUnderWay;
      plan.tag = group_.tag + 2 * (lap + kUnderWay * (slice % 16));
      plan.dtype = dtype_;
      plan.op = op_;
      plan.finish = scaling_.finish;
      plan.wire = h_.wire_of(dtype_, op_);
      const int64_t begin = slice_begin(*c, slice);
      const int64_t count = slice_begin(*c, slice + 1) - begin;
      std::byte* data = c->slices + (begin - local_begin(*c, map_.local())) * bytes_;
      plan.exchange =
          h_.exchange_of(count * static_cast<int64_t>(size_of(plan.wire.value_or(dtype_))));
      c->exchanges.push_back(std::make_unique<HostExchange>(std::move(plan), data, count));
      c->exchanges.back()->post();
    }
  }

  static Status move_on(Chunk* c, bool* moved) {
    if (c->stage == Stage::kDown && c->down.done) {
      for (auto& exchange : c->exchanges) exchange->start();
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

  void begin_up(Chunk* c) {
    c->stage = Stage::kUp;
    if (alone()) {
      c->up.done = true;
      return;
    }
    c->up.kind = CollectiveKind::kAllgather;
    c->up.parts = {{c->slices, result(c), 0}};
    c->up.counts = local_counts(*c, bytes_);
    start(h_.up(), &c->up);
  }

  PartList list_;
  DType dtype_;
  ReduceOp op_;
  Scaling scaling_;
  int64_t bytes_;
  bool one_carrier_ = false;
  bool straight_ = false;
  int64_t length_ = 1;  // of a chunk, elements
  int64_t chunks_ = 0;
  std::array<Chunk, kUnderWay> ring_;
  int64_t next_down_ = 0;
  int64_t next_up_ = 0;
  int64_t finished_ = 0;
};

// For each host a reduce-scatter among the local ranks, each of which stands for some of that
// host's ranks; then every sum goes to its owner.
class Reducescatter final : public HierarchyCall {
 public:
  Reducescatter(Hierarchy* hierarchy, direct::Group group, uint64_t call, const std::byte* in,
                std::byte* out, std::vector<int64_t> counts, DType dtype, ReduceOp op,
                const Scaling& scaling)
      : HierarchyCall(hierarchy, std::move(group), call),
        in_(in),
        out_(out),
        counts_(std::move(counts)),
        dtype_(dtype),
        op_(op),
        scaling_(scaling),
        bytes_(static_cast<int64_t>(size_of(dtype))),
        toward_(map_.hosts()) {
    begins_.push_back(0);
    for (const int64_t count : counts_) begins_.push_back(begins_.back() + count);
    mine_ = counts_[static_cast<size_t>(group_.rank)];
    h_.up_turns().pass(call_);
  }

  Status step(bool* moved, bool* done) override {
    RUEDA_RETURN_IF_ERROR(channel_failure());
    if (!begun_) {
      if (!h_.down_turns().is_at(call_)) return {};
      begun_ = *moved = true;
      begin();
      h_.down_turns().pass(call_);
    }
    for (size_t step = 1; step <= map_.hosts(); ++step) {
      const size_t host = (map_.host() + step) % map_.hosts();
      Toward& to = toward_[host];
      if (!to.job.done || to.sent) continue;
      to.sent = *moved = true;
      if (host != map_.host()) send_sums(host, to);
    }
    if (!std::all_of(toward_.begin(), toward_.end(), [](const Toward& t) { return t.sent; }))
      return {};
    if (!combined_) {
      auto arrivals = arrivals_.finished();
      if (!arrivals.ready()) return {};
      RUEDA_RETURN_IF_ERROR(arrivals.await_resume());
      combine();
      combined_ = *moved = true;
    }
    auto sends = sends_.finished();
    if (!sends.ready()) return {};
    RUEDA_RETURN_IF_ERROR(sends.await_resume());
    *done = true;
    return {};
  }

 private:
  struct Toward {  // a host
    shm::Job job;
    std::vector<std::byte> packed;  // where its ranks' shards do not lie together
    std::vector<std::byte> sums;    // what this rank stands for, in rank order
    bool sent = false;
  };

  void begin() {
    const auto mine = static_cast<size_t>(mine_ * bytes_);
    arrived_.resize(map_.hosts() * mine);
    for (size_t host = 0; host < map_.hosts() && mine > 0; ++host) {
      if (host == map_.host()) continue;
      const size_t proxy = map_.proxy(host, map_.host(), map_.local());
      arrivals_.add(group_.transport->recv(transport_rank(map_.members(host)[proxy]), group_.tag,
                                           {arrived_.data() + host * mine, mine}));
    }
    for (size_t step = 1; step <= map_.hosts(); ++step)
      reduce_toward((map_.host() + step) % map_.hosts());
  }

  void reduce_toward(size_t host) {
    Toward& to = toward_[host];
    const auto& members = map_.members(host);
    std::vector<int64_t> counts(map_.local_size(), 0);
    int64_t total = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      const int64_t count = counts_[static_cast<size_t>(members[i])];
      counts[map_.proxy(map_.host(), host, i)] += count;
      total += count;
    }
    const std::byte* in = in_ + begins_[static_cast<size_t>(members[0])] * bytes_;
    if (!map_.consecutive()) {
      to.packed.reserve(static_cast<size_t>(total * bytes_));
      for (const Rank member : members) {
        const std::byte* from = in_ + begins_[static_cast<size_t>(member)] * bytes_;
        to.packed.insert(to.packed.end(), from,
                         from + counts_[static_cast<size_t>(member)] * bytes_);
      }
      in = to.packed.data();
    }
    to.sums.resize(static_cast<size_t>(counts[map_.local()] * bytes_));
    if (alone()) {
      kernels::scaled_copy(dtype_, in, to.sums.data(), static_cast<size_t>(total),
                           scaling_.prescale);
      to.job.done = true;
      return;
    }
    to.job.kind = CollectiveKind::kReducescatter;
    to.job.dtype = dtype_;
    to.job.op = op_;
    to.job.scaling.prescale = scaling_.prescale;
    to.job.parts = {{in, to.sums.data(), 0}};
    to.job.counts = std::move(counts);
    start(h_.down(), &to.job);
  }

  void send_sums(size_t host, const Toward& to) {
    const auto& members = map_.members(host);
    const std::byte* from = to.sums.data();
    for (size_t i = 0; i < members.size(); ++i) {
      if (map_.proxy(map_.host(), host, i) != map_.local()) continue;
      const auto bytes = static_cast<size_t>(counts_[static_cast<size_t>(members[i])] * bytes_);
      if (bytes == 0) continue;
      sends_.add(group_.transport->send(transport_rank(members[i]), group_.tag, {from, bytes}));
      from += bytes;
    }
  }

  void combine() {
    if (mine_ == 0) return;
    std::vector<const std::byte*> inputs;
    for (size_t host = 0; host < map_.hosts(); ++host) {
      inputs.push_back(host == map_.host()
                           ? toward_[host].sums.data()
                           : arrived_.data() + host * static_cast<size_t>(mine_ * bytes_));
    }
    kernels::reduce(dtype_, op_, inputs, out_, static_cast<size_t>(mine_), scaling_.finish);
  }

  const std::byte* in_;
  std::byte* out_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> begins_;
  DType dtype_;
  ReduceOp op_;
  Scaling scaling_;
  int64_t bytes_;
  int64_t mine_ = 0;
  bool begun_ = false;
  bool combined_ = false;
  std::vector<Toward> toward_;  // by host
  std::vector<std::byte> arrived_;
  Transfers arrivals_;
  Transfers sends_;
};

}  // namespace

Task Hierarchy::allreduce(const direct::Group& group, std::vector<Part> parts, DType dtype,
                          ReduceOp op, const Scaling& scaling) {
  return drive_call(
      std::make_unique<Allreduce>(this, group, calls_++, std::move(parts), dtype, op, scaling));
}

Task Hierarchy::reducescatter(const direct::Group& group, const std::byte* in, std::byte* out,
                              std::vector<int64_t> counts, DType dtype, ReduceOp op,
                              const Scaling& scaling) {
  return drive_call(std::make_unique<Reducescatter>(this, group, calls_++, in, out,
                                                    std::move(counts), dtype, op, scaling));
}

}  // namespace rueda::algorithms
