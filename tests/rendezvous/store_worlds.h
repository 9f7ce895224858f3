// The stores that the conformance suite runs over: the same interface, ranks with an end each.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/base/check.h"
#include "runtime/rendezvous/memory_store.h"
#include "runtime/rendezvous/store_client.h"
#include "runtime/rendezvous/store_server.h"

namespace rueda::rendezvous::testing {

inline std::pair<UniqueFd, UniqueFd> stream_pair() {
  int fds[2];
  RUEDA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "socketpair");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

class StoreWorld {
 public:
  virtual ~StoreWorld() = default;
  virtual Store& of(Rank rank) = 0;
  virtual void mark_dead(Rank rank, const std::string& text) = 0;
};

class MemoryWorld : public StoreWorld {
 public:
  explicit MemoryWorld(Rank) {}
  Store& of(Rank) override { return store_; }
  void mark_dead(Rank rank, const std::string& text) override { store_.mark_dead(rank, text); }

 private:
  MemoryStore store_;
};

class SocketWorld : public StoreWorld {
 public:
  explicit SocketWorld(Rank size) : server_(std::move(StoreServer::start()).value()) {
    for (Rank rank = 0; rank < size; ++rank) {
      auto [ours, theirs] = stream_pair();
      RUEDA_CHECK(server_->add(std::move(theirs), static_cast<uint64_t>(rank)).ok(), "add");
      clients_.push_back(std::make_unique<StoreClient>(std::move(ours)));
    }
  }
  Store& of(Rank rank) override { return client(rank); }
  StoreClient& client(Rank rank) { return *clients_[static_cast<size_t>(rank)]; }
  StoreServer& server() { return *server_; }
  void mark_dead(Rank rank, const std::string& text) override {
    server_->mark_dead(static_cast<uint64_t>(rank), text);
  }

 private:
  std::unique_ptr<StoreServer> server_;
  std::vector<std::unique_ptr<StoreClient>> clients_;
};

}  // namespace rueda::rendezvous::testing
