// HostedStore: the store that rank 0 keeps while ranks meet that no agent started.
//
// Whoever connects proves that it has the key before anything is parsed; over a unix socket it
// must be a process of this user, and is given the key. The listener is closed as soon as all ranks
// have come. A rank whose connection ends before it has set "<last word>/<rank>" is dead.
//
// Owns:    listener, one thread for arrivals, the StoreServer with its own thread.
// End:     the destructor stops both; clients then see that rank 0 is gone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/base/types.h"
#include "runtime/membership/guest.h"
#include "runtime/membership/sockets.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/store_server.h"

namespace rueda::launchers {

struct Door {
  membership::Listener listener;
  bool local = false;  // a unix socket
  uint64_t epoch = 0;
  std::string purpose;  // both ends of a handshake name the same
  Rank size = 1;
};

class HostedStore {
 public:
  static Result<std::unique_ptr<HostedStore>> open(Door door, const rendezvous::JobKey& key,
                                                   std::string last_word);
  ~HostedStore();

  // Rank 0's own connection.
  Result<UniqueFd> own_stream();
  // The numeric address of this host under which the first of the others came, for whom it waits;
  // empty over a unix socket or loopback, or when nobody came in time.
  std::string reached_at(membership::Deadline deadline) const;

 private:
  HostedStore(Door door, const rendezvous::JobKey& key) : door_(std::move(door)), key_(key) {}

  void run();
  bool crowded() const;
  void accept_all();
  void serve_all();
  void say_who_is_missing();
  size_t missing() const;

  Door door_;
  const rendezvous::JobKey key_;
  std::unique_ptr<rendezvous::StoreServer> server_;
  UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  // Of the thread alone:
  std::vector<bool> here_;
  std::list<membership::Guest> guests_;
  membership::Deadline next_word_;
  // Guarded by mutex_:
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  std::optional<std::string> reached_at_;
};

}  // namespace rueda::launchers
