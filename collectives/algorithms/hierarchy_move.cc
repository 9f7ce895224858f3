// allgather and broadcast over hosts.
#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "collectives/algorithms/hierarchy_call.h"
#include "collectives/desc/copy_bytes.h"

namespace rueda::algorithms {
namespace {

// Results lie host by host in `base`; where ranks are numbered like that, base is the result.
class Allgather final : public HierarchyCall {
 public:
  Allgather(Hierarchy* hierarchy, direct::Group group, uint64_t call, std::vector<GatherPart> parts)
      : HierarchyCall(hierarchy, std::move(group), call),
        parts_(std::move(parts)),
        blocks_(static_cast<size_t>(group_.size()), 0),
        begins_(static_cast<size_t>(group_.size()), 0),
        jobs_(map_.hosts()),
        arrivals_(map_.hosts()) {
    for (const GatherPart& part : parts_) {
      for (size_t rank = 0; rank < blocks_.size(); ++rank) blocks_[rank] += part.bytes[rank];
    }
    int64_t total = 0;
    for (size_t host = 0; host < map_.hosts(); ++host) {
      for (const Rank member : map_.members(host)) {
        begins_[static_cast<size_t>(member)] = total;
        total += blocks_[static_cast<size_t>(member)];
      }
    }
    const auto me = static_cast<size_t>(group_.rank);
    straight_ = parts_.size() == 1 && map_.consecutive();
    own_ = parts_.size() == 1 ? parts_[0].in : nullptr;
    if (!straight_) memory_.resize(static_cast<size_t>(total));
    base_ = straight_ ? parts_[0].out : memory_.data();
    if (parts_.size() != 1) {
      for (const GatherPart& part : parts_)
        joined_.insert(joined_.end(), part.in, part.in + part.bytes[me]);
      own_ = joined_.data();
    }
    h_.down_turns().pass(call_);
  }

  Status step(bool* moved, bool* done) override {
    RUEDA_RETURN_IF_ERROR(channel_failure());
    if (!begun_) {
      begun_ = *moved = true;
      exchange();
    }
    // The hosts' blocks in a fixed order: the own ones first.
    while (next_ < map_.hosts() && h_.up_turns().is_at(call_)) {
      const size_t host = (map_.host() + next_) % map_.hosts();
      auto arrivals = arrivals_[host].finished();
      if (!arrivals.ready()) break;
      RUEDA_RETURN_IF_ERROR(arrivals.await_resume());
      gather(host);
      *moved = true;
      if (++next_ == map_.hosts()) h_.up_turns().pass(call_);
    }
    if (next_ < map_.hosts()) return {};
    if (!std::all_of(jobs_.begin(), jobs_.end(), [](const shm::Job& job) { return job.done; }))
      return {};
    auto sends = sends_.finished();
    if (!sends.ready()) return {};
    RUEDA_RETURN_IF_ERROR(sends.await_resume());
    if (!straight_) hand_out();
    *done = true;
    return {};
  }

 private:
  void exchange() {
    const auto me = static_cast<size_t>(group_.rank);
    for (size_t step = 1; step < map_.hosts(); ++step) {
      const size_t from = (map_.host() + map_.hosts() - step) % map_.hosts();
      const auto& members = map_.members(from);
      for (size_t i = 0; i < members.size(); ++i) {
        const auto member = static_cast<size_t>(members[i]);
        if (map_.proxy(map_.host(), from, i) != map_.local() || blocks_[member] == 0) continue;
        arrivals_[from].add(group_.transport->recv(
            transport_rank(members[i]), group_.tag,
            {base_ + begins_[member], static_cast<size_t>(blocks_[member])}));
      }
    }
    for (size_t step = 1; step < map_.hosts() && blocks_[me] > 0; ++step) {
      const size_t to = (map_.host() + step) % map_.hosts();
      const size_t proxy = map_.proxy(to, map_.host(), map_.local());
      sends_.add(group_.transport->send(transport_rank(map_.members(to)[proxy]), group_.tag,
                                        {own_, static_cast<size_t>(blocks_[me])}));
    }
  }

  // What the local ranks have of a host, to all of them.
  void gather(size_t host) {
    shm::Job& job = jobs_[host];
    const auto& members = map_.members(host);
    std::byte* out = base_ + begins_[static_cast<size_t>(members[0])];
    const bool own = host == map_.host();
    if (alone()) {
      if (own) copy_bytes(out, own_, blocks_[static_cast<size_t>(group_.rank)]);
      job.done = true;
      return;
    }
    job.kind = CollectiveKind::kAllgather;
    job.counts.assign(map_.local_size(), 0);
    const std::byte* in = own ? own_ : nullptr;
    for (size_t i = 0; i < members.size(); ++i) {
      const size_t proxy = map_.proxy(map_.host(), host, i);
      if (!own && proxy == map_.local() && in == nullptr)
        in = base_ + begins_[static_cast<size_t>(members[i])];
      job.counts[proxy] += blocks_[static_cast<size_t>(members[i])];
    }
    job.parts = {{in, out, 0}};
    start(h_.up(), &job);
  }

  void hand_out() {
    std::vector<int64_t> read(blocks_.size(), 0);
    for (const GatherPart& part : parts_) {
      std::byte* to = part.out;
      for (size_t rank = 0; rank < blocks_.size(); ++rank) {
        copy_bytes(to, base_ + begins_[rank] + read[rank], part.bytes[rank]);
        read[rank] += part.bytes[rank];
        to += part.bytes[rank];
      }
    }
  }

