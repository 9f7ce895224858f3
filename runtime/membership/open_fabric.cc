// Memory is shared and connections are made out of the mesh's sockets. Between two ranks of a host:
//
//   send   the arena's, the doorbell's and the heap's descriptors, to each such rank
//   receive the same from each, map them, and move bytes in the rings of both arenas; the socket
//          stays, for its end
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "collectives/host/heap_size.h"
#include "collectives/transport/mpi/mpi_connection.h"
#include "collectives/transport/ring_connection.h"
#include "collectives/transport/striped_connection.h"
#include "collectives/transport/tcp_connection.h"
#include "runtime/membership/joining.h"

namespace rueda::membership {
namespace {

using host::Arena;
using host::ArenaLayout;
using ConnectionPtr = std::unique_ptr<transport::Connection>;

// What a shared-memory connection keeps alive besides its arenas.
struct LocalPeer {
  std::shared_ptr<Arena> mine;
  std::shared_ptr<Arena> theirs;
  host::GuardedFd doorbell;
};

Result<ConnectionPtr> make_tcp_connection(std::vector<UniqueFd> sockets, host::EventLoop* loop,
                                          int64_t rate_limit) {
  std::vector<std::unique_ptr<transport::TcpConnection>> streams;
  for (auto& socket : sockets) {
    RUEDA_ASSIGN_OR_RETURN(auto stream,
                           transport::TcpConnection::create(std::move(socket), loop, rate_limit));
    streams.push_back(std::move(stream));
  }
  if (streams.size() == 1) return ConnectionPtr(std::move(streams.front()));
  return ConnectionPtr(std::make_unique<transport::StripedConnection>(std::move(streams)));
}

class Opening {
 public:
  Opening(Joining* joining, Joined* joined)
      : joining_(*joining),
        options_(joining->options),
        membership_(joined->membership),
        memory_(joined->memory),
        fabric_(joined->fabric),
        me_(static_cast<size_t>(joined->membership.rank)),
        size_(static_cast<size_t>(joined->membership.size)) {}

  Status run() {
    RUEDA_RETURN_IF_ERROR(open_own());
    for (size_t rank = 0; rank < size_; ++rank) {
      if (rank != me_ && joining_.local[rank]) RUEDA_RETURN_IF_ERROR(tell(rank));
    }
    if (size_ > 1) RUEDA_RETURN_IF_ERROR(compare_mpi_ranks());
    auto& peers = joining_.peers;
    peers.resize(size_);
    for (size_t rank = 0; rank < size_; ++rank) {
      peers[rank].name = membership_.names[rank];
      if (rank == me_) continue;
      auto made = connection_to(rank);
      if (!made.ok()) {
        return made.status()
            .with_message(membership_.names[rank] + ": " + made.status().message())
            .with_rank(static_cast<Rank>(rank));
      }
      peers[rank].connection = std::move(made).value();
    }
    fabric_.transport = std::make_unique<transport::TagTransport>(
        membership_.rank, membership_.epoch, std::move(peers), fabric_.loop.get(),
        fabric_.doorbell.get());
    fabric_.transport->share_signs_of_life(memory_.host_of, memory_.boards());
    return {};
  }

 private:
  // Ranks that memory is shared with, this one included, in their order among themselves: who is
  // which in an arena.
  Status open_own() {
    place_in_arena_.assign(size_, -1);
    Rank sharing = 0;
    for (size_t rank = 0; rank < size_; ++rank) {
      if (rank == me_ || joining_.local[rank]) place_in_arena_[rank] = sharing++;
    }
    const int last_host = *std::max_element(memory_.host_of.begin(), memory_.host_of.end());
    layout_ = layout_of(options_.config, sharing, static_cast<size_t>(last_host) + 1);
    memory_.arenas.resize(size_);
    memory_.heaps.resize(size_);
    fabric_.ringers.resize(size_);
    if (sharing > 1) {
      RUEDA_ASSIGN_OR_RETURN(memory_.arenas[me_],
                             Arena::create(layout_, place_in_arena_[me_], membership_.epoch));
    }
    RUEDA_RETURN_IF_ERROR(fabric_.open(memory_.own()));
    fabric_.ringers[me_] = fabric_.doorbell->ringer();
    return sharing > 1 ? share_heap(sharing) : Status();
  }

  Status share_heap(Rank sharing) {
    const size_t bytes = host::heap_size(options_.config.heap_bytes, sharing);
    RUEDA_ASSIGN_OR_RETURN(host::Heap* const heap, host::Heap::of_process(bytes));
    UniqueFd fd(fcntl(heap->fd(), F_DUPFD_CLOEXEC, 0));
    if (!fd) return errno_status("cannot share the heap", errno);
    heap_fd_ = heap->fd();
    RUEDA_ASSIGN_OR_RETURN(memory_.heaps[me_], host::PeerHeap::attach(std::move(fd)));
    return {};
  }

  UniqueFd& socket_to(size_t rank) { return joining_.sockets[rank].front(); }

