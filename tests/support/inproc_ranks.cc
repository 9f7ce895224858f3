#include "tests/support/inproc_ranks.h"

#include <unistd.h>

#include <utility>

#include "collectives/transport/ring_connection.h"
#include "runtime/membership/sockets.h"

namespace rueda::testing {
namespace {

using membership::Joined;

constexpr size_t kRingBytes = 64 << 10;

struct alignas(128) Line {
  std::byte bytes[128];
};

// One ring for every ordered pair, and what a ringer touches: shared, as ranks end in any order.
struct Shared {
  explicit Shared(size_t ranks) : count(ranks), memory(kLines * ranks * ranks) {}

  host::ByteRing ring(size_t from, size_t to) {
    return host::ByteRing(memory[(from * count + to) * kLines].bytes, kRingBytes);
  }

  const size_t count;
  inline static const size_t kLines =
      (host::ByteRing::bytes_for(kRingBytes) + sizeof(Line) - 1) / sizeof(Line);
  std::vector<Line> memory;
  std::vector<std::shared_ptr<host::SleepWord>> words;
  std::vector<UniqueFd> doorbells;
};

std::vector<std::vector<UniqueFd>> sockets_of(size_t count) {
  std::vector<std::vector<UniqueFd>> sockets(count);
  for (auto& row : sockets) row.resize(count);
  return sockets;
}

}  // namespace

Result<std::vector<std::unique_ptr<Joined>>> make_inproc_ranks(Rank size, uint64_t epoch) {
  const auto count = static_cast<size_t>(size);
  const auto shared = std::make_shared<Shared>(count);
  std::vector<std::unique_ptr<Joined>> ranks;
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  const std::vector<membership::Introduction> members(count, {"this process", host, getpid()});
  for (Rank rank = 0; rank < size; ++rank) {
    auto& joined = ranks.emplace_back(std::make_unique<Joined>());
    joined->membership = membership::Membership::of(epoch, rank, members);
    joined->memory.rank = rank;
    for (Rank peer = 0; peer < size; ++peer) joined->memory.host_of.push_back(peer);
    joined->memory.arenas.resize(count);
    joined->memory.heaps.resize(count);
    RUEDA_RETURN_IF_ERROR(joined->fabric.open(nullptr));
    joined->fabric.keep_alive = shared;
    shared->words.emplace_back(std::move(joined->fabric.private_word));
    shared->doorbells.emplace_back(dup(joined->fabric.doorbell->fd()));
  }
  auto life = sockets_of(count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b)
      RUEDA_RETURN_IF_ERROR(membership::make_pair(&life[a][b], &life[b][a]));
  }
  for (size_t me = 0; me < count; ++me) {
    std::vector<transport::TagTransport::Peer> peers(count);
    membership::Fabric& fabric = ranks[me]->fabric;
    for (size_t peer = 0; peer < count; ++peer) {
      fabric.ringers.push_back({shared->doorbells[peer].get(), shared->words[peer].get()});
      peers[peer].name = ranks[me]->membership.names[peer];
      if (peer == me) continue;
      RUEDA_ASSIGN_OR_RETURN(
          peers[peer].connection,
          transport::RingConnection::create("inproc", shared->ring(me, peer),
                                            shared->ring(peer, me), fabric.ringers[peer],
                                            std::move(life[me][peer]), fabric.loop.get(), shared));
    }
    fabric.transport = std::make_unique<transport::TagTransport>(
        static_cast<Rank>(me), epoch, std::move(peers), fabric.loop.get(), fabric.doorbell.get());
  }
  return ranks;
}

}  // namespace rueda::testing
