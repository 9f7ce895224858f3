// The meeting over hosts: every rank has begun when every host's ranks have.
//
//   inside the host, all ranks --> one rank of each host, all to all --> inside the host, all ranks
//   (scatter channel)              (messages of no bytes)                (gather channel)
#include "collectives/algorithms/hierarchy_call.h"

namespace rueda::algorithms {
namespace {

class MeetingOverHosts final : public HierarchyCall {
 public:
  MeetingOverHosts(Hierarchy* hierarchy, const CollectiveDesc& desc, std::span<const Part> tensors)
      : HierarchyCall(hierarchy, desc, tensors),
        here_(channel_op(h_.scatter_channel(), barrier())),
        everywhere_(channel_op(h_.gather_channel(), barrier())),
        moves_(2 * (map_.hosts() - 1)) {}

  Status step(bool* moved, bool* done) override {
    RUEDA_RETURN_IF_ERROR(channel_failure());
    if (stage_ == Stage::kBegun && (alone() || h_.scatter_turns().is_at(call_))) {
      if (!alone()) here_->start({});
      h_.scatter_turns().pass(call_);
      stage_ = Stage::kHere;
      *moved = true;
    }
    if (stage_ == Stage::kHere && (alone() || here_->done())) {
      for (size_t step = 1; step < map_.hosts() && speaks(); ++step) {
        const size_t host = (map_.host() + step) % map_.hosts();
        const Rank peer = transport_rank(map_.members(host).front());
        moves_.recv(group_.transport, peer, tag_ + kTag, {});
        moves_.send(group_.transport, peer, tag_ + kTag, {});
      }
      stage_ = Stage::kCrossing;
      *moved = true;
    }
    if (stage_ == Stage::kCrossing && moves_.ready() &&
        (alone() || h_.gather_turns().is_at(call_))) {
      RUEDA_RETURN_IF_ERROR(moves_.take());
      if (!alone()) everywhere_->start({});
      h_.gather_turns().pass(call_);
      stage_ = Stage::kEverywhere;
      *moved = true;
    }
    *done = stage_ == Stage::kEverywhere && (alone() || everywhere_->done());
    return {};
  }

 private:
  static constexpr transport::Tag kTag = 255;  // within a call
  enum class Stage : uint8_t { kBegun, kHere, kCrossing, kEverywhere };

  static CollectiveDesc barrier() {
    CollectiveDesc desc;
    desc.kind = CollectiveKind::kBarrier;
    desc.tensors = 0;
    return desc;
  }
  bool speaks() const { return map_.local() == 0; }
  void begin() override { stage_ = Stage::kBegun; }

  std::unique_ptr<shm::ChannelOp> here_;
  std::unique_ptr<shm::ChannelOp> everywhere_;
  Transfers moves_;
  Stage stage_ = Stage::kBegun;
};

}  // namespace

std::unique_ptr<HierarchyCall> hierarchical_meeting(Hierarchy* hierarchy,
                                                    const CollectiveDesc& desc,
                                                    std::span<const Part> tensors) {
  return std::make_unique<MeetingOverHosts>(hierarchy, desc, tensors);
}

}  // namespace rueda::algorithms
