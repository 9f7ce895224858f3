#include "runtime/membership/world.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>

#include "collectives/base/log.h"
#include "collectives/host/heap_size.h"
#include "collectives/transport/frame.h"
#include "collectives/transport/mpi/mpi_connection.h"
#include "collectives/transport/ring_connection.h"
#include "collectives/transport/striped_connection.h"
#include "collectives/transport/tcp_connection.h"
#include "proto/messages.h"
#include "proto/store_codec.h"
#include "runtime/membership/first_verdict.h"
#include "runtime/membership/mesh.h"
#include "runtime/membership/sockets.h"

namespace rueda::membership {
namespace {

using host::Arena;
using host::ArenaLayout;

constexpr uint32_t kVersion = 1;

// What the steps of joining know of each other.
struct Joining {
  const JoinOptions& options;
  rendezvous::Store* store;
  const rendezvous::JobKey* key;
  Deadline deadline;
  std::vector<wire::PlaceInfo> places = {};
  FirstVerdict verdict;
  std::vector<bool> local = {};  // by rank: memory can be shared with it
  // Open until this rank has said why it gives up, if it does: others would blame it for their end.
  Listener unix_listener = {}, tcp_listener = {};
  MeshSockets sockets = {};
  std::vector<UniqueFd> first_sockets = {};
  std::vector<transport::TagTransport::Peer> peers = {};

