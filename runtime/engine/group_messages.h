// Sends and receives in an ordered group: matched by peer and tag, in order, with those of no other
// group. The tag has the receiver's number of the group, which the sender knows from its hello:
// what is sent before waits for that.
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
// Ownership: borrows transport and finisher. Threads: who holds the progress lock.
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
#include "runtime/engine/request.h"

namespace rueda::engine {

class GroupMessages {
 public:
  static constexpr Rank kAnybody = -1;
  // What is said of messages to one member, or (kAnybody) to all others.
  using Tell =
      std::function<void(Rank to, wire::GroupWord::What what, uint32_t tag, uint64_t count)>;

  // me: this rank; number: its own of the group.
  GroupMessages(transport::Transport* transport, Finisher* finisher, Rank me, uint32_t number,
                Tell tell)
      : transport_(transport),
        finisher_(finisher),
        me_(me),
        number_(number),
        tell_(std::move(tell)) {}

  // theirs: the peer's number of the group, if it is known.
  void start(Request* request, std::optional<uint64_t> theirs);
  // A peer's number is known now.
  void begin_waiting(Rank peer, uint64_t theirs);
  // It has gone without.
  void fail_waiting(Rank peer, const Status& status);
  // kWants, kOffers or kHasEnough of a peer.
  void hear(Rank peer, const wire::GroupWord& word);
  // Nobody is left who could send: what has no sender yet ends with this.
  void fail_unmatched(const Status& status);
  // Ends what has ended. True if anything has.
  bool advance();
  bool empty() const { return messages_.empty(); }
  // All end with this; their memory is not touched any more.
  void fail(const Status& status);

 private:
  using Key = std::pair<Rank, uint32_t>;  // peer and tag
  struct Message {
    Request* request = nullptr;
    bool begun = false;
    transport::Transfer transfer;
  };
  static bool is_receive(const Message& message) {
    return message.request->announcement.kind == CollectiveKind::kRecv;
  }

  void begin(Message* message, Rank peer, uint64_t receiver);
  void send(Message* message, uint64_t theirs);
  void receive(Message* message, Rank peer);
  // Those of the tag, in their order, up to one that nobody has anything for.
  void match_receives(uint32_t tag);
  std::optional<Rank> sender_for(uint32_t tag);
  template <typename Which>
  void end_those(const Status& status, Which which);

  transport::Transport* transport_;
  Finisher* finisher_;
  const Rank me_;
  const uint32_t number_;
  const Tell tell_;
  std::list<Message> messages_;
  // Ever, by peer and tag.
  std::map<Key, uint64_t> sent_, received_;
  std::map<Key, uint64_t> offered_;  // what peers say that they have sent
  std::set<Key> wanted_;             // by peers
  std::set<uint32_t> asked_;         // tags that all others know to be wanted
};

}  // namespace rueda::engine
