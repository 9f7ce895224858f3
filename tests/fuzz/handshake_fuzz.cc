// The handshake against somebody without the key, and against somebody on the way who changes
// bytes.
#include <array>
#include <string>

#include "runtime/rendezvous/handshake.h"
#include "tests/fuzz/input.h"

namespace rueda::fuzz {
namespace {

using rendezvous::Handshake;
using rendezvous::HandshakeRole;
using rendezvous::HandshakeTerms;
using rendezvous::JobKey;

JobKey key() {
  std::array<uint8_t, JobKey::kBytes> bytes;
  bytes.fill(0x5a);
  return JobKey::from_bytes(bytes);
}

Handshake connector() {
  return {HandshakeTerms{HandshakeRole::kConnecting, 0, 4, Rank{1}, 7, "job"}, key()};
}
Handshake acceptor() {
  return {HandshakeTerms{HandshakeRole::kAccepting, 1, 4, std::nullopt, 7, "job"}, key()};
}

std::string take(Handshake* from) {
  const ByteView bytes = from->bytes_to_send();
  std::string out(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  from->sent(bytes.size());
  return out;
}

void feed(Handshake* to, std::string_view bytes) {
  while (!bytes.empty() && to->bytes_wanted() > 0) {
    const size_t count = std::min(bytes.size(), to->bytes_wanted());
    const size_t taken = to->feed(std::as_bytes(std::span(bytes.data(), count)));
    expect(taken > 0 && taken <= count, "feed takes what it wanted");
    bytes.remove_prefix(taken);
  }
}

// Bytes of somebody who does not have the key.
void stranger(Input input, Handshake to) {
  while (!input.empty()) {
    take(&to);
    feed(&to, input.bytes(input.number<uint8_t>()));
  }
  take(&to);
  expect(!to.done(), "nobody is let in without the key");
  to.feed_end();
  expect(!to.status().ok(), "an unfinished handshake has failed");
}

// Both ends have the key; each byte on the way is changed by the input's.
void on_the_way(Input input) {
  Handshake one = connector(), other = acceptor();
  bool changed = false;
  const auto carry = [&](std::string bytes, Handshake* to) {
    for (char& byte : bytes) {
      const auto mask = input.number<char>();
      changed = changed || mask != 0;
      byte = static_cast<char>(byte ^ mask);
    }
    feed(to, bytes);
  };
  for (;;) {
    const std::string from_one = take(&one), from_other = take(&other);
    if (from_one.empty() && from_other.empty()) break;
    carry(from_one, &other);
    carry(from_other, &one);
  }
  expect(changed || (one.done() && other.done()), "an undisturbed handshake succeeds");
  expect(!changed || !(one.done() && other.done()),
         "a changed byte is noticed by one end at least");
  expect(!other.done() || other.peer_rank() == 0, "the accepted rank is the prover's");
}

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda::fuzz;
  Input input(data, size);
  switch (input.number<uint8_t>() % 3) {
    case 0: stranger(input, connector()); break;
    case 1: stranger(input, acceptor()); break;
    default: on_the_way(input);
  }
  return 0;
}
