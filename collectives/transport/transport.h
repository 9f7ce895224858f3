// Transport: moves messages between the ranks of one job, in order for each (peer, tag).
//
// Messages are matched by (peer, tag): the n-th send of a tag meets the n-th recv of that tag, and
// both must name the same size and meta. On tags with kRendezvousTag both end with
// kFailedPrecondition (Facts::met) where they do not, and the connection stays usable. On other
// tags sizes were agreed beforehand: a difference fails the receiver at least and may give up the
// peer (kDataLoss).
// Control messages go to one handler instead.
//
// Ownership: borrows a Transfer and its span until the Transfer is done, also when it fails.
// Threads:   one thread, which also drives it by progress(). Nothing happens between calls.
// Failure:   once a peer is lost its transfers end with kUnavailable naming the rank, and
//            on_peer_end is told.
// Memory:    sends and receives that repeat allocate nothing; control messages and errors may.
// End:       close() ends every transfer; after it, and after the destructor, no caller memory is
//            touched.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/transport/intrusive_list.h"

namespace rueda::transport {

using Tag = uint64_t;
// Messages of tags with this bit wait for their receiver whatever their size: for point-to-point
// calls of users, whose two sides may disagree and may never meet.
inline constexpr Tag kRendezvousTag = Tag{1} << 63;

// In the meta of what is told in place of a GPU's memory.
inline constexpr uint16_t kGpuMeta = 0x8000;

class Transport;

// One send or receive of the caller's: a member of a persistent operation, an element of an array.
// Used again and again, each time after it is done. Ending one that is under way cancels it.
class Transfer : private Link {
 public:
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer();

  // At first it is, with status ok.
  bool done() const { return transport_ == nullptr; }
  // Meaningful when done.
  const Status& status() const { return status_; }

 private:
  // The rest is its transport's.
  friend class TagTransport;
  template <typename T>
  friend class List;

  //   send:  kWaiting --granted, or small--> kQueued --begins to leave--> kLeaving
  //   recv:  kPosted --its message begins to arrive--> kFilling
  enum class Stage : uint8_t { kWaiting, kQueued, kLeaving, kPosted, kFilling };

  Transport* transport_ = nullptr;  // until it is done
  Status status_;
  Tag tag_ = 0;
  std::byte* data_ = nullptr;  // send: what is in no frame yet; recv: the buffer, null: dropped
  uint64_t left_ = 0;          // send: bytes at data_
  uint64_t bytes_ = 0;         // of the message
  Rank peer_ = 0;
  uint16_t meta_ = 0;
  Stage stage_ = Stage::kWaiting;
  bool eager_ = false;   // needs no grant
  bool orphan_ = false;  // stands for one that was cancelled; the transport's own
};

// What the transport tells its owner. Called from progress(), never under a lock; may call back
// into the transport.
struct TransportEvents {
  std::function<void(Rank peer, std::string_view message)> on_control;
  // In order (goodbye said, status ok) or lost (status says why, the rank is named). Once per peer.
  std::function<void(Rank peer, const Status& status)> on_peer_end;
  // A peer gave up the epoch with this verdict.
  std::function<void(Rank peer, const Status& verdict)> on_abort;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual Rank rank() const = 0;
  virtual Rank size() const = 0;

  // The transfer must be done, and is done again when its bytes may be written (send), or read
  // (recv). It may be so at once.
  virtual void send(Transfer* transfer, Rank peer, Tag tag, ByteView bytes, uint16_t meta = 0) = 0;
  virtual void recv(Transfer* transfer, Rank peer, Tag tag, ByteSpan bytes, uint16_t meta = 0) = 0;
  // Ends a transfer at once with kCancelled, unless it is done. Its peer is not told:
  //
  //   send  nothing has left: as if it had never been made, the next of its tag has its turn.
  //         A part has left: the message arrives whole, from a copy of the rest.
  //   recv  its turn stays taken: the message that it would have met is read and dropped, whenever
  //         it comes.
  //
  // So whether a cancelled send is received is left to chance, and both sides should drop its tag.
  virtual void cancel(Transfer* transfer) = 0;
  // From now on messages with tags from `first` to `last` (both included) are dead, to and from
  // every peer. What is here of them is freed, what still arrives is read and dropped however late
  // it is, and transfers end with kCancelled, those under way and those to come. To be called on
  // each rank when it likes: a rank that has not done so yet only waits for what never comes.
  virtual void expire(Tag first, Tag last) = 0;
  // Makes room for messages of these sizes, from each peer, that come before they are asked for: as
  // long as no more do at once, nothing is allocated.
  virtual void reserve(std::span<const size_t> sizes) = 0;
  virtual void send_control(Rank peer, std::string message) = 0;

  virtual void set_events(TransportEvents events) = 0;
  // From here on peers on other hosts get and owe signs of life: one of whom nothing is heard for
  // this long is lost (a fifth of it: a warning). Zero: nobody is watched. Somebody must drive the
  // transport all the time.
  virtual Status watch_peers(std::chrono::nanoseconds dead_after) = 0;

  // Moves what can be moved now. True if anything moved.
  virtual bool progress() = 0;
  // Sleeps until there may be something to do, or for `timeout` (negative: without limit).
  void park(std::chrono::nanoseconds timeout) {
    sleep(timeout);
    wake_up();
  }
  // Its two halves. Another thread may drive the transport while the first sleeps; wake_up is part
  // of driving it.
  virtual void sleep(std::chrono::nanoseconds timeout) = 0;
  virtual void wake_up() = 0;

  // Says goodbye to every live peer; no sends after this. flushed(): everything written has left.
  virtual void say_goodbye() = 0;
  virtual bool flushed() const = 0;
  // Once flushed: closing cannot take back what a live peer has not received yet. No news wakes who
  // waits for it.
  virtual bool has_arrived() const = 0;
  // Ends every transfer with the verdict and tells it to every live peer, waiting a moment for full
  // connections (the one call that may wait; bounded). The transport is closed afterwards.
  // peers_know: they hear the verdict from elsewhere; nothing is sent, nothing is waited for.
  virtual void abort(const Status& verdict, bool peers_know = false) = 0;
  virtual void close(const Status& status) = 0;

  // Bytes of bodies sent over connections of this kind ("shm", "tcp", "inproc"), and control
  // messages sent.
  virtual uint64_t bytes_sent(std::string_view kind) const = 0;
  virtual uint64_t control_messages_sent() const = 0;
};

inline Transfer::~Transfer() {
  if (transport_ != nullptr) transport_->cancel(this);
}

}  // namespace rueda::transport
