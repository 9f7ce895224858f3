// allgather and broadcast over hosts.
#include <algorithm>
#include <optional>
#include <vector>

#include "collectives/algorithms/hierarchy_call.h"
#include "collectives/desc/copy_bytes.h"

namespace rueda::algorithms {
namespace {

// Results lie host by host in `base`; where ranks are numbered like that, base is the result.
class Allgather final : public HierarchyCall {
 public:
  Allgather(Hierarchy* hierarchy, const CollectiveDesc& desc, std::span<const Part> tensors)
      : HierarchyCall(hierarchy, desc, tensors),
        blocks_(static_cast<size_t>(group_.size()), 0),
        begins_(blocks_.size(), 0),
        read_(blocks_.size(), 0),
        arrivals_(map_.hosts()),
        sends_(map_.hosts()) {
    for (size_t i = 0; i < desc.counts.size(); ++i) blocks_[i % blocks_.size()] += desc.counts[i];
    int64_t total = 0;
    for (size_t host = 0; host < map_.hosts(); ++host) {
      for (const Rank member : map_.members(host)) {
        begins_[static_cast<size_t>(member)] = total;
        total += blocks_[static_cast<size_t>(member)];
      }
      arrivals_[host].reserve(map_.members(host).size());
    }
    single_ = tensors.size() == 1;
    straight_ = single_ && map_.consecutive();
    if (!straight_) memory_.resize(static_cast<size_t>(total));
    if (!single_) joined_.resize(static_cast<size_t>(blocks_[static_cast<size_t>(group_.rank)]));
    for (size_t host = 0; host < map_.hosts(); ++host)
      gathers_.push_back(channel_op(h_.gather_channel(), gather_of(host)));
  }

  Status step(bool* moved, bool* done) override {
    RUEDA_RETURN_IF_ERROR(channel_failure());
    if (!begun_) {
      begun_ = *moved = true;
      exchange();
    }
    // The hosts' blocks in a fixed order: the own ones first.
    while (next_ < map_.hosts() && h_.gather_turns().is_at(call_)) {
      const size_t host = (map_.host() + next_) % map_.hosts();
      if (!arrivals_[host].ready()) break;
      RUEDA_RETURN_IF_ERROR(arrivals_[host].take());
      gather(host);
      *moved = true;
      if (++next_ == map_.hosts()) h_.gather_turns().pass(call_);
    }
    if (next_ < map_.hosts()) return {};
    if (!alone() &&
        !std::all_of(gathers_.begin(), gathers_.end(), [](const auto& g) { return g->done(); })) {
      return {};
    }
    if (!sends_.ready()) return {};
    RUEDA_RETURN_IF_ERROR(sends_.take());
    if (!straight_) hand_out();
    *done = true;
    return {};
  }

 private:
  size_t me() const { return static_cast<size_t>(group_.rank); }
  int64_t block_of(Rank member) const { return blocks_[static_cast<size_t>(member)]; }
  int64_t begin_of(Rank member) const { return begins_[static_cast<size_t>(member)]; }
  int64_t bytes_of(size_t tensor, size_t rank) const {
    return desc_.counts[tensor * blocks_.size() + rank];
  }

  void begin() override {
    begun_ = false;
    next_ = 0;
    base_ = straight_ ? tensors_[0].out : memory_.data();
    own_ = single_ ? tensors_[0].in : joined_.data();
    std::byte* joined = joined_.data();
    for (size_t i = 0; i < tensors_.size() && !single_; ++i) {
      copy_bytes(joined, tensors_[i].in, bytes_of(i, me()));
      joined += bytes_of(i, me());
    }
    h_.scatter_turns().pass(call_);
  }

  void exchange() {
    for (size_t step = 1; step < map_.hosts(); ++step) {
      const size_t from = (map_.host() + map_.hosts() - step) % map_.hosts();
      const auto& members = map_.members(from);
      for (size_t i = 0; i < members.size(); ++i) {
        const Rank member = members[i];
        if (map_.proxy(map_.host(), from, i) != map_.local() || block_of(member) == 0) continue;
        arrivals_[from].recv(group_.transport, transport_rank(member), tag_,
                             {base_ + begin_of(member), static_cast<size_t>(block_of(member))});
      }
    }
    for (size_t step = 1; step < map_.hosts() && blocks_[me()] > 0; ++step) {
      const size_t to = (map_.host() + step) % map_.hosts();
      const size_t proxy = map_.proxy(to, map_.host(), map_.local());
      sends_.send(group_.transport, transport_rank(map_.members(to)[proxy]), tag_,
                  {own_, static_cast<size_t>(blocks_[me()])});
    }
  }

