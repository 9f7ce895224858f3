// StoreServer: keeps the store of one job and serves it to its members, each over its own stream.
// Lives in the launcher: in its process of the host, or in the controller of several.
//
// A member is one process of the job, a rank its number in one epoch: begin_epoch() says who is
// who. Until the first one a member's number is its rank.
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
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/base/unique_fd.h"
#include "runtime/rendezvous/key_table.h"
#include "runtime/rendezvous/store_connection.h"
#include "runtime/rendezvous/store_journal.h"

namespace rueda::rendezvous {

// What a member said before it failed.
struct Report {
  uint64_t member;
  std::string key;
  std::string value;
  std::chrono::system_clock::time_point time;
};

// A member asks to enter an epoch.
struct Entry {
  uint64_t member;
  wire::Standing standing;
};

class StoreServer {
 public:
  static constexpr size_t kMaxStoredBytes = size_t{64} << 20;  // by one client
  static constexpr size_t kMaxReports = 64;                    // of one member
  static constexpr size_t kMaxReportBytes = size_t{64} << 10;
  static constexpr size_t kMostDone = 16;  // answers of a member that outlive us

  // `last_word`: a rank whose connection ends before it has set "<last_word>/<rank>" is taken for
  // dead. Empty: somebody else watches the ranks and calls mark_dead. `journal`: of what changes
  // the store, which begins as the server did that wrote it; null: none.
  static Result<std::unique_ptr<StoreServer>> start(
      std::string last_word = "", std::unique_ptr<StoreJournal> journal = nullptr);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Serves `fd`, a connected stream socket, as `member`'s. One that was dead is alive again.
  Status add(UniqueFd fd, uint64_t member);
  // `member` has died: every get of the others that waits now, and every later one for a key of its
  // rank, ends with kUnavailable and this text. Nobody waits for one that is in no epoch.
  void mark_dead(uint64_t member, const std::string& text);

  // From now on ranks are these members', who are told so next (answer). Keys of epochs that all of
  // them have left are dropped: the one before stays, since whoever was first to leave it in order
  // may be here while others still read in it. Deaths of members that are no more are forgotten.
  void begin_epoch(uint64_t epoch, std::vector<uint64_t> members_by_rank);
  uint64_t epoch() const;  // that began last
  // Who has asked to enter since the last call, in order; entries_fd() becomes readable with the
  // first. Who asks the same again, since a signal interrupted it, does not come again.
  std::vector<Entry> take_entries();
  int entries_fd() const { return entries_fd_.get(); }
  // Does nothing when the member does not wait (any more).
  void answer(uint64_t member, const wire::NewEpoch& epoch);

  // In the order of arrival.
  std::vector<Report> reports() const;
  // How many connections are open, and what their buffers hold: for tests and diagnosis.
  size_t connections() const;
  size_t buffered_bytes() const;

  void stop();

 private:
  using Id = uint64_t;  // of a connection; never reused, unlike descriptors

  StoreServer(UniqueFd epoll, UniqueFd wake, UniqueFd entries, std::string last_word,
              std::unique_ptr<StoreJournal> journal)
      : last_word_(std::move(last_word)),
        journal_(std::move(journal)),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)),
        entries_fd_(std::move(entries)) {}

  void run();
  void serve(Id id, uint32_t events);
  void handle(StoreConnection& client, wire::StoreRequest request);
  Status handle_set(StoreConnection& client, const wire::StoreRequest& request);
  Status handle_report(uint64_t member, const wire::StoreRequest& request);
  void handle_get(StoreConnection& client, wire::StoreRequest request);
  void handle_change(StoreConnection& client, const wire::StoreRequest& request);
  struct Changed {
    Status status;
    KeyTable::Value value;
    uint64_t number = 1;
  };
  Changed change(const wire::StoreRequest& request);
  const Changed* done_before(uint64_t member, uint64_t id) const;
  void remember(uint64_t member, uint64_t id, Changed changed);
  void restore();
  void write_down(uint64_t member, const wire::StoreRequest& request);
  std::vector<StoreJournal::Entry> entries_of_now() const;
  void handle_enter(StoreConnection& client, const wire::StoreRequest& request);
  void answer_waiting_for(const std::string& key);
  void answer_late();
  void flush_all();
  void drop(Id id, const Status& why);
  int milliseconds_to_next_deadline() const;
  void wake();
  void end_waits(uint64_t dead, const std::string& text);
  // Nothing when it is in no epoch.
  std::optional<Rank> rank_of(uint64_t member) const;
  std::string name_of(uint64_t member) const;

  const std::string last_word_;
  const std::unique_ptr<StoreJournal> journal_;  // null: none; under mutex_
  const UniqueFd epoll_;
  const UniqueFd wake_;  // eventfd: something outside the thread's sight has changed
  const UniqueFd entries_fd_;
  std::thread thread_;

  mutable std::mutex mutex_;  // everything below; held while the thread works, not while it sleeps
  bool stopping_ = false;
  KeyTable table_;
  std::map<Id, std::unique_ptr<StoreConnection>> clients_;
  Id next_id_ = 1;                                      // 0 is the eventfd
  uint64_t epoch_ = 0;                                  // that began last; 0: none yet
  std::vector<uint64_t> members_;                       // of it, by rank
  std::vector<std::pair<uint64_t, std::string>> dead_;  // members, in the order of their deaths
  std::vector<Report> reports_;
  std::vector<Entry> entries_;  // not taken yet
  // By member: what was done last, with the numbers of the requests. It may be asked of who serves
  // the store after us, since the answer may have been lost; as it was before us.
  std::map<uint64_t, std::deque<std::pair<uint64_t, Changed>>> done_;
};

}  // namespace rueda::rendezvous
