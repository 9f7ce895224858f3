// reducescatter over hosts: for each host a reduce-scatter among the local ranks, each of which
// stands for some of that host's ranks; then every sum goes to its owner.
#include <algorithm>
#include <vector>

#include "collectives/algorithms/hierarchy_call.h"
#include "collectives/desc/copy_bytes.h"

namespace rueda::algorithms {
namespace {

class Reducescatter final : public HierarchyCall {
 public:
  Reducescatter(Hierarchy* hierarchy, const CollectiveDesc& desc, std::span<const Part> tensors)
      : HierarchyCall(hierarchy, desc, tensors),
        bytes_(static_cast<int64_t>(size_of(desc.dtype))),
        toward_(map_.hosts()),
        arrivals_(map_.hosts()),
        sends_(static_cast<size_t>(group_.size())),
        inputs_(map_.hosts()) {
    begins_.push_back(0);
    for (const int64_t count : desc.counts) begins_.push_back(begins_.back() + count);
    mine_ = desc.counts[static_cast<size_t>(group_.rank)];
    arrived_.resize(map_.hosts() * static_cast<size_t>(mine_ * bytes_));
    for (size_t host = 0; host < map_.hosts(); ++host) prepare(host);
  }

  Status step(bool* moved, bool* done) override {
    RUEDA_RETURN_IF_ERROR(channel_failure());
    if (!begun_) {
      if (!h_.scatter_turns().is_at(call_)) return {};
      begun_ = *moved = true;
      begin_exchange();
      h_.scatter_turns().pass(call_);
    }
    for (size_t step = 1; step <= map_.hosts(); ++step) {
      const size_t host = (map_.host() + step) % map_.hosts();
      Toward& to = toward_[host];
      if (to.sent || (!alone() && !to.sums_of_locals->done())) continue;
      to.sent = *moved = true;
      if (host != map_.host()) send_sums(host, to);
    }
    if (!std::all_of(toward_.begin(), toward_.end(), [](const Toward& t) { return t.sent; }))
      return {};
    if (!combined_) {
      if (!arrivals_.ready()) return {};
      RUEDA_RETURN_IF_ERROR(arrivals_.take());
      combine();
      combined_ = *moved = true;
    }
    if (!sends_.ready()) return {};
    RUEDA_RETURN_IF_ERROR(sends_.take());
    *done = true;
    return {};
  }

 private:
  struct Toward {  // a host
    std::unique_ptr<shm::ChannelOp> sums_of_locals;
    int64_t total = 0;              // elements of its ranks
    std::vector<std::byte> packed;  // where its ranks' shards do not lie together
    std::vector<std::byte> sums;    // what this rank stands for, in rank order
    bool sent = false;
  };

  int64_t count_of(Rank member) const { return desc_.counts[static_cast<size_t>(member)]; }
  int64_t begin_of(Rank member) const { return begins_[static_cast<size_t>(member)]; }

  void prepare(size_t host) {
    Toward& to = toward_[host];
    const auto& members = map_.members(host);
    std::vector<int64_t> counts(map_.local_size(), 0);
    for (size_t i = 0; i < members.size(); ++i) {
      counts[map_.proxy(map_.host(), host, i)] += count_of(members[i]);
      to.total += count_of(members[i]);
    }
    to.sums.resize(static_cast<size_t>(counts[map_.local()] * bytes_));
    if (!map_.consecutive()) to.packed.resize(static_cast<size_t>(to.total * bytes_));
    CollectiveDesc desc;
    desc.kind = CollectiveKind::kReducescatter;
    desc.dtype = desc_.dtype;
    desc.op = desc_.op;
    desc.scaling.prescale = desc_.scaling.prescale;  // finished when the hosts are combined
    desc.counts = std::move(counts);
    to.sums_of_locals = channel_op(h_.scatter_channel(), std::move(desc));
  }

  void begin() override {
    begun_ = combined_ = false;
    for (Toward& to : toward_) to.sent = false;
    h_.gather_turns().pass(call_);
  }

  void begin_exchange() {
    const auto mine = static_cast<size_t>(mine_ * bytes_);
    for (size_t host = 0; host < map_.hosts() && mine > 0; ++host) {
      if (host == map_.host()) continue;
      const size_t proxy = map_.proxy(host, map_.host(), map_.local());
      arrivals_.recv(group_.transport, transport_rank(map_.members(host)[proxy]), tag_,
                     {arrived_.data() + host * mine, mine});
    }
    for (size_t step = 1; step <= map_.hosts(); ++step)
      reduce_toward((map_.host() + step) % map_.hosts(), step == 1);
  }

  void reduce_toward(size_t host, bool first) {
    Toward& to = toward_[host];
    const auto& members = map_.members(host);
    const std::byte* in = tensors_[0].in + begin_of(members[0]) * bytes_;
    if (!map_.consecutive()) {
      std::byte* packed = to.packed.data();
      for (const Rank member : members) {
        const int64_t bytes = count_of(member) * bytes_;
        copy_bytes(packed, tensors_[0].in + begin_of(member) * bytes_, bytes);
        packed += bytes;
      }
      in = to.packed.data();
    }
    if (alone()) {
      kernels::scaled_copy(desc_.dtype, in, to.sums.data(), static_cast<size_t>(to.total),
                           desc_.scaling.prescale);
      return;
    }
    to.sums_of_locals->tensors()[0].in = in;
    to.sums_of_locals->tensors()[0].out = to.sums.data();
    to.sums_of_locals->set_watched(first);
    to.sums_of_locals->start({});
  }

  void send_sums(size_t host, const Toward& to) {
    const auto& members = map_.members(host);
    const std::byte* from = to.sums.data();
    for (size_t i = 0; i < members.size(); ++i) {
      if (map_.proxy(map_.host(), host, i) != map_.local()) continue;
      const auto bytes = static_cast<size_t>(count_of(members[i]) * bytes_);
      if (bytes == 0) continue;
      sends_.send(group_.transport, transport_rank(members[i]), tag_, {from, bytes});
      from += bytes;
    }
  }

  void combine() {
    if (mine_ == 0) return;
    for (size_t host = 0; host < map_.hosts(); ++host) {
      inputs_[host] = host == map_.host()
                          ? toward_[host].sums.data()
                          : arrived_.data() + host * static_cast<size_t>(mine_ * bytes_);
    }
    kernels::reduce(desc_.dtype, desc_.op, inputs_, tensors_[0].out, static_cast<size_t>(mine_),
                    desc_.scaling.finish);
  }

  int64_t bytes_;
  std::vector<int64_t> begins_;
  int64_t mine_ = 0;
  bool begun_ = false;
  bool combined_ = false;
  std::vector<Toward> toward_;  // by host
  std::vector<std::byte> arrived_;
  Transfers arrivals_;
  Transfers sends_;
  std::vector<const std::byte*> inputs_;  // by host
};

}  // namespace

std::unique_ptr<HierarchyCall> hierarchical_reducescatter(Hierarchy* hierarchy,
                                                          const CollectiveDesc& desc,
                                                          std::span<const Part> tensors) {
  return std::make_unique<Reducescatter>(hierarchy, desc, tensors);
}

}  // namespace rueda::algorithms