  // What the local ranks have of a host, to all of them.
  CollectiveDesc gather_of(size_t host) const {
    CollectiveDesc desc;
    desc.kind = CollectiveKind::kAllgather;
    desc.counts.assign(map_.local_size(), 0);
    const auto& members = map_.members(host);
    for (size_t i = 0; i < members.size(); ++i)
      desc.counts[map_.proxy(map_.host(), host, i)] += block_of(members[i]);
    return desc;
  }

  void gather(size_t host) {
    const auto& members = map_.members(host);
    std::byte* out = base_ + begin_of(members[0]);
    const bool own = host == map_.host();
    if (alone()) {
      if (own) copy_bytes(out, own_, blocks_[me()]);
      return;
    }
    const std::byte* in = own ? own_ : nullptr;
    for (size_t i = 0; i < members.size() && in == nullptr; ++i) {
      if (map_.proxy(map_.host(), host, i) == map_.local()) in = base_ + begin_of(members[i]);
    }
    Part& part = gathers_[host]->tensors()[0];
    part.in = in;
    part.out = out;
    gathers_[host]->start({});
  }

  void hand_out() {
    std::fill(read_.begin(), read_.end(), 0);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      std::byte* to = tensors_[i].out;
      for (size_t rank = 0; rank < blocks_.size(); ++rank) {
        copy_bytes(to, base_ + begins_[rank] + read_[rank], bytes_of(i, rank));
        read_[rank] += bytes_of(i, rank);
        to += bytes_of(i, rank);
      }
    }
  }

  std::vector<int64_t> blocks_;  // by rank, of all tensors
  std::vector<int64_t> begins_;  // of the blocks in base
  std::vector<int64_t> read_;    // by rank
  bool single_ = true;
  bool straight_ = false;
  bool begun_ = false;
  const std::byte* own_ = nullptr;
  std::byte* base_ = nullptr;
  std::vector<std::byte> memory_;
  std::vector<std::byte> joined_;
  size_t next_ = 0;
  std::vector<std::unique_ptr<shm::ChannelOp>> gathers_;  // by host
  std::vector<Transfers> arrivals_;                       // by host
  Transfers sends_;
};

class Broadcast final : public HierarchyCall {
 public:
  static constexpr int64_t kChunkBytes = 1 << 20;
  static constexpr int64_t kUnderWay = 6;  // chunks

  Broadcast(Hierarchy* hierarchy, const CollectiveDesc& desc, std::span<const Part> tensors)
      : HierarchyCall(hierarchy, desc, tensors) {
    for (const int64_t bytes : desc.counts) total_ += bytes;
    is_root_ = group_.rank == desc.root;
    find_chain();
    single_ = tensors.size() == 1;
    if (!single_) memory_.resize(static_cast<size_t>(total_));
    chunks_ = (total_ + kChunkBytes - 1) / kChunkBytes;
    for (int64_t i = 0; i < std::min(chunks_, kUnderWay); ++i)
      ring_[i] = channel_op(h_.gather_channel(), broadcast_of(length(0)));
    if (chunks_ > 0 && length(chunks_ - 1) != length(0))
      short_ = channel_op(h_.gather_channel(), broadcast_of(length(chunks_ - 1)));
    arrivals_ = std::vector<Transfers>(left_ ? static_cast<size_t>(chunks_) : 0);
    for (Transfers& arrival : arrivals_) arrival.reserve(1);
    sends_.reserve(right_ ? static_cast<size_t>(chunks_) : 0);
  }

  Status step(bool* moved, bool* done) override {
    RUEDA_RETURN_IF_ERROR(channel_failure());
    if (!begun_) {
      begun_ = *moved = true;
      for (int64_t i = 0; i < chunks_ && left_; ++i)
        arrivals_[static_cast<size_t>(i)].recv(group_.transport, *left_, tag_, piece(data_, i));
    }
    // On along the chain, in order.
    while (passed_ < chunks_) {
      if (left_) {
        Transfers& arrival = arrivals_[static_cast<size_t>(passed_)];
        if (!arrival.ready()) break;
        RUEDA_RETURN_IF_ERROR(arrival.take());
      }
      if (right_) {
        sends_.send(group_.transport, *right_, tag_,
                    {source_ + passed_ * kChunkBytes, static_cast<size_t>(length(passed_))});
      }
      ++passed_;
      *moved = true;
    }
    while (told_ < passed_ && told_ < heard_ + kUnderWay && h_.gather_turns().is_at(call_)) {
      tell(told_);
      if (++told_ == chunks_) h_.gather_turns().pass(call_);
      *moved = true;
    }
    while (heard_ < told_ && (alone() || op(heard_)->done())) {
      ++heard_;
      *moved = true;
    }
    if (heard_ < chunks_ || !sends_.ready()) return {};
    RUEDA_RETURN_IF_ERROR(sends_.take());
    hand_out();
    *done = true;
    return {};
  }

