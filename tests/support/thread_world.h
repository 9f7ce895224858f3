// ThreadWorld: n ranks as threads of the test's process, on real transports: the tests' world.
//
//   inproc   rings in heap memory
//   shm      memfd arenas passed over unix sockets, one mapping per arena
//   tcp      IPv4 loopback
//   tcp6     IPv6 loopback
//   hybrid   even and odd ranks count as two hosts: shared memory inside, tcp between
//   mpi      the MPI transport over an MPI of our own (fake_mpi.h), in chunks of odd sizes
//   pairs    two neighbours count as a host (the last one may be alone)
//   triples  three do
//   striped  tcp over three connections to each peer
//   late tcp, late pairs  frames between hosts are held back for random times (faulty_connection.h)
//
// Assertions belong to the main thread (Catch2 v2 is not thread-safe): rank functions return
// values, or throw Failure.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "collectives/base/config.h"
#include "collectives/host/wait_policy.h"
#include "runtime/engine/runtime.h"
#include "runtime/membership/join.h"
#include "tests/support/collectives.h"

namespace rueda::testing {

// RUEDA_TEST_SHORT leaves out sizes, never kinds of cases: for the sanitizer runs.
inline bool is_short() { return std::getenv("RUEDA_TEST_SHORT") != nullptr; }

enum class Kind {
  kInproc,
  kShm,
  kTcp,
  kTcp6,
  kHybrid,
  kPairs,
  kTriples,
  kMpi,
  kLateTcp,
  kLatePairs,
  kStriped
};
// All but the late ones and striped.
inline constexpr Kind kAllKinds[] = {Kind::kInproc, Kind::kShm,   Kind::kTcp,     Kind::kTcp6,
                                     Kind::kHybrid, Kind::kPairs, Kind::kTriples, Kind::kMpi};
const char* name_of(Kind kind);

// Thrown by must(): the test fails with the rank and the text.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void must(const Status& status) {
  if (!status.ok()) throw Failure(status.to_string());
}
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw Failure(result.status().to_string());
  return std::move(result).value();
}

// True when this machine has an IPv6 loopback; without it tcp6 cells are listed as not run.
bool has_ipv6();

// What stands between a rank and its TCP connection to a peer.
using ConnectionWrapper = std::function<std::unique_ptr<transport::Connection>(
    Rank rank, Rank peer, std::unique_ptr<transport::Connection>, host::EventLoop*)>;

// What joining has given one rank.
struct ThreadRank {
  std::unique_ptr<membership::Joined> joined;
  Config config;

  const membership::Membership& membership() const { return joined->membership; }
  const membership::HostMemory& memory() const { return joined->memory; }
  membership::Fabric& fabric() const { return joined->fabric; }
  transport::TagTransport& transport() const { return *joined->fabric.transport; }
  Rank rank() const { return joined->membership.rank; }
  Rank size() const { return joined->membership.size; }
  algorithms::NativeGroup group(std::vector<Rank> members) const;
};

// One for each rank, connected. Config is each rank's (host_id and transport are set by the kind).
std::vector<std::unique_ptr<ThreadRank>> make_worlds(Kind kind, Rank size, Config config = {},
                                                     const ConnectionWrapper& wrap = {});

// A collective that has been started, driven by hand: until it is done or ten minutes have passed.
Status finish(ThreadRank& world, Communicator& communicator, Collective& collective);
// Starts it too.
Status drive(ThreadRank& world, Communicator& communicator, Collective& collective,
             const CallContext& context = {});
inline Status drive(ThreadRank& world, Communicator& communicator,
                    const CollectivePtr& collective) {
  return drive(world, communicator, *collective);
}

// Runs fn(rank) on one thread per rank; gives back what each returned. The first exception is
// thrown again here, with the rank's number in front.
template <typename Function>
auto on_ranks(Rank size, Function fn) -> std::vector<decltype(fn(Rank{}))> {
  using Value = decltype(fn(Rank{}));
  std::vector<std::unique_ptr<Value>> values(static_cast<size_t>(size));
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        values[static_cast<size_t>(rank)] = std::make_unique<Value>(fn(rank));
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(rank)] = e.what();
        // At once: the others may wait for this rank.
        std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(rank), e.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<Value> result;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (values[rank] == nullptr)
      throw Failure("rank " + std::to_string(rank) + ": " + errors[rank]);
    result.push_back(std::move(*values[rank]));
  }
  return result;
}

// A Runtime per rank, as threads. Shut down together by the destructor.
class RuntimeWorld {
 public:
  RuntimeWorld(Kind kind, Rank size, Config config = {}, const ConnectionWrapper& wrap = {},
               std::optional<host::WaitPolicy> waiting = {});
  ~RuntimeWorld();
  Rank size() const { return static_cast<Rank>(runtimes_.size()); }
  engine::Runtime& operator[](Rank rank) { return *runtimes_[static_cast<size_t>(rank)]; }
  // fn(rank, runtime) on one thread per rank.
  template <typename Function>
  auto run(Function fn) {
    return on_ranks(size(), [&](Rank rank) { return fn(rank, (*this)[rank]); });
  }

 private:
  std::vector<std::unique_ptr<engine::Runtime>> runtimes_;
};

}  // namespace rueda::testing