  std::vector<GatherPart> parts_;
  std::vector<int64_t> blocks_;  // by rank, of all parts
  std::vector<int64_t> begins_;  // of the blocks in base
  bool straight_ = false;
  bool begun_ = false;
  const std::byte* own_ = nullptr;
  std::byte* base_ = nullptr;
  std::vector<std::byte> memory_;
  std::vector<std::byte> joined_;
  size_t next_ = 0;
  std::deque<shm::Job> jobs_;  // by host
  std::vector<Transfers> arrivals_;
  Transfers sends_;
};

class Broadcast final : public HierarchyCall {
 public:
  static constexpr int64_t kChunkBytes = 1 << 20;

  Broadcast(Hierarchy* hierarchy, direct::Group group, uint64_t call, Rank root,
            std::vector<BroadcastPart> parts)
      : HierarchyCall(hierarchy, std::move(group), call), root_(root), parts_(std::move(parts)) {
    for (const auto& part : parts_) total_ += part.bytes;
    is_root_ = group_.rank == root_;
    find_chain();
    if (parts_.size() == 1) {
      data_ = parts_[0].out;
      source_ = is_root_ ? parts_[0].in : parts_[0].out;
    } else {
      memory_.reserve(static_cast<size_t>(total_));
      for (const auto& part : parts_) {
        if (is_root_) memory_.insert(memory_.end(), part.in, part.in + part.bytes);
      }
      memory_.resize(static_cast<size_t>(total_));
      source_ = data_ = memory_.data();
    }
    chunks_ = (total_ + kChunkBytes - 1) / kChunkBytes;
    jobs_.resize(static_cast<size_t>(chunks_));
    arrivals_.resize(static_cast<size_t>(chunks_));
    h_.down_turns().pass(call_);
    if (chunks_ == 0) h_.up_turns().pass(call_);
  }

  Status step(bool* moved, bool* done) override {
    RUEDA_RETURN_IF_ERROR(channel_failure());
    if (!begun_) {
      begun_ = *moved = true;
      for (int64_t i = 0; i < chunks_ && left_; ++i) {
        arrivals_[static_cast<size_t>(i)].add(
            group_.transport->recv(*left_, group_.tag, {data_ + i * kChunkBytes, length(i)}));
      }
    }
    // On along the chain, in order.
    while (passed_ < chunks_) {
      auto arrived = arrivals_[static_cast<size_t>(passed_)].finished();
      if (!arrived.ready()) break;
      RUEDA_RETURN_IF_ERROR(arrived.await_resume());
      if (right_) {
        sends_.add(group_.transport->send(*right_, group_.tag,
                                          {source_ + passed_ * kChunkBytes, length(passed_)}));
      }
      ++passed_;
      *moved = true;
    }
    while (told_ < passed_ && h_.up_turns().is_at(call_)) {
      tell(told_);
      if (++told_ == chunks_) h_.up_turns().pass(call_);
      *moved = true;
    }
    if (told_ < chunks_) return {};
    if (!std::all_of(jobs_.begin(), jobs_.end(), [](const shm::Job& job) { return job.done; }))
      return {};
    auto sends = sends_.finished();
    if (!sends.ready()) return {};
    RUEDA_RETURN_IF_ERROR(sends.await_resume());
    hand_out();
    *done = true;
    return {};
  }

 private:
  size_t length(int64_t chunk) const {
    return static_cast<size_t>(std::min(kChunkBytes, total_ - chunk * kChunkBytes));
  }

  // root -> a rank of the next host -> ... ; who stands for a host tells the others there.
  void find_chain() {
    size_t root_host = 0;
    size_t root_local = 0;
    for (size_t host = 0; host < map_.hosts(); ++host) {
      for (size_t i = 0; i < map_.members(host).size(); ++i) {
        if (map_.members(host)[i] != root_) continue;
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

  void tell(int64_t chunk) {
    shm::Job& job = jobs_[static_cast<size_t>(chunk)];
    if (alone()) {
      job.done = true;
      return;
    }
    job.kind = CollectiveKind::kBroadcast;
    job.root = static_cast<Rank>(teller_);
    const std::byte* in = (is_root_ ? source_ : data_) + chunk * kChunkBytes;
    job.parts = {{in, data_ + chunk * kChunkBytes, static_cast<int64_t>(length(chunk))}};
    start(h_.up(), &job);
  }

  void hand_out() {
    int64_t at = 0;
    for (const auto& part : parts_) {
      copy_bytes(part.out, is_root_ ? part.in : data_ + at, part.bytes);
      at += part.bytes;
    }
  }

  Rank root_;
  std::vector<BroadcastPart> parts_;
  int64_t total_ = 0;
  bool is_root_ = false;
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
  std::deque<shm::Job> jobs_;
  std::vector<Transfers> arrivals_;
  Transfers sends_;
};

}  // namespace

Task Hierarchy::allgather(const direct::Group& group, std::vector<GatherPart> parts) {
  return drive_call(std::make_unique<Allgather>(this, group, calls_++, std::move(parts)));
}

Task Hierarchy::broadcast(const direct::Group& group, Rank root, std::vector<BroadcastPart> parts) {
  return drive_call(std::make_unique<Broadcast>(this, group, calls_++, root, std::move(parts)));
}

}  // namespace rueda::algorithms