  std::string key_of(const char* what, Rank rank) const {
    return prefix_of(options.epoch) + what + "/" + std::to_string(rank);
  }
  static std::string prefix_of(uint64_t epoch) { return "e" + std::to_string(epoch) + "/"; }
  Patience patience(Rank rank) {
    return {deadline, [this, rank] { return verdict.look(rank); }};
  }
  std::chrono::nanoseconds left() const { return deadline - std::chrono::steady_clock::now(); }
};

ArenaLayout layout_of(const Config& config, Rank local_size, size_t hosts = 1) {
  ArenaLayout layout;
  layout.hosts = hosts;
  layout.local_size = local_size;
  layout.chunk_bytes = static_cast<size_t>(config.chunk_bytes);
  layout.buffers = static_cast<size_t>(config.staging_buffers);
  return layout;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string name_of(const wire::PlaceInfo& place) {
  return "rank " + std::to_string(place.rank) + " (pid " + std::to_string(place.pid) + " on " +
         place.host_name + ")";
}

std::optional<DType> host_wire_of(const Config& config) {
  if (config.host_compression == "fp16") return DType::kFloat16;
  if (config.host_compression == "bf16") return DType::kBFloat16;
  return std::nullopt;
}

// What all ranks must have in common, as text that an error can show.
std::string agreement(const Config& config) {
  return "version=" + std::to_string(kVersion) + "\n" + agreed_settings(config);
}

// MPI's connections keep a socket to tell that the peer is gone: one is enough.
size_t tcp_streams(const Config& config) {
  const bool mpi = config.transport == "mpi" || config.transport == "mpi-only";
  return mpi ? 1 : static_cast<size_t>(config.tcp_streams);
}

bool shares_inside_hosts(const Config& config) {
  return config.transport == "auto" || config.transport == "mpi";
}

Status exchange_places(Joining* joining, const std::string& unix_address) {
  const Place& place = joining->options.place;
  wire::PlaceInfo mine;
  mine.version = kVersion;
  mine.rank = place.rank;
  mine.size = place.size;
  mine.pid = getpid();
  mine.host_name = host_name();
  mine.host_id = host_identity(joining->options.config.host_id);
  mine.unix_address = unix_address;
  mine.agreed_settings = agreement(joining->options.config);
  mine.layout_hash = std::to_string(layout_of(joining->options.config, 1).hash()) + "/" +
                     std::to_string(sizeof(transport::FrameHeader));
  RUEDA_RETURN_IF_ERROR(
      joining->store->set(joining->key_of("place", place.rank), wire::encode(mine)));
  for (Rank rank = 0; rank < place.size; ++rank) {
    auto text = joining->store->get(joining->key_of("place", rank), joining->left());
    if (!text.ok()) {
      if (text.status().code() != Code::kDeadlineExceeded) return text.status();
      return deadline_exceeded("rank " + std::to_string(rank) + " has not called init after " +
                               std::to_string(joining->options.config.start_timeout_seconds) +
                               " s (RUEDA_START_TIMEOUT)");
    }
    wire::PlaceInfo info;
    RUEDA_RETURN_IF_ERROR(wire::decode(text.value(), &info));
    if (info.version != kVersion || info.rank != rank || info.size != place.size ||
        info.layout_hash != mine.layout_hash) {
      return failed_precondition(name_of(info) + " runs another version of rueda than " +
                                 name_of(mine));
    }
    if (info.agreed_settings != mine.agreed_settings) {
      return failed_precondition("settings differ: " + name_of(info) + " has\n" +
                                 info.agreed_settings + "but " + name_of(mine) + " has\n" +
                                 mine.agreed_settings + "set them alike on all ranks");
    }
    joining->places.push_back(std::move(info));
  }
  const std::string& host = joining->places[static_cast<size_t>(place.rank)].host_id;
  const bool share = shares_inside_hosts(joining->options.config);
  for (const auto& info : joining->places) {
    joining->local.push_back(share && info.host_id == host);
  }
  return {};
}

// Local and cross ranks from the hosts' identities, not from variables that somebody else sets.
// separate: no memory is shared, wherever ranks are.
void count_hosts(const std::vector<wire::PlaceInfo>& places, bool separate, World* world) {
  std::vector<std::string> hosts;  // in order of their first rank
  std::vector<Rank> sizes;
  std::vector<size_t> host_of;
  std::vector<Rank> local_rank;
  for (const auto& place : places) {
    auto it = std::find(hosts.begin(), hosts.end(), place.host_id);
    if (it == hosts.end()) {
      it = hosts.insert(hosts.end(), place.host_id);
      sizes.push_back(0);
    }
    host_of.push_back(static_cast<size_t>(it - hosts.begin()));
    local_rank.push_back(sizes[host_of.back()]++);
  }
  world->memory_host.assign(host_of.begin(), host_of.end());
  if (separate) {
    for (size_t rank = 0; rank < places.size(); ++rank)
      world->memory_host[rank] = static_cast<int>(rank);
  }
  const auto me = static_cast<size_t>(world->rank);
  world->local_rank = local_rank[me];
  world->local_size = sizes[host_of[me]];
  for (size_t i = 0; i < places.size(); ++i) {
    if (host_of[i] == host_of[me]) world->local_pids.push_back(static_cast<int>(places[i].pid));
  }
  world->cross_size = 0;
  for (size_t host = 0; host < hosts.size(); ++host) {
    if (sizes[host] <= world->local_rank) continue;  // no rank of this local rank there
    if (host < host_of[me]) ++world->cross_rank;
    ++world->cross_size;
  }
  world->homogeneous = std::set<Rank>(sizes.begin(), sizes.end()).size() == 1;
}

Status publish_tcp(Joining* joining) {
  const std::string& host = joining->options.config.tcp_address;
  Listener& listener = joining->tcp_listener;
  RUEDA_ASSIGN_OR_RETURN(listener, listen_tcp(host.empty() ? "127.0.0.1" : host, 1024));
  RUEDA_RETURN_IF_ERROR(
      joining->store->set(joining->key_of("tcp", joining->options.place.rank), listener.address));
  for (Rank rank = 0; rank < joining->options.place.size; ++rank) {
    if (joining->local[static_cast<size_t>(rank)]) continue;
    RUEDA_ASSIGN_OR_RETURN(joining->places[static_cast<size_t>(rank)].tcp_address,
                           joining->store->get(joining->key_of("tcp", rank), joining->left()));
  }
  return {};
}

Status connect_all(Joining* joining) {
  // Every rank opens its port if any two ranks are on different hosts: each sees that alike.
  const bool all_local =
      std::all_of(joining->local.begin(), joining->local.end(), [](bool l) { return l; });
  if (!all_local) RUEDA_RETURN_IF_ERROR(publish_tcp(joining));
  MeshTask task;
  task.rank = joining->options.place.rank;
  task.epoch = joining->options.epoch;
  task.job_id = joining->options.place.job_id;
  task.unix_listener = &joining->unix_listener;
  task.tcp_listener = all_local ? nullptr : &joining->tcp_listener;
  task.tcp_streams = tcp_streams(joining->options.config);
  task.deadline = joining->deadline;
  for (size_t rank = 0; rank < joining->places.size(); ++rank) {
    const bool local = joining->local[rank];
    task.peers.push_back(
        {local, local ? joining->places[rank].unix_address : joining->places[rank].tcp_address});
    task.names.push_back(name_of(joining->places[rank]));
  }
  task.alive = [joining](Rank rank) {
    RUEDA_RETURN_IF_ERROR(joining->verdict.look(rank));
    return joining->store->get(joining->key_of("place", rank), std::chrono::seconds(1)).status();
  };
  const double silence = joining->options.config.dead_seconds;
  task.silence =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(silence));
  return connect_mesh(task, *joining->key, &joining->sockets);
}

// The ranks that MPI gave to ours, in our order; empty when MPI is not used.
Result<std::vector<int>> compare_mpi_ranks(Joining* joining, World* world) {
  const std::string& transport = joining->options.config.transport;
  if (transport != "mpi" && transport != "mpi-only") return std::vector<int>();
  const auto& engine = joining->options.mpi;
  if (engine == nullptr) return internal_error("MPI was asked for, but nobody started it");
  if (engine->size() != world->size) {
    return failed_precondition(
        engine->library() + " sees a world of " + std::to_string(engine->size()) +
        " processes, but this job has " + std::to_string(world->size) + " ranks (" +
        joining->options.place.source +
        "): start it with the mpirun of that library, or leave RUEDA_TRANSPORT=auto");
  }
  const Rank me = world->rank;
  RUEDA_RETURN_IF_ERROR(
      joining->store->set(joining->key_of("mpi", me), std::to_string(engine->rank())));
  std::vector<int> ranks;
  for (Rank rank = 0; rank < world->size; ++rank) {
    RUEDA_ASSIGN_OR_RETURN(const std::string text,
                           joining->store->get(joining->key_of("mpi", rank), joining->left()));
    const int theirs = std::atoi(text.c_str());
    if (std::find(ranks.begin(), ranks.end(), theirs) != ranks.end()) {
      return failed_precondition("two ranks of this job have MPI's rank " + text +
                                 ": they are not of one MPI world");
    }
    ranks.push_back(theirs);
  }
  world->mpi = engine;
  return ranks;
}

using ConnectionPtr = std::unique_ptr<transport::Connection>;

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

// What a shared-memory connection keeps alive besides its arenas.
struct LocalPeer {
  std::shared_ptr<Arena> mine;
  std::shared_ptr<Arena> theirs;
  host::GuardedFd doorbell;
};

Status make_doorbell(World* world, const std::shared_ptr<Arena>& arena) {
  host::SleepWord* word = nullptr;
  host::SleepWord* channel_word = nullptr;
  if (arena == nullptr) {
    world->private_word = std::make_unique<host::SleepWord>();
    word = world->private_word.get();
  } else {
    word = arena->sleep_word();
    channel_word = arena->channel_word();
  }
  RUEDA_ASSIGN_OR_RETURN(host::Doorbell bell, host::Doorbell::create(word, channel_word));
  world->doorbell = std::make_unique<host::Doorbell>(std::move(bell));
  RUEDA_ASSIGN_OR_RETURN(host::EventLoop loop, host::EventLoop::create());
  world->loop = std::make_unique<host::EventLoop>(std::move(loop));
  return world->loop->add(world->doorbell->fd(), nullptr);
}

// The own heap as the peers get it: its descriptor, and the entry of this rank in World::heaps.
Result<int> share_heap(const Config& config, Rank sharing, World* world) {
  RUEDA_ASSIGN_OR_RETURN(host::Heap* const heap,
                         host::Heap::of_process(host::heap_size(config.heap_bytes, sharing)));
  UniqueFd fd(fcntl(heap->fd(), F_DUPFD_CLOEXEC, 0));
  if (!fd) return errno_status("cannot share the heap", errno);
  RUEDA_ASSIGN_OR_RETURN(world->heaps[static_cast<size_t>(world->rank)],
                         host::PeerHeap::attach(std::move(fd)));
  return heap->fd();
}

Status build_connections(Joining* joining, World* world) {
  const auto size = static_cast<size_t>(world->size);
  const auto me = static_cast<size_t>(world->rank);
  MeshSockets& streams = joining->sockets;
  streams.resize(size);
  auto& sockets = joining->first_sockets;
  for (auto& to : streams) sockets.push_back(to.empty() ? UniqueFd() : std::move(to.front()));
  // Ranks this one shares memory with, itself included, and their order among themselves.
  std::vector<Rank> slot(size, -1);
  Rank sharing = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    if (rank == me || joining->local[rank]) slot[rank] = sharing++;
  }
  std::shared_ptr<Arena> arena;
  const auto hosts = std::max_element(world->memory_host.begin(), world->memory_host.end());
  const ArenaLayout layout =
      layout_of(joining->options.config, sharing, static_cast<size_t>(*hosts) + 1);
  if (sharing > 1) {
    RUEDA_ASSIGN_OR_RETURN(arena, Arena::create(layout, slot[me], world->epoch));
  }
  RUEDA_RETURN_IF_ERROR(make_doorbell(world, arena));
  world->arenas.resize(size);
  world->heaps.resize(size);
  world->ringers.resize(size);
  world->arenas[me] = arena;
  world->ringers[me] = world->doorbell->ringer();
  int heap = -1;
  if (sharing > 1) {
    RUEDA_ASSIGN_OR_RETURN(heap, share_heap(joining->options.config, sharing, world));
  }
  for (size_t rank = 0; rank < size; ++rank) {
    if (rank != me && joining->local[rank]) {
      RUEDA_RETURN_IF_ERROR(
          send_fds(sockets[rank].get(), {arena->fd(), world->doorbell->fd(), heap}));
    }
  }
  std::vector<int> mpi_ranks;
  if (size > 1) {
    RUEDA_ASSIGN_OR_RETURN(mpi_ranks, compare_mpi_ranks(joining, world));
  }
  auto& peers = joining->peers;
  peers.resize(size);
  for (size_t rank = 0; rank < size; ++rank) {
    peers[rank].name = world->names[rank];
    if (rank == me) continue;
    const auto of_peer = [&](const Status& status) {
      return Status(status.code(), world->names[rank] + ": " + status.message());
    };
    if (!joining->local[rank] && !mpi_ranks.empty()) {
      constexpr uint64_t kTags = 32767;  // MPI promises no more
      auto connection = mpi::MpiConnection::create(
          world->mpi, mpi_ranks[rank], static_cast<int>(world->epoch % kTags),
          world->doorbell->ringer(), std::move(sockets[rank]), world->loop.get());
      if (!connection.ok()) return of_peer(connection.status());
      peers[rank].connection = std::move(connection).value();
      continue;
    }
    if (!joining->local[rank]) {
      // From here on signs of life are the transport's business.
      end_when_silent(sockets[rank].get(), std::chrono::seconds(0));
      for (size_t i = 1; i < streams[rank].size(); ++i)
        end_when_silent(streams[rank][i].get(), std::chrono::seconds(0));
      streams[rank].front() = std::move(sockets[rank]);
      auto connection = make_tcp_connection(std::move(streams[rank]), world->loop.get(),
                                            joining->options.config.tcp_rate_limit);
      if (!connection.ok()) return of_peer(connection.status());
      peers[rank].connection = std::move(connection).value();
      if (const auto& wrap = joining->options.wrap_connection)
        peers[rank].connection =
            wrap(static_cast<Rank>(rank), std::move(peers[rank].connection), world->loop.get());
      continue;
    }
    auto fds = receive_fds(sockets[rank].get(), 3, joining->patience(static_cast<Rank>(rank)));
    if (!fds.ok()) return of_peer(fds.status());
    auto peer = std::make_shared<LocalPeer>();
    peer->mine = arena;
    peer->doorbell = host::GuardedFd(std::move(fds.value()[1]));
    auto attached = Arena::attach(std::move(fds.value()[0]), layout, slot[rank], world->epoch);
    if (!attached.ok()) return of_peer(attached.status());
    peer->theirs = attached.value();
    world->arenas[rank] = peer->theirs;
    auto heap_of_peer = host::PeerHeap::attach(std::move(fds.value()[2]));
    if (!heap_of_peer.ok()) return of_peer(heap_of_peer.status());
    world->heaps[rank] = heap_of_peer.value();
    world->ringers[rank] = {peer->doorbell.get(), peer->theirs->sleep_word()};
    const auto outgoing = arena->ring_to(slot[rank]);
    const auto incoming = peer->theirs->ring_to(slot[me]);
    auto connection =
        transport::RingConnection::create("shm", outgoing, incoming, world->ringers[rank],
                                          std::move(sockets[rank]), world->loop.get(), peer);
    if (!connection.ok()) return of_peer(connection.status());
    peers[rank].connection = std::move(connection).value();
  }
  world->transport = std::make_unique<transport::TagTransport>(
      world->rank, world->epoch, std::move(peers), world->loop.get(), world->doorbell.get());
  std::vector<std::atomic<int64_t>*> boards;
  if (arena != nullptr) boards.push_back(arena->heard());
  for (size_t rank = 0; rank < size && arena != nullptr; ++rank) {
    if (rank != me && world->arenas[rank] != nullptr)
      boards.push_back(world->arenas[rank]->heard());
  }
  world->transport->share_signs_of_life(world->memory_host, std::move(boards));
  return {};
}

}  // namespace

