// Transport: moves messages between the ranks of one job, in order for each (peer, tag).
//
// Messages are matched by (peer, tag): the n-th send of a tag meets the n-th recv of that tag, and
// both must name the same size and meta. On tags with kRendezvousTag both end with
// kFailedPrecondition where they do not, and the connection stays usable. On other tags sizes were
// agreed beforehand: a difference fails the receiver at least and may give up the peer (kDataLoss).
// Control messages go to one handler instead.
//
// Ownership: borrows each span until its Transfer is done, also when it fails.
// Threads:   one thread, which also drives it by progress(). Nothing happens between calls.
// Failure:   once a peer is lost its transfers end with kUnavailable naming the rank, and
// on_peer_end is told. End:       close() ends every transfer; after it, and after the destructor,
// no caller memory is touched.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::transport {

using Tag = uint64_t;
// Messages of tags with this bit wait for their receiver whatever their size: for point-to-point
// calls of users, whose two sides may disagree and may never meet.
inline constexpr Tag kRendezvousTag = Tag{1} << 63;

// One send or receive under way.
struct Transfer {
  bool done = false;
  Status status;  // meaningful when done
};
using TransferPtr = std::shared_ptr<Transfer>;  // shared by the caller and the queue it waits in

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

  virtual TransferPtr send(Rank peer, Tag tag, ByteView bytes, uint16_t meta = 0) = 0;
  virtual TransferPtr recv(Rank peer, Tag tag, ByteSpan bytes, uint16_t meta = 0) = 0;
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

}  // namespace rueda::transport
