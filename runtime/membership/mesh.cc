#include "runtime/membership/mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>

#include "collectives/base/log.h"
#include "runtime/membership/guest.h"
#include "runtime/rendezvous/handshake.h"

namespace rueda::membership {
namespace {

using rendezvous::Handshake;
using rendezvous::HandshakeRole;
using rendezvous::HandshakeTerms;

constexpr auto kLookAround = Patience::kLookAround;

size_t streams_to(const MeshTask& task, size_t rank) {
  return task.peers[rank].local ? 1 : task.tcp_streams;
}

HandshakeTerms terms_of(const MeshTask& task, HandshakeRole role, bool local) {
  HandshakeTerms terms;
  terms.role = role;
  terms.my_rank = task.rank;
  terms.size = static_cast<Rank>(task.peers.size());
  terms.epoch = task.epoch;
  terms.job_id = task.job_id + (local ? "/shm" : "/tcp");
  return terms;
}

Result<UniqueFd> connect_to(const MeshTask& task, Rank rank, const rendezvous::JobKey& key) {
  const MeshPeer& peer = task.peers[static_cast<size_t>(rank)];
  Patience patience{task.deadline, [&] { return task.alive(rank); }};
  Patience answer = patience;
  // It listens already: its address was there.
  if (task.silence.count() > 0)
    answer.deadline =
        std::min(answer.deadline, std::chrono::steady_clock::now() + 2 * task.silence);
  auto fd = peer.local ? connect_unix(peer.address) : connect_tcp(peer.address, answer);
  if (!fd.ok()) {
    RUEDA_RETURN_IF_ERROR(task.alive(rank));
    return unavailable(task.names[static_cast<size_t>(rank)] + ": " + fd.status().message())
        .with_rank(rank);
  }
  if (!peer.local) {
    retransmit_soon(fd.value().get(), task.silence);
    end_when_silent(fd.value().get(), task.silence);
  }
  HandshakeTerms terms = terms_of(task, HandshakeRole::kConnecting, peer.local);
  terms.peer = rank;
  const auto met = rendezvous::shake_hands(fd.value().get(), terms, key, patience);
  if (!met.ok()) {
    RUEDA_RETURN_IF_ERROR(task.alive(rank));
    return met.status()
        .with_message(task.names[static_cast<size_t>(rank)] + ": " + met.status().message())
        .with_rank(rank);
  }
  return std::move(fd).value();
}

// Accepts the ranks above this one.
class Reception {
 public:
  Reception(const MeshTask& task, const rendezvous::JobKey& key, MeshSockets* connected)
      : task_(task), key_(key), connected_(*connected) {}

  Status run() {
    while (missing() >= 0) {
      if (std::chrono::steady_clock::now() >= task_.deadline) return too_late();
      wait();
      shortage_ = 0;
      accept_from(task_.unix_listener, true);
      if (task_.tcp_listener != nullptr) accept_from(task_.tcp_listener, false);
      // Without guests there is none whose end would give a descriptor back.
      if (shortage_ != 0 && guests_.empty())
        return errno_status("cannot accept the connection of another rank", shortage_);
      serve_guests();
      if (const auto now = std::chrono::steady_clock::now(); now >= next_look_) {
        next_look_ = now + kLookAround;
        for (size_t rank = static_cast<size_t>(task_.rank) + 1; rank < connected_.size(); ++rank) {
          if (!is_complete(rank)) RUEDA_RETURN_IF_ERROR(task_.alive(static_cast<Rank>(rank)));
        }
      }
    }
    return {};
  }

  // Among the own rank's sockets: not to be closed yet.
  void keep_guests() {
    auto& kept = connected_[static_cast<size_t>(task_.rank)];
    for (Guest& guest : guests_) kept.push_back(std::move(guest.fd));
  }

 private:
  bool is_complete(size_t rank) const { return connected_[rank].size() == streams_to(task_, rank); }
  Rank missing() const {
    for (size_t rank = static_cast<size_t>(task_.rank) + 1; rank < connected_.size(); ++rank) {
      if (!is_complete(rank)) return static_cast<Rank>(rank);
    }
    return -1;
  }

  Status too_late() const {
    std::string who;
    for (size_t rank = static_cast<size_t>(task_.rank) + 1; rank < connected_.size(); ++rank) {
      if (!is_complete(rank)) who += (who.empty() ? "" : ", ") + task_.names[rank];
    }
    return deadline_exceeded("not connected in time (RUEDA_START_TIMEOUT): " + who);
  }

  size_t most_guests() const { return 2 * connected_.size() + kStrangers; }

  void wait() {
    std::vector<pollfd> entries;
    // Not while the room is full: a waiting connection would end every nap at once.
    const bool room = guests_.size() < most_guests();
    if (room) entries.push_back({task_.unix_listener->fd.get(), POLLIN, 0});
    if (room && task_.tcp_listener != nullptr)
      entries.push_back({task_.tcp_listener->fd.get(), POLLIN, 0});
    for (const Guest& guest : guests_) {
      const short events = guest.handshake.bytes_to_send().empty() ? POLLIN : POLLIN | POLLOUT;
      entries.push_back({guest.fd.get(), events, 0});
    }
    const auto nap = room ? kLookAround : kSilentTime;
    poll(entries.data(), entries.size(), static_cast<int>(nap.count()));
  }

  void accept_from(const Listener* listener, bool local) {
    while (guests_.size() < most_guests()) {
      UniqueFd fd(accept4(listener->fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) {
        const bool short_of =
            errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        shortage_ = short_of ? errno : shortage_;
        return;
      }
      if (local && !same_user(fd.get())) continue;
      if (!local) {
        retransmit_soon(fd.get(), task_.silence);
        end_when_silent(fd.get(), task_.silence);
      }
      guests_.push_back({std::move(fd),
                         Handshake(terms_of(task_, HandshakeRole::kAccepting, local), key_),
                         local});
    }
  }

  void serve_guests() {
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      bool stays = serve(&*guest, guests_.size() >= most_guests());
      if (stays && guest->handshake.done()) {
        const auto rank = static_cast<size_t>(guest->handshake.peer_rank());
        const bool expected = rank > static_cast<size_t>(task_.rank) && rank < connected_.size() &&
                              !is_complete(rank) && task_.peers[rank].local == guest->local;
        // In order: a rank begins its next connection when it has seen our proof on this one.
        if (expected) connected_[rank].push_back(std::move(guest->fd));
        stays = false;
      } else if (!stays) {
        RUEDA_INFO("bootstrap", "sent a connection away: {}",
                   guest->handshake.status().to_string());
      }
      guest = stays ? std::next(guest) : guests_.erase(guest);
    }
  }

  const MeshTask& task_;
  const rendezvous::JobKey& key_;
  MeshSockets& connected_;
  std::list<Guest> guests_;
  int shortage_ = 0;  // errno of an accept that had not what it needs, in this turn
  Deadline next_look_ = std::chrono::steady_clock::now() + kLookAround;
};

}  // namespace

Status connect_mesh(const MeshTask& task, const rendezvous::JobKey& key, MeshSockets* sockets) {
  sockets->resize(task.peers.size());
  for (size_t rank = 0; rank < static_cast<size_t>(task.rank); ++rank) {
    auto& connected = (*sockets)[rank];
    while (connected.size() < streams_to(task, rank)) {
      RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, connect_to(task, static_cast<Rank>(rank), key));
      connected.push_back(std::move(fd));
    }
  }
  Reception reception(task, key, sockets);
  const Status met = reception.run();
  if (!met.ok()) reception.keep_guests();
  return met;
}

}  // namespace rueda::membership
