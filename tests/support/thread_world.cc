#include "tests/support/thread_world.h"

#include "runtime/membership/native_group.h"
#include "runtime/membership/sockets.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/memory_store.h"
#include "tests/support/fake_mpi.h"
#include "tests/support/faulty_connection.h"
#include "tests/support/inproc_ranks.h"

namespace rueda::testing {

namespace {
// Longer than a frame takes otherwise, short enough for thousands of collectives.
constexpr std::chrono::microseconds kMostHeld{300};
}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kInproc: return "inproc";
    case Kind::kShm: return "shm";
    case Kind::kTcp: return "tcp";
    case Kind::kTcp6: return "tcp6";
    case Kind::kHybrid: return "hybrid";
    case Kind::kMpi: return "mpi";
    case Kind::kPairs: return "pairs";
    case Kind::kTriples: return "triples";
    case Kind::kLateTcp: return "late tcp";
    case Kind::kLatePairs: return "late pairs";
    case Kind::kStriped: return "striped";
  }
  return "?";
}

bool has_ipv6() { return membership::listen_tcp("::1", 1).ok(); }

algorithms::NativeGroup ThreadRank::group(std::vector<Rank> members) const {
  return membership::native_group(config, memory(), fabric(), std::move(members));
}

std::vector<std::unique_ptr<ThreadRank>> make_worlds(Kind kind, Rank size, Config config,
                                                     const ConnectionWrapper& wrap) {
  if (kind == Kind::kLateTcp || kind == Kind::kLatePairs) {
    const uint64_t seed = fault_seed();
    return make_worlds(kind == Kind::kLateTcp ? Kind::kTcp : Kind::kPairs, size, std::move(config),
                       [seed](Rank rank, Rank peer, auto connection, auto* loop) {
                         const ConnectionFaults faults{
                             seed + static_cast<uint64_t>(1000 * rank + peer), kMostHeld};
                         return std::make_unique<FaultyConnection>(std::move(connection), loop,
                                                                   faults);
                       });
  }
  if (kind == Kind::kInproc) {
    std::vector<std::unique_ptr<ThreadRank>> ranks;
    for (auto& joined : must(make_inproc_ranks(size, 1)))
      ranks.push_back(std::make_unique<ThreadRank>(ThreadRank{std::move(joined), config}));
    return ranks;
  }
  rendezvous::MemoryStore store;
  const rendezvous::JobKey key = must(rendezvous::JobKey::make_random());
  if (kind == Kind::kTcp || kind == Kind::kTcp6 || kind == Kind::kStriped) config.transport = "tcp";
  if (kind == Kind::kStriped) config.tcp_streams = 3;
  if (kind == Kind::kTcp6) config.tcp_address = "::1";
  if (kind == Kind::kMpi) config.transport = "mpi-only";
  const auto mpi = kind == Kind::kMpi ? std::make_shared<FakeMpi>(size) : nullptr;
  return on_ranks(size, [&](Rank rank) {
    membership::JoinOptions options;
    options.place.rank = rank;
    options.place.size = size;
    options.place.job_id = "test";
    options.config = config;
    if (mpi != nullptr) options.mpi = mpi->engine(rank, 1000 + 37 * static_cast<size_t>(rank));
    if (kind == Kind::kHybrid) options.config.host_id = rank % 2 == 0 ? "even" : "odd";
    if (kind == Kind::kPairs) options.config.host_id = "pair " + std::to_string(rank / 2);
    if (kind == Kind::kTriples) options.config.host_id = "triple " + std::to_string(rank / 3);
    if (wrap) {
      options.wrap_connection = [&wrap, rank](Rank peer,
                                              std::unique_ptr<transport::Connection> connection,
                                              host::EventLoop* loop) {
        return wrap(rank, peer, std::move(connection), loop);
      };
    }
    return std::make_unique<ThreadRank>(
        ThreadRank{must(membership::join(options, &store, &key)), config});
  });
}

Status drive(ThreadRank& world, Communicator& communicator, Collective& collective,
             const CallContext& context) {
  collective.start(context);
  return finish(world, communicator, collective);
}

Status finish(ThreadRank& world, Communicator& communicator, Collective& collective) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  const auto step = [&] {
    bool moved = world.transport().progress();
    moved |= communicator.progress();
    moved |= collective.advance();
    moved |= communicator.progress();
    return moved;
  };
  while (!collective.done()) {
    if (std::chrono::steady_clock::now() > deadline)
      return deadline_exceeded("the collective does not end");
    if (step()) continue;
    world.fabric().doorbell->arm();
    world.fabric().doorbell->arm_channel();
    if (step()) {
      world.fabric().doorbell->disarm();
      continue;
    }
    world.transport().park(std::chrono::seconds(60));
  }
  // What is still in the queues belongs to the peers.
  while (!world.transport().flushed()) {
    if (!world.transport().progress()) world.transport().park(std::chrono::milliseconds(1));
  }
  return collective.status();
}

RuntimeWorld::RuntimeWorld(Kind kind, Rank size, Config config, const ConnectionWrapper& wrap,
                           std::optional<host::WaitPolicy> waiting) {
  for (auto& world : make_worlds(kind, size, config, wrap)) {
    runtimes_.push_back(
        must(engine::Runtime::create(config, std::move(world->joined), {}, waiting)));
  }
}

RuntimeWorld::~RuntimeWorld() {
  std::vector<std::thread> threads;
  for (auto& runtime : runtimes_) threads.emplace_back([&runtime] { runtime->shutdown(); });
  for (auto& thread : threads) thread.join();
}

}  // namespace rueda::testing
