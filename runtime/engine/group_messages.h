// Sends and receives in an ordered group, or of GPU tensors outside of groups (tags::kOfJob, whose
// tags have a space too): matched by peer and tag, in order, with those of no other group. The tag
// has the receiver's number of the group, which the sender knows from its hello: what is sent
// before waits for that.
//
// A receive from anybody asks first who has something:
//
//   receiver                              a member
//   receive(any, tag) --- wants tag --->  remembers it
//                     <--- offers n ----  n messages of the tag sent to the receiver until now, and
//                                         again with each further one
//   n is more than were received from there: a receive of that member's
//                     --- has enough -->  forgets it
//
// Receives of a tag behind one from anybody wait until it has its sender, so that messages are met
// in the order of receives, as in MPI. Other messages cost nothing of this but a count.
//
// GPU tensors are matched in the same way by a message of their size, and then go through NCCL, on
// a communicator of the two ranks. Both must give their messages to it in one order, which the
// lower rank says:
//
//   the receiver has met the sender's message      it is the lower rank: it begins, tells `meets`;
//                                                  the sender begins when it hears that
//                                                  else it tells `meets`; the sender begins and
//                                                  tells `goes`; it begins when it hears that
//
// Ownership: borrows transport, finisher and devices. Threads: who holds the progress lock.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "collectives/transport/transport.h"
#include "proto/messages.h"
#include "runtime/engine/finisher.h"
#include "runtime/engine/group_devices.h"
#include "runtime/engine/request.h"

namespace rueda::engine {

class GroupMessages {
 public:
  static constexpr Rank kAnybody = -1;
  // What is said of messages to one member, or (kAnybody) to all others; whose group it is is not
  // in it.
  using Tell = std::function<void(Rank to, wire::GroupWord word)>;

  // me: this rank; number: its own of the group.
  GroupMessages(transport::Transport* transport, Finisher* finisher, GroupDevices* devices, Rank me,
                uint32_t number, Tell tell)
      : transport_(transport),
        finisher_(finisher),
        devices_(*devices),
        me_(me),
        number_(number),
        tell_(std::move(tell)) {
    numbers_[me] = number;
  }

  // theirs: the peer's number of the group, if it is known.
  void start(Request* request, std::optional<uint64_t> theirs);
  // A peer's number is known now.
  void begin_waiting(Rank peer, uint64_t theirs);
  // It has gone without.
  void fail_waiting(Rank peer, const Status& status);
  // What it has told of messages.
  void hear(Rank peer, const wire::GroupWord& word);
  // Nobody is left who could send: what has no sender yet ends with this.
  void fail_unmatched(const Status& status);
  // It sends no word any more: what NCCL has yet to be given, and waits for one, ends with this.
  void fail_met(Rank peer, const Status& status);
  // Ends what has ended. True if anything has.
  bool advance();
  // Of a GPU or NCCL; then all ends.
  const Status& failure() const { return failure_; }
  bool empty() const { return messages_.empty(); }
  // A message of a GPU tensor has met its counterpart, and is not with the GPU yet.
  bool has_met() const;
  // All end with this; their memory is not touched any more.
  void fail(const Status& status);

 private:
  using Key = std::pair<Rank, uint64_t>;  // peer and tag, with its space
  struct Message {
    Request* request = nullptr;
    bool begun = false;
    Rank peer = kAnybody;  // once it has begun
    int64_t bytes = 0;     // of a GPU tensor: what goes through the transport in its place
    transport::Transfer transfer;
    // Of a GPU tensor.
    bool met = false;
    std::unique_ptr<Collective> copy;  // NCCL's; of a message to itself: the receive has it
    Message* sent = nullptr;           // that one's send
    nccl::StreamOrder order;
    std::optional<Status> outcome;
  };
  static bool is_receive(const Message& message) {
    return message.request->announcement.kind == CollectiveKind::kRecv;
  }
  static bool is_of_gpu(const Message& message) { return message.request->device >= 0; }
  static uint64_t tag_of(const Request& request) {
    return uint64_t{request.tag_space} << 32 | request.tag;
  }

  void tell(Rank to, wire::GroupWord::What what, uint64_t tag, uint64_t count = 0,
            const Status& refused = {});
  void begin(Message* message, Rank peer, uint64_t receiver);
  void send(Message* message, uint64_t theirs);
  void receive(Message* message, Rank peer);
  // Those of the tag, in their order, up to one that nobody has anything for.
  void match_receives(uint64_t tag);
  std::optional<Rank> sender_for(uint64_t tag);
  void end_those(const Status& status, const std::function<bool(const Message&)>& which);
  void finish(Message* message, const Status& status);

  // ---- group_messages_gpu.cc
  void hear_gpu(Rank peer, const wire::GroupWord& word);
  Message* first_unmet(CollectiveKind kind, Rank peer, uint64_t tag);
  bool advance_gpu(Message* message);
  bool meet(Message* receive);
  void go(Message* message);

  transport::Transport* transport_;
  Finisher* finisher_;
  GroupDevices& devices_;
  const Rank me_;
  const uint32_t number_;
  const Tell tell_;
  std::map<Rank, uint64_t> numbers_;  // of the group, each member's own; as far as known
  std::list<Message> messages_;
  Status failure_;
  // Ever, by peer and tag.
  std::map<Key, uint64_t> sent_, received_;
  std::map<Key, uint64_t> offered_;  // what peers say that they have sent
  std::set<Key> wanted_;             // by peers
  std::set<uint64_t> asked_;         // tags that all others know to be wanted
};

}  // namespace rueda::engine