  Status tell(size_t rank) {
    return send_fds(socket_to(rank).get(), {memory_.own()->fd(), fabric_.doorbell->fd(), heap_fd_});
  }

  // The ranks that MPI gave to ours, in our order; none when MPI is not used.
  Status compare_mpi_ranks() {
    const std::string& transport = options_.config.transport;
    if (transport != "mpi" && transport != "mpi-only") return {};
    const auto& engine = options_.mpi;
    if (engine == nullptr) return internal_error("MPI was asked for, but nobody started it");
    if (engine->size() != membership_.size) {
      return failed_precondition(
          engine->library() + " sees a world of " + std::to_string(engine->size()) +
          " processes, but this job has " + std::to_string(membership_.size) + " ranks (" +
          options_.place.source +
          "): start it with the mpirun of that library, or leave RUEDA_TRANSPORT=auto");
    }
    rendezvous::Store* const store = joining_.store;
    RUEDA_RETURN_IF_ERROR(
        store->set(joining_.key_of("mpi", membership_.rank), std::to_string(engine->rank())));
    for (Rank rank = 0; rank < membership_.size; ++rank) {
      RUEDA_ASSIGN_OR_RETURN(const std::string text,
                             store->get(joining_.key_of("mpi", rank), joining_.left()));
      const int theirs = std::atoi(text.c_str());
      if (std::find(mpi_ranks_.begin(), mpi_ranks_.end(), theirs) != mpi_ranks_.end()) {
        return failed_precondition("two ranks of this job have MPI's rank " + text +
                                   ": they are not of one MPI world");
      }
      mpi_ranks_.push_back(theirs);
    }
    return {};
  }

  Result<ConnectionPtr> connection_to(size_t rank) {
    if (joining_.local[rank]) return connect_inside_host(rank);
    if (!mpi_ranks_.empty()) return connect_over_mpi(rank);
    return connect_over_tcp(rank);
  }

  Result<ConnectionPtr> connect_over_mpi(size_t rank) {
    constexpr uint64_t kTags = 32767;  // MPI promises no more
    const int epoch = static_cast<int>(membership_.epoch % kTags);
    RUEDA_ASSIGN_OR_RETURN(
        auto made, mpi::MpiConnection::create(options_.mpi, mpi_ranks_[rank], epoch,
                                              fabric_.doorbell->ringer(),
                                              std::move(socket_to(rank)), fabric_.loop.get()));
    return ConnectionPtr(std::move(made));
  }

  Result<ConnectionPtr> connect_over_tcp(size_t rank) {
    // From here on signs of life are the transport's business.
    for (const UniqueFd& socket : joining_.sockets[rank])
      end_when_silent(socket.get(), std::chrono::seconds(0));
    RUEDA_ASSIGN_OR_RETURN(
        auto made, make_tcp_connection(std::move(joining_.sockets[rank]), fabric_.loop.get(),
                                       options_.config.tcp_rate_limit));
    if (const auto& wrap = options_.wrap_connection)
      made = wrap(static_cast<Rank>(rank), std::move(made), fabric_.loop.get());
    return made;
  }

  Result<ConnectionPtr> connect_inside_host(size_t rank) {
    RUEDA_ASSIGN_OR_RETURN(auto fds, receive_fds(socket_to(rank).get(), 3,
                                                 joining_.patience(static_cast<Rank>(rank))));
    auto peer = std::make_shared<LocalPeer>();
    peer->mine = memory_.arenas[me_];
    peer->doorbell = host::GuardedFd(std::move(fds[1]));
    RUEDA_ASSIGN_OR_RETURN(peer->theirs, Arena::attach(std::move(fds[0]), layout_,
                                                       place_in_arena_[rank], membership_.epoch));
    RUEDA_ASSIGN_OR_RETURN(memory_.heaps[rank], host::PeerHeap::attach(std::move(fds[2])));
    memory_.arenas[rank] = peer->theirs;
    fabric_.ringers[rank] = {peer->doorbell.get(), peer->theirs->sleep_word()};
    const auto outgoing = peer->mine->ring_to(place_in_arena_[rank]);
    const auto incoming = peer->theirs->ring_to(place_in_arena_[me_]);
    RUEDA_ASSIGN_OR_RETURN(auto made, transport::RingConnection::create(
                                          "shm", outgoing, incoming, fabric_.ringers[rank],
                                          std::move(socket_to(rank)), fabric_.loop.get(), peer));
    return ConnectionPtr(std::move(made));
  }

  Joining& joining_;
  const JoinOptions& options_;
  const Membership& membership_;
  HostMemory& memory_;
  Fabric& fabric_;
  const size_t me_, size_;
  ArenaLayout layout_;
  std::vector<Rank> place_in_arena_;  // by rank; -1: no memory is shared with it
  int heap_fd_ = -1;                  // borrowed from the process's heap
  std::vector<int> mpi_ranks_;
};

}  // namespace

Status open_fabric(Joining* joining, Joined* joined) { return Opening(joining, joined).run(); }

}  // namespace rueda::membership