bool World::shares_memory() const {
  return size == 1 || std::all_of(arenas.begin(), arenas.end(),
                                  [](const auto& arena) { return arena != nullptr; });
}

// This rank maps the memory of all ranks of its host and of no other.
bool World::shares_memory(const std::vector<Rank>& members) const {
  return std::all_of(members.begin(), members.end(),
                     [&](Rank member) { return arenas[static_cast<size_t>(member)] != nullptr; });
}

bool World::shares_some_memory(const std::vector<Rank>& members) const {
  return std::any_of(members.begin(), members.end(), [&](Rank member) {
    return member != rank && arenas[static_cast<size_t>(member)] != nullptr;
  });
}

algorithms::NativeGroup World::group(std::vector<Rank> members) const {
  algorithms::NativeGroup group;
  group.transport = transport.get();
  group.members = std::move(members);
  if (group.members.size() == 1) return group;
  const int here = memory_host[static_cast<size_t>(rank)];
  shm::ChannelGroup local;
  for (const Rank member : group.members) {
    const auto at = static_cast<size_t>(member);
    group.host_of.push_back(memory_host[at]);
    if (memory_host[at] != here || arenas[at] == nullptr) continue;
    if (member == rank) local.rank = static_cast<Rank>(local.arenas.size());
    local.arenas.push_back(arenas[at]);
    local.ringers.push_back({ringers[at].fd, arenas[at]->channel_word()});
    const auto& heap = heaps[at];
    local.heaps.push_back(heap ? shm::HeapView{heap->base(), heap->bytes()} : shm::HeapView{});
  }
  if (local.arenas.size() == group.members.size()) {
    group.arenas = std::move(local.arenas);
    group.ringers = std::move(local.ringers);
    group.heaps = std::move(local.heaps);
    group.host_of.clear();
    return group;
  }
  group.local = std::move(local);
  group.wire = host_wire;
  group.exchange = host_exchange;
  return group;
}

