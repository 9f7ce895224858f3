// Connection: a non-blocking, ordered, reliable stream of bytes to one peer. What differs between
// shm, tcp, mpi and inproc.
//
//   TagTransport                     Connection                        the peer's
//   ------------                     ----------                        ----------
//   progress():  read() until 0  <-- bytes that have come         <--  write()
//                write() until 0 --> as many as there is room for -->  read()
//                set_blocked()       room is to wake the sleeper: write() did not take all
//                flush()             once a round: the peer is woken, if it sleeps
//   sleep():     the doorbell's and the sockets' news
//   at the end:  finish()            no more writes               -->  read() fails after the rest
//                unwatch()           no more news of this one
//
// Threads: one, the transport's.
// Failure: an error from read or write means that the peer is gone; bytes that arrived before are
//          still read first.
// End:     the destructor closes the stream and touches nobody's memory.
#pragma once

#include <span>

#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::transport {

class Connection {
 public:
  virtual ~Connection() = default;
  // "shm", "tcp", "inproc": for counters and messages. Lives as long as the program.
  virtual const char* kind() const = 0;
  // Leaves the host: its frames carry checksums, and its peer is watched for signs of life.
  virtual bool crosses_hosts() const { return false; }
  // Takes a prefix of the pieces' bytes; returns its length, 0 when there is no room now.
  virtual Result<size_t> write(std::span<const ByteView> pieces) = 0;
  // Fills a prefix of `into`; 0 when nothing is there now. kUnavailable at the end of the stream.
  virtual Result<size_t> read(ByteSpan into) = 0;
  // Says whether the transport has bytes that did not fit, so that room wakes the sleeper.
  virtual void set_blocked(bool blocked) = 0;
  // Called once after a round of reads and writes: wakes a sleeping peer if needed.
  virtual void flush() = 0;
  // No more writes will come; what was written still arrives.
  virtual void finish() = 0;
  // All that was written lies on the peer's side, out of reach of what happens here. Until then the
  // stream's end may take it back: the kernel drops what it has not sent when a socket is closed
  // that still has something to read.
  virtual bool has_arrived() const { return true; }
  // Nothing will be read or written any more: the stream no longer wakes the sleeper, whatever
  // happens on it. (A closed socket stays readable for ever.)
  virtual void unwatch() = 0;
};

}  // namespace rueda::transport
