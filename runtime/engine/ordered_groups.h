// OrderedGroups: all ordered groups of a rank, from their opening to their end.
//
//   user's thread --queue--> take --+--> OrderedGroup: open, calls, close
//   control messages --> on_control +
//
// A group is opened by its members alone: each takes channels of its own arena and says hello. The
// n-th hello of a member with some key and list belongs to the n-th group opened here with these,
// since both sides tell them in their order. What comes before the group is open here waits.
//
// Ownership: owns the groups, borrows what they share. Threads: who holds the progress lock.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/engine/ordered_group.h"

namespace rueda::engine {

class OrderedGroups {
 public:
  using Time = OrderedGroup::Time;
  explicit OrderedGroups(const OrderedGroup::Shared& shared);
  ~OrderedGroups();

  // A call, or a change of a group.
  void take(Request* request, Time now);
  // A GroupWord.
  Status on_control(Rank peer, std::string_view message);
  void on_peer_left(Rank peer);

  // One round. True if anything moved.
  bool step(Time now);
  // When the next round is due though nobody rings.
  std::optional<Time> deadline() const;
  // The part of it that moves calls.
  bool advance();
  bool busy() const;
  bool waits_for_channels() const;
  // Ok until a collective has failed: then everything ends with this.
  Status failure() const;

  void leave(const Status& status);
  bool have_left() const;
  void fail_messages(const Status& status);
  void break_down(const Status& verdict);
  bool uses_gpu() const;
  void add_to(counters::Values* totals) const;

 private:
  // Of a group that is not open here yet; a hello is the first of its sender's number.
  struct Early {
    Rank peer = 0;
    wire::GroupWord word;
  };

  void open(Request* request);
  int64_t reserve_channels(const std::vector<Rank>& ranks);
  void hear_hello(Rank peer, OrderedGroup* group, const wire::GroupWord& word);
  void hear_early(OrderedGroup* group);
  // True: they have opened the same key with different ranks.
  bool refuse_conflict(Rank peer, OrderedGroup* group, const wire::GroupWord& word);

  const OrderedGroup::Shared shared_;
  std::vector<std::unique_ptr<OrderedGroup>> groups_;  // in the order of their opening
  std::vector<bool> channels_taken_;                   // by group of channels
  std::vector<Early> early_;
  size_t early_bytes_ = 0;
  std::vector<Rank> left_;  // peers
  counters::Values past_;   // of groups that are no more
};

}  // namespace rueda::engine
