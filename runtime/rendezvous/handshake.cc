#include "runtime/rendezvous/handshake.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "collectives/base/check.h"
#include "runtime/rendezvous/little_endian.h"

namespace rueda::rendezvous {
namespace {

// The hello, byte by byte. Numbers are little-endian.
constexpr size_t kMagicAt = 0;    // u32
constexpr size_t kVersionAt = 4;  // u16
constexpr size_t kSizeAt = 6;     // u16: bytes of this hello
constexpr size_t kRoleAt = 8;     // u8, then three zero bytes
constexpr size_t kRankAt = 12;    // i32
constexpr size_t kEpochAt = 16;   // u64
constexpr size_t kNonceAt = 24;   // 32 random bytes
constexpr size_t kNonceBytes = 32;
static_assert(kNonceAt + kNonceBytes == kHelloBytes);

constexpr uint32_t kMagic = 0x48445552;  // "RUDH"
constexpr uint16_t kVersion = 1;
constexpr char kLabel[] = "rueda handshake 1";

static_assert(JobKey::kBytes == crypto_auth_hmacsha256_KEYBYTES);
static_assert(kProofBytes == crypto_auth_hmacsha256_BYTES);

HandshakeRole other(HandshakeRole role) {
  return role == HandshakeRole::kConnecting ? HandshakeRole::kAccepting
                                            : HandshakeRole::kConnecting;
}

const char* name_of(HandshakeRole role) {
  return role == HandshakeRole::kConnecting ? "connecting" : "accepting";
}

}  // namespace

Handshake::Handshake(HandshakeTerms terms, const JobKey& key)
    : terms_(std::move(terms)), key_(key) {
  RUEDA_CHECK(sodium_init() >= 0, "libsodium could not be initialised");
  write_hello();
}

void Handshake::write_hello() {
  store_little(kMagic, &my_hello_[kMagicAt]);
  store_little(kVersion, &my_hello_[kVersionAt]);
  store_little(static_cast<uint16_t>(kHelloBytes), &my_hello_[kSizeAt]);
  my_hello_[kRoleAt] = static_cast<uint8_t>(terms_.role);
  store_little(terms_.my_rank, &my_hello_[kRankAt]);
  store_little(terms_.epoch, &my_hello_[kEpochAt]);
  randombytes_buf(&my_hello_[kNonceAt], kNonceBytes);
  std::copy(my_hello_.begin(), my_hello_.end(), outbox_.begin());
  outbox_size_ = kHelloBytes;
}

ByteView Handshake::bytes_to_send() const {
  if (!status_.ok()) return {};
  return std::as_bytes(std::span(outbox_).subspan(sent_, outbox_size_ - sent_));
}

void Handshake::sent(size_t bytes) {
  RUEDA_CHECK(bytes <= outbox_size_ - sent_, "more was sent than there was");
  sent_ += bytes;
}

size_t Handshake::bytes_wanted() const {
  if (!status_.ok()) return 0;
  return received_ < kHelloBytes ? kHelloBytes - received_ : kHandshakeBytes - received_;
}

size_t Handshake::feed(ByteView bytes) {
  size_t taken = 0;
  // Twice at most: the end of the hello, then the beginning of the proof.
  while (taken < bytes.size() && bytes_wanted() > 0) {
    const size_t n = std::min(bytes_wanted(), bytes.size() - taken);
    uint8_t* to =
        received_ < kHelloBytes ? &peer_hello_[received_] : &peer_proof_[received_ - kHelloBytes];
    std::memcpy(to, bytes.data() + taken, n);
    taken += n;
    received_ += n;
    if (received_ == kHelloBytes) {
      Status hello = check_hello();
      if (!hello.ok()) {
        status_ = std::move(hello);
      } else if (terms_.role == HandshakeRole::kConnecting) {
        send_proof();
      }
    } else if (received_ == kHandshakeBytes) {
      const Proof expected = make_proof(other(terms_.role));
      if (sodium_memcmp(expected.data(), peer_proof_.data(), kProofBytes) != 0) {
        refuse("the proof is wrong: the other side does not hold this job's key");
      } else {
        proven_ = true;
        if (terms_.role == HandshakeRole::kAccepting) send_proof();
      }
    }
  }
  return taken;
}

void Handshake::feed_end() {
  if (!status_.ok() || proven_) return;
  if (received_ == 0) {
    status_ =
        unavailable(std::string("the other side closed the connection before the handshake "
                                "(it is gone, or refused us)"));
    return;
  }
  refuse("the other side closed the connection half-way (its key or epoch differs, or it is gone)");
}

bool Handshake::done() const { return status_.ok() && proven_ && sent_ == outbox_size_; }

Status Handshake::check_hello() {
  const auto wrong = [&](const std::string& why) {
    return Status(Code::kUnauthenticated, "handshake: " + why);
  };
  const uint8_t* hello = peer_hello_.data();
  if (load_little<uint32_t>(hello + kMagicAt) != kMagic) {
    return wrong("what connected here is not a rank of rueda (wrong first bytes)");
  }
  const auto version = load_little<uint16_t>(hello + kVersionAt);
  if (version != kVersion || load_little<uint16_t>(hello + kSizeAt) != kHelloBytes) {
    return wrong("the other side speaks version " + std::to_string(version) + ", this rank " +
                 std::to_string(kVersion) + "; install the same rueda everywhere");
  }
  const HandshakeRole expected_role = other(terms_.role);
  if (hello[kRoleAt] != static_cast<uint8_t>(expected_role) || hello[kRoleAt + 1] != 0 ||
      hello[kRoleAt + 2] != 0 || hello[kRoleAt + 3] != 0) {
    return wrong(std::string("the other side does not play the ") + name_of(expected_role) +
                 " part (our own bytes sent back?)");
  }
  if (sodium_memcmp(hello + kNonceAt, &my_hello_[kNonceAt], kNonceBytes) == 0) {
    return wrong("our own bytes were sent back");
  }
  const auto rank = load_little<Rank>(hello + kRankAt);
  if (rank < 0 || rank >= terms_.size || rank == terms_.my_rank) {
    return wrong("the other side claims to be rank " + std::to_string(rank) + "; this is rank " +
                 std::to_string(terms_.my_rank) + " of " + std::to_string(terms_.size));
  }
  if (terms_.peer && rank != *terms_.peer) {
    return wrong("rank " + std::to_string(*terms_.peer) + " was expected, but rank " +
                 std::to_string(rank) + " answers");
  }
  const auto epoch = load_little<uint64_t>(hello + kEpochAt);
  if (epoch != terms_.epoch) {
    return wrong("rank " + std::to_string(rank) + " is in epoch " + std::to_string(epoch) +
                 ", this rank in epoch " + std::to_string(terms_.epoch));
  }
  peer_rank_ = rank;
  return {};
}

Handshake::Proof Handshake::make_proof(HandshakeRole prover) const {
  const bool connecting = terms_.role == HandshakeRole::kConnecting;
  const Hello& connector = connecting ? my_hello_ : peer_hello_;
  const Hello& acceptor = connecting ? peer_hello_ : my_hello_;
  const auto role = static_cast<uint8_t>(prover);
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key_.bytes().data(), JobKey::kBytes);
  // Everything before the job id has a fixed size, so no two inputs read alike.
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const uint8_t*>(kLabel), sizeof(kLabel));
  crypto_auth_hmacsha256_update(&state, &role, 1);
  crypto_auth_hmacsha256_update(&state, connector.data(), connector.size());
  crypto_auth_hmacsha256_update(&state, acceptor.data(), acceptor.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const uint8_t*>(terms_.job_id.data()),
                                terms_.job_id.size());
  Proof proof;
  crypto_auth_hmacsha256_final(&state, proof.data());
  sodium_memzero(&state, sizeof(state));
  return proof;
}

void Handshake::send_proof() {
  const Proof proof = make_proof(terms_.role);
  std::copy(proof.begin(), proof.end(), outbox_.begin() + kHelloBytes);
  outbox_size_ = kHandshakeBytes;
}

void Handshake::refuse(std::string why) {
  const std::string who =
      peer_rank_ >= 0 ? "with (claimed) rank " + std::to_string(peer_rank_) + ": " : "";
  status_ = Status(Code::kUnauthenticated, "handshake " + who + std::move(why));
}

}  // namespace rueda::rendezvous
