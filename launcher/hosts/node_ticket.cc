#include "launcher/hosts/node_ticket.h"

#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <thread>

#include "launcher/hosts/late_start.h"
#include "launcher/hosts/machine.h"
#include "launcher/hosts/ticket.h"
#include "runtime/rendezvous/poll_until.h"

namespace rueda::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kPurpose = "rueda ticket";
constexpr size_t kMostSealed =
    kMaxTicketBytes + crypto_secretbox_NONCEBYTES + crypto_secretbox_MACBYTES;
constexpr int kAskMilliseconds = 3000;
constexpr std::chrono::seconds kTellMissing{10};
constexpr std::chrono::milliseconds kLook{100};

using SealingKey = std::array<unsigned char, crypto_secretbox_KEYBYTES>;

SealingKey sealing_key(const rendezvous::JobKey& key) {
  SealingKey derived;
  crypto_generichash(derived.data(), derived.size(),
                     reinterpret_cast<const unsigned char*>(kPurpose.data()), kPurpose.size(),
                     key.bytes().data(), key.bytes().size());
  return derived;
}

rendezvous::HandshakeTerms node_terms(const TorchNodes& nodes, rendezvous::HandshakeRole role) {
  rendezvous::HandshakeTerms terms;
  terms.role = role;
  terms.my_rank = nodes.rank;
  terms.size = nodes.nodes;
  terms.job_id = nodes.terms();
  return terms;
}

void send_all(int fd, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t did = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (did < 0 && errno == EINTR) continue;
    if (did <= 0) return;  // the node asks again
    sent += static_cast<size_t>(did);
  }
}

// All of the stream.
Result<std::string> read_all(int fd) {
  const auto deadline = Clock::now() + kProofLimit;
  std::string bytes;
  char piece[4096];
  for (;;) {
    RUEDA_RETURN_IF_ERROR(rendezvous::poll_until(fd, POLLIN, deadline));
    const ssize_t got = recv(fd, piece, sizeof(piece), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status("node 0 has given no ticket", errno);
    if (got == 0) return bytes;
    bytes.append(piece, static_cast<size_t>(got));
    if (bytes.size() > kMostSealed)
      return Status(Code::kUnauthenticated, "what node 0 sends is no ticket");
  }
}

Result<std::string> ask(const NodeDoor& door, const std::string& address, int port) {
  RUEDA_ASSIGN_OR_RETURN(const UniqueFd fd, connect_to(address, port, kAskMilliseconds));
  auto terms = node_terms(door.nodes, rendezvous::HandshakeRole::kConnecting);
  terms.peer = 0;
  const auto met = rendezvous::shake_hands(fd.get(), terms, door.key, Clock::now() + kProofLimit);
  if (!met.ok()) return met.status();
  RUEDA_ASSIGN_OR_RETURN(const std::string sealed, read_all(fd.get()));
  if (sealed.empty()) return unavailable("node 0 has ended the connection");
  return unseal(sealed, door.key);
}

// Every address of node 0's name, once. The last error, but a refusal is never hidden by another's
// silence.
Result<std::string> ask_once(const NodeDoor& door) {
  RUEDA_ASSIGN_OR_RETURN(const auto addresses,
                         resolve_address(with_port(door.nodes.address, door.nodes.port)));
  Status last = unavailable("'" + door.nodes.address + "' has no address");
  for (const std::string& text : addresses) {
    std::string address;
    int port = 0;
    if (!split_port(text, &address, &port)) continue;
    auto ticket = ask(door, address, port);
    if (ticket.ok()) return ticket;
    if (last.code() != Code::kUnauthenticated) last = ticket.status();
  }
  return last;
}

}  // namespace

std::string seal(const std::string& text, const rendezvous::JobKey& key) {
  std::string sealed(crypto_secretbox_NONCEBYTES + crypto_secretbox_MACBYTES + text.size(), '\0');
  auto* const nonce = reinterpret_cast<unsigned char*>(sealed.data());
  randombytes_buf(nonce, crypto_secretbox_NONCEBYTES);
  crypto_secretbox_easy(nonce + crypto_secretbox_NONCEBYTES,
                        reinterpret_cast<const unsigned char*>(text.data()), text.size(), nonce,
                        sealing_key(key).data());
  return sealed;
}

Result<std::string> unseal(const std::string& sealed, const rendezvous::JobKey& key) {
  constexpr size_t kMore = crypto_secretbox_NONCEBYTES + crypto_secretbox_MACBYTES;
  std::string text(sealed.size() < kMore ? 0 : sealed.size() - kMore, '\0');
  const auto* const nonce = reinterpret_cast<const unsigned char*>(sealed.data());
  if (sealed.size() < kMore ||
      crypto_secretbox_open_easy(
          reinterpret_cast<unsigned char*>(text.data()), nonce + crypto_secretbox_NONCEBYTES,
          sealed.size() - crypto_secretbox_NONCEBYTES, nonce, sealing_key(key).data()) != 0) {
    return Status(Code::kUnauthenticated, "the ticket was sealed with another key, or is damaged");
  }
  return text;
}

Result<ProofDoor> hand_out_ticket(const NodeDoor& door, const std::string& ticket) {
  RUEDA_ASSIGN_OR_RETURN(ProofDoor listening, ProofDoor::open(door.nodes.port));
  listening.answer(node_terms(door.nodes, rendezvous::HandshakeRole::kAccepting), door.key,
                   [ticket, key = door.key](int fd) { send_all(fd, seal(ticket, key)); });
  return listening;
}

Result<std::string> fetch_ticket(const NodeDoor& door, std::chrono::duration<double> limit,
                                 const std::function<void(const std::string&)>& say,
                                 const std::function<bool()>& stopped) {
  const auto begun = Clock::now();
  const auto until = begun + std::chrono::duration_cast<Clock::duration>(limit);
  const std::string where = with_port(door.nodes.address, door.nodes.port);
  auto told = begun;
  for (int tries = 1;; ++tries) {
    auto ticket = ask_once(door);
    if (ticket.ok()) return ticket;
    const Status& why = ticket.status();
    if (why.code() == Code::kUnauthenticated) {
      return Status(why.code(),
                    "node 0 (" + where + ") and this one do not belong to one job: " +
                        why.message() + " (the file RUEDA_KEY_FILE, PET_NNODES and the ranks per " +
                        "node must be the same; here " + std::to_string(door.nodes.nodes) +
                        " nodes with " + std::to_string(door.nodes.ranks_per_node) + " each)");
    }
    const auto next = Clock::now() + pause_before(tries);
    while (Clock::now() < next) {
      if (stopped()) return cancelled("");
      if (Clock::now() >= until)
        return deadline_exceeded("gave up waiting for node 0 (" + where + "): " + why.message());
      if (Clock::now() - told >= kTellMissing) {
        told = Clock::now();
        say("waiting for node 0 (" + where + "): " + why.message());
      }
      std::this_thread::sleep_for(kLook);
    }
  }
}

}  // namespace rueda::launcher
