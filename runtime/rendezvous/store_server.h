// StoreServer: keeps the store of one job and serves it to its ranks, each over its own stream.
// Lives in the launcher's per-host agent.
//
// Owns:    the streams it is given, one thread, what was set and reported.
// Threads: every member from any thread; stop() from one.
// Failure: a client that sends what is no request, or vanishes, loses its connection and nobody
//          else notices; what one client can make the server remember is limited (kMaxStoredBytes,
//          kMaxReports, store_connection.h).
// End:     stop() or the destructor closes all streams (clients see that the launcher is gone) and
//          joins the thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/base/unique_fd.h"
#include "runtime/rendezvous/key_table.h"
#include "runtime/rendezvous/store_connection.h"

namespace rueda::rendezvous {

// What a rank said before it failed.
struct Report {
  Rank rank;
  std::string key;
  std::string value;
  std::chrono::system_clock::time_point time;
};

class StoreServer {
 public:
  static constexpr size_t kMaxStoredBytes = size_t{64} << 20;  // by one client
  static constexpr size_t kMaxReports = 64;                    // of one rank
  static constexpr size_t kMaxReportBytes = size_t{64} << 10;

  // `last_word`: a rank whose connection ends before it has set "<last_word>/<rank>" is taken for
  // dead. Empty: somebody else watches the ranks and calls mark_dead.
  static Result<std::unique_ptr<StoreServer>> start(std::string last_word = "");
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Serves `fd`, a connected stream socket, as `rank`'s. A rank that was dead is alive again.
  Status add(UniqueFd fd, Rank rank);
  // `rank` has died: every get of the other ranks that waits now, and every later one for a key of
  // that rank, ends with kUnavailable and this text.
  void mark_dead(Rank rank, const std::string& text);
  // In the order of arrival.
  std::vector<Report> reports() const;
  // How many connections are open, and what their buffers hold: for tests and diagnosis.
  size_t connections() const;
  size_t buffered_bytes() const;

  void stop();

 private:
  using Id = uint64_t;  // of a connection; never reused, unlike descriptors

  StoreServer(UniqueFd epoll, UniqueFd wake, std::string last_word)
      : last_word_(std::move(last_word)), epoll_(std::move(epoll)), wake_(std::move(wake)) {}

  void run();
  void serve(Id id, uint32_t events);
  void handle(StoreConnection& client, wire::StoreRequest request);
  Status handle_set(StoreConnection& client, const wire::StoreRequest& request);
  Status handle_report(const StoreConnection& client, const wire::StoreRequest& request);
  void handle_get(StoreConnection& client, wire::StoreRequest request);
  void handle_change(StoreConnection& client, const wire::StoreRequest& request);
  void answer_waiting_for(const std::string& key);
  void answer_late();
  void flush_all();
  void drop(Id id, const Status& why);
  int milliseconds_to_next_deadline() const;
  void wake();
  void end_waits(Rank dead, const std::string& text);

  const std::string last_word_;
  const UniqueFd epoll_;
  const UniqueFd wake_;  // eventfd: something outside the thread's sight has changed
  std::thread thread_;

  mutable std::mutex mutex_;  // everything below; held while the thread works, not while it sleeps
  bool stopping_ = false;
  KeyTable table_;
  std::map<Id, std::unique_ptr<StoreConnection>> clients_;
  Id next_id_ = 1;  // 0 is the eventfd
  std::map<Rank, uint64_t> hellos_;
  std::vector<Report> reports_;
};

}  // namespace rueda::rendezvous