namespace {

Status join(Joining* joining, World* world) {
  RUEDA_ASSIGN_OR_RETURN(joining->unix_listener, listen_unix(1024));
  RUEDA_RETURN_IF_ERROR(exchange_places(joining, joining->unix_listener.address));
  for (const auto& place : joining->places) world->names.push_back(name_of(place));
  joining->verdict.set_names(world->names);
  const Config& config = joining->options.config;
  count_hosts(joining->places, !shares_inside_hosts(config), world);
  world->host_wire = host_wire_of(config);
  world->host_exchange = algorithms::exchange_named(config.host_exchange);
  RUEDA_RETURN_IF_ERROR(connect_all(joining));
  ClockTask clocks{world->rank,
                   {},
                   &world->names,
                   &joining->sockets,
                   joining->store,
                   joining->key_of("clock", 0),
                   [joining](Rank rank) { return joining->patience(rank); }};
  for (const auto& place : joining->places) clocks.hosts.push_back(place.host_id);
  RUEDA_ASSIGN_OR_RETURN(world->clock, compare_clocks(clocks));
  return build_connections(joining, world);
}

// Another rank's doing is said by all ranks in the same words, the agents' where they know it.
Status explain(Joining* joining, Status failure) {
  if (failure.code() == Code::kUnavailable && joining->options.agents_verdict) {
    if (auto text = joining->options.agents_verdict()) {
      (void)joining->verdict.settle(unavailable(*text));
      return unavailable(std::move(*text));
    }
  }
  return joining->verdict.settle(failure);
}

}  // namespace

