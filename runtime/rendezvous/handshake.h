// Handshake: two ends of a fresh stream prove to each other that they hold the job's key, before
// anything else is sent or parsed.
//
//   connecting                                   accepting
//     hello: magic, version, role, rank, ---->
//            epoch, nonce                 <----  hello
//     proof                               ---->  checks it, or closes
//     checks it, or closes                <----  proof
//
// proof = HMAC-SHA256(job key, label, prover's role, both hellos, job id). The nonces make a
// recorded exchange worthless, the roles make a reflected one worthless, and the hellos inside the
// proof bind rank and epoch: nobody on the way can change them. The accepting side proves nothing
// to somebody who has not proved himself. Cost: one and a half round trips, kHandshakeBytes each
// way.
//
// What it does not do: encrypt or protect what follows on the stream. A job's network is taken to
// deliver to the right socket; the key keeps strangers out who can connect but not rewrite packets.
//
// Pure: no sockets, no clock. Who drives it reads at most bytes_wanted() bytes (what follows is the
// next protocol's) and sets a deadline. shake_hands below does both for a blocking caller.
// Threads: one. Failure: status() is kUnauthenticated, says why, and stays; close the stream then.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/poll_until.h"

namespace rueda::rendezvous {

inline constexpr size_t kHelloBytes = 56;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kHandshakeBytes = kHelloBytes + kProofBytes;

enum class HandshakeRole : uint8_t { kConnecting = 1, kAccepting = 2 };

// What this side brings and expects. Both sides need the same epoch and job id.
struct HandshakeTerms {
  HandshakeRole role = HandshakeRole::kConnecting;
  Rank my_rank = 0;
  Rank size = 1;             // the peer's rank must be below it, and not ours
  std::optional<Rank> peer;  // who it must be; the accepting side usually does not know
  uint64_t epoch = 0;
  std::string job_id;  // or the purpose of the stream: what is made for one does not open another
};

class Handshake {
 public:
  Handshake(HandshakeTerms terms, const JobKey& key);

  // What to send next; empty when there is nothing (yet).
  ByteView bytes_to_send() const;
  void sent(size_t bytes);
  // How many bytes may be read from the stream now; 0 when none.
  size_t bytes_wanted() const;
  // Takes what was read, at most bytes_wanted() of it, and returns how many it took.
  size_t feed(ByteView bytes);
  // The stream ended before the handshake did.
  void feed_end();

  // The peer is proven and everything is sent: the stream is the caller's.
  bool done() const;
  const Status& status() const { return status_; }
  // Whom we talk to. Known once done().
  Rank peer_rank() const { return peer_rank_; }

 private:
  using Hello = std::array<uint8_t, kHelloBytes>;
  using Proof = std::array<uint8_t, kProofBytes>;

  void write_hello();
  Status check_hello();
  Proof make_proof(HandshakeRole prover) const;
  void send_proof();
  void refuse(std::string why);

  HandshakeTerms terms_;
  JobKey key_;
  Hello my_hello_{};
  Hello peer_hello_{};
  Proof peer_proof_{};
  size_t received_ = 0;  // of hello and proof together
  std::array<uint8_t, kHandshakeBytes> outbox_{};
  size_t outbox_size_ = 0;
  size_t sent_ = 0;
  bool proven_ = false;
  Rank peer_rank_ = -1;
  Status status_;
};

// Runs the handshake over `fd` (borrowed, blocking or not) and returns the peer's rank.
// kUnauthenticated as above, kUnavailable when the peer is gone before it said anything,
// kDeadlineExceeded, or what a look of patience says. Does not touch the descriptor's flags and
// reads no byte beyond the handshake.
Result<Rank> shake_hands(int fd, HandshakeTerms terms, const JobKey& key, const Patience& patience);

}  // namespace rueda::rendezvous
