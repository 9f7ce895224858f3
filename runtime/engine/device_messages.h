// DeviceMessages: sends and receives of GPU tensors between any two ranks of the job, outside of
// groups. They are matched by (peer, tag, space) as those of the host are, in the same order and
// with the same errors, and then go through an NCCL communicator of the two ranks, which is made
// with their first message (group_messages.h says how both give theirs to it in one order).
//
// Ownership: owns the pairs' communicators, borrows what its Shared points to.
// Threads:   who holds the progress lock.
// Failure:   failure(): of a GPU or NCCL; the job cannot go on.
// End:       who leaves waits for what has met its counterpart, and for the GPU (idle()). A peer
//            that has left has given everything to its GPU: this one's has kPatience for its part.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>

#include "runtime/engine/finisher.h"
#include "runtime/engine/group_devices.h"
#include "runtime/engine/group_messages.h"
#include "runtime/membership/membership.h"

namespace rueda::engine {

class DeviceMessages {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kPatience{2};

  DeviceMessages(transport::Transport* transport, const membership::Membership* membership,
                 std::shared_ptr<nccl::Machine> machine, Finisher* finisher);

  // A claimed send or receive of a GPU tensor.
  void start(Request* request);
  // What a peer tells of them.
  void hear(Rank peer, const wire::GroupWord& word) { messages_.hear(peer, word); }
  // It has left the job in order.
  void on_peer_left(Rank peer, Time now);
  // One round. True if anything moved.
  bool step(Time now);
  // When the next round is due though nobody rings.
  std::optional<Time> deadline() const;
  const Status& failure() const { return failure_; }
  bool idle() const { return devices_.idle() && !messages_.has_met(); }
  bool uses_gpu() const { return devices_.uses_gpu(); }
  void add_to(counters::Values* totals) const { devices_.add_to(totals); }
  // All end with this; no memory is touched any more.
  void fail(const Status& status);

 private:
  transport::Transport* transport_;
  const membership::Membership& membership_;
  Finisher* finisher_;
  GroupDevices devices_;
  GroupMessages messages_;
  std::map<Rank, Time> gone_;  // peers that have left, and until when the GPU may be at theirs
  Status failure_;
};

}  // namespace rueda::engine