Result<std::unique_ptr<World>> join_world(const JoinOptions& options, rendezvous::Store* store,
                                          const rendezvous::JobKey* key) {
  auto world = std::make_unique<World>();
  world->rank = options.place.rank;
  world->size = options.place.size;
  world->epoch = options.epoch;
  world->flight_fd = options.place.flight_fd;
  const auto timeout = std::chrono::duration<double>(options.config.start_timeout_seconds);
  Joining joining{options,
                  store,
                  key,
                  std::chrono::steady_clock::now() +
                      std::chrono::duration_cast<std::chrono::nanoseconds>(timeout),
                  {},
                  FirstVerdict(store, Joining::prefix_of(options.epoch), options.place.rank)};
  if (world->size == 1) {
    world->names = {"rank 0 (pid " + std::to_string(getpid()) + " on " + host_name() + ")"};
    joining.local = {true};
    world->memory_host = {0};
    RUEDA_RETURN_IF_ERROR(build_connections(&joining, world.get()));
    return world;
  }
  if (const Status joined = join(&joining, world.get()); !joined.ok())
    return explain(&joining, joined);
  RUEDA_DEBUG("bootstrap", "joined epoch {} as {} of {} ({} on this host), place from {}",
              world->epoch, world->names[static_cast<size_t>(world->rank)], world->size,
              world->local_size, options.place.source);
  return world;
}

