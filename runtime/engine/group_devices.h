// GroupDevices: the NCCL communicators of one ordered group on this rank (or of messages outside of
// groups), made when they are first needed:
//
//   of_all     of the members in the group's order: the collectives
//   pair       of this rank and one other, or of itself alone: messages. They concern nobody else,
//              and in one stream with collectives they would wait for what others have yet to call
//
// Ownership: owns them, borrows transport and membership. Threads: who holds the progress lock.
// Failure:   health(). End: abandon() aborts NCCL here; what was given to the GPU ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "collectives/nccl/device_communicator.h"
#include "runtime/membership/membership.h"
#include "runtime/observe/counters/counters.h"

namespace rueda::engine {

void add_registered(const nccl::Registrations::Totals& registered, counters::Values* totals);

class GroupDevices {
 public:
  GroupDevices(transport::Transport* transport, const membership::Membership* membership,
               std::shared_ptr<nccl::Machine> machine)
      : transport_(transport), membership_(membership), machine_(std::move(machine)) {}

  // number: the lowest member's of the group; each time the same.
  nccl::DeviceCommunicator* of_all(const std::vector<Rank>& members, uint32_t number);
  // number: the lower one's of the group. Ranks are in ascending order.
  nccl::DeviceCommunicator* pair(Rank peer, uint32_t number);

  // Of none of them is anything under way on the GPU.
  bool idle() const;
  bool uses_gpu() const;
  void add_to(counters::Values* totals) const;
  // An error of work that a GPU was given before.
  Status health() const;
  void abandon();
  // What the other has yet to give to its GPU never comes.
  // True: something was under way with it.
  bool abandon_pair(Rank peer);
  void abandon_all_members() {
    if (all_) all_->abandon();
  }

 private:
  using Made = std::unique_ptr<nccl::DeviceCommunicator>;
  Made make(std::vector<Rank> members, transport::Tag tag, bool packs) const;
  template <typename Function>
  void for_each(Function function) const;

  transport::Transport* transport_;
  const membership::Membership* membership_;
  const std::shared_ptr<nccl::Machine> machine_;
  Made all_;
  std::map<Rank, Made> pairs_;
};

}  // namespace rueda::engine