 private:
  int64_t length(int64_t chunk) const {
    return std::min(kChunkBytes, total_ - chunk * kChunkBytes);
  }
  ByteSpan piece(std::byte* base, int64_t chunk) const {
    return {base + chunk * kChunkBytes, static_cast<size_t>(length(chunk))};
  }
  shm::ChannelOp* op(int64_t chunk) const {
    return length(chunk) == length(0) ? ring_[chunk % kUnderWay].get() : short_.get();
  }

  // root -> a rank of the next host -> ... ; who stands for a host tells the others there.
  void find_chain() {
    size_t root_host = 0;
    size_t root_local = 0;
    for (size_t host = 0; host < map_.hosts(); ++host) {
      for (size_t i = 0; i < map_.members(host).size(); ++i) {
        if (map_.members(host)[i] != desc_.root) continue;
        root_host = host;
        root_local = i;
      }
    }
    const auto speaker = [&](size_t host) {
      return host == root_host ? root_local : map_.proxy(host, root_host, root_local);
    };
    teller_ = speaker(map_.host());
    if (map_.local() != teller_) return;
    const size_t place = (map_.host() + map_.hosts() - root_host) % map_.hosts();
    const auto at = [&](size_t host) { return transport_rank(map_.members(host)[speaker(host)]); };
    if (place > 0) left_ = at((map_.host() + map_.hosts() - 1) % map_.hosts());
    if (place + 1 < map_.hosts()) right_ = at((map_.host() + 1) % map_.hosts());
  }

  CollectiveDesc broadcast_of(int64_t bytes) const {
    CollectiveDesc desc;
    desc.kind = CollectiveKind::kBroadcast;
    desc.root = static_cast<Rank>(teller_);
    desc.counts = {bytes};
    return desc;
  }

  void begin() override {
    begun_ = false;
    passed_ = told_ = heard_ = 0;
    data_ = single_ ? tensors_[0].out : memory_.data();
    source_ = single_ && is_root_ ? tensors_[0].in : data_;
    std::byte* to = memory_.data();
    for (size_t i = 0; i < tensors_.size() && is_root_ && !single_; ++i) {
      copy_bytes(to, tensors_[i].in, desc_.counts[i]);
      to += desc_.counts[i];
    }
    h_.scatter_turns().pass(call_);
    if (chunks_ == 0) h_.gather_turns().pass(call_);
  }

  void tell(int64_t chunk) {
    if (alone()) return;
    Part& part = op(chunk)->tensors()[0];
    part.in = source_ + chunk * kChunkBytes;
    part.out = data_ + chunk * kChunkBytes;
    op(chunk)->start({});
  }

  void hand_out() {
    const std::byte* from = data_;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      copy_bytes(tensors_[i].out, is_root_ ? tensors_[i].in : from, desc_.counts[i]);
      from += desc_.counts[i];
    }
  }

  int64_t total_ = 0;
  bool is_root_ = false;
  bool single_ = true;
  bool begun_ = false;
  size_t teller_ = 0;  // local rank who has it first
  std::optional<Rank> left_;
  std::optional<Rank> right_;
  std::byte* data_ = nullptr;
  const std::byte* source_ = nullptr;
  std::vector<std::byte> memory_;
  int64_t chunks_ = 0;
  int64_t passed_ = 0;
  int64_t told_ = 0;
  int64_t heard_ = 0;
  std::unique_ptr<shm::ChannelOp> ring_[kUnderWay];
  std::unique_ptr<shm::ChannelOp> short_;  // the last one, if it is shorter
  std::vector<Transfers> arrivals_;
  Transfers sends_;
};

}  // namespace

std::unique_ptr<HierarchyCall> hierarchical_allgather(Hierarchy* hierarchy,
                                                      const CollectiveDesc& desc,
                                                      std::span<const Part> tensors) {
  return std::make_unique<Allgather>(hierarchy, desc, tensors);
}

std::unique_ptr<HierarchyCall> hierarchical_broadcast(Hierarchy* hierarchy,
                                                      const CollectiveDesc& desc,
                                                      std::span<const Part> tensors) {
  return std::make_unique<Broadcast>(hierarchy, desc, tensors);
}

}  // namespace rueda::algorithms