std::optional<std::string> said_at_init(rendezvous::StoreClient* store, uint64_t epoch) {
  return FirstVerdict::said_earlier(store, Joining::prefix_of(epoch));
}

Result<std::vector<std::unique_ptr<World>>> make_inproc_worlds(Rank size, uint64_t epoch) {
  constexpr size_t kRingBytes = 64 << 10;
  const auto count = static_cast<size_t>(size);
  std::vector<std::unique_ptr<World>> worlds;
  for (Rank rank = 0; rank < size; ++rank) {
    auto world = std::make_unique<World>();
    world->rank = world->local_rank = rank;
    world->size = world->local_size = size;
    world->epoch = epoch;
    for (Rank peer = 0; peer < size; ++peer) {
      world->names.push_back("rank " + std::to_string(peer) + " (thread of pid " +
                             std::to_string(getpid()) + ")");
    }
    RUEDA_RETURN_IF_ERROR(make_doorbell(world.get(), nullptr));
    for (Rank peer = 0; peer < size; ++peer) world->memory_host.push_back(peer);
    worlds.push_back(std::move(world));
  }
  // One ring for every ordered pair. The worlds die in any order, so everything a ring or a ringer
  // touches is shared.
  struct alignas(128) Line {
    std::byte bytes[128];
  };
  struct Shared {
    std::vector<Line> memory;
    std::vector<std::shared_ptr<host::SleepWord>> words;
    std::vector<UniqueFd> doorbells;
  };
  const size_t lines = (host::ByteRing::bytes_for(kRingBytes) + sizeof(Line) - 1) / sizeof(Line);
  auto shared = std::make_shared<Shared>();
  shared->memory.resize(lines * count * count);
  for (const auto& world : worlds) {
    shared->words.emplace_back(std::move(world->private_word));
    shared->doorbells.emplace_back(dup(world->doorbell->fd()));
  }
  const auto ring = [&](size_t from, size_t to) {
    return host::ByteRing(shared->memory[(from * count + to) * lines].bytes, kRingBytes);
  };
  std::vector<std::vector<UniqueFd>> life(count);
  for (auto& row : life) row.resize(count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b) {
      RUEDA_RETURN_IF_ERROR(make_pair(&life[a][b], &life[b][a]));
    }
  }
  for (size_t me = 0; me < count; ++me) {
    std::vector<transport::TagTransport::Peer> peers(count);
    World& world = *worlds[me];
    world.arenas.resize(count);
    world.heaps.resize(count);
    for (size_t peer = 0; peer < count; ++peer) {
      world.ringers.push_back({shared->doorbells[peer].get(), shared->words[peer].get()});
      peers[peer].name = world.names[peer];
      if (peer == me) continue;
      RUEDA_ASSIGN_OR_RETURN(peers[peer].connection,
                             transport::RingConnection::create(
                                 "inproc", ring(me, peer), ring(peer, me), world.ringers[peer],
                                 std::move(life[me][peer]), world.loop.get(), shared));
    }
    world.transport = std::make_unique<transport::TagTransport>(
        world.rank, epoch, std::move(peers), world.loop.get(), world.doorbell.get());
    world.keep_alive = shared;
  }
  return worlds;
}

}  // namespace rueda::membership
