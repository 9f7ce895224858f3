// StoreClient: a rank's end of the store that its launcher keeps.
//
// Owns:    the stream; marks it close-on-exec, so that what the rank starts does not inherit it.
// Threads: any number at once. There is no thread inside: one of the callers who wait reads for
//          all, and hands over when its own answer has come.
// Failure: kUnavailable naming the launcher once the stream is lost or the launcher sends nonsense,
//          for every call then under way and every later one. kDeadlineExceeded, and the stream is
//          given up, when the launcher itself does not answer (kGrace beyond what was asked). What
//          is only worth a moment (peek, report) ends alone after that moment; the stream stays.
// End:     the destructor closes the stream; no call may be under way. Nothing was read ahead, and
//          late replies are known by their numbers, so a duplicate of the descriptor serves the
//          next client.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "collectives/base/unique_fd.h"
#include "collectives/host/fork_guard.h"
#include "proto/messages.h"
#include "runtime/rendezvous/poll_until.h"
#include "runtime/rendezvous/store.h"

namespace rueda::rendezvous {

class StoreClient : public Store {
 public:
  static constexpr std::chrono::seconds kGrace{30};
  static constexpr std::chrono::seconds kMoment{2};

  // `fd`: a connected stream socket whose other end was given to StoreServer::add. `keeper`: who
  // keeps the store, for errors.
  explicit StoreClient(UniqueFd fd, std::string keeper = "the launcher", Rank keeper_rank = -1);

  Status set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) override;

  // The users' keys, whose names get kUserKeys in front; get() waits for them too.
  Status put(const std::string& key, const std::string& value);
  // Adds to the whole number that the key holds as text, 0 where it is not set; the sum.
  Result<int64_t> add(const std::string& key, int64_t amount);
  struct Held {
    bool is_set = false;
    std::string value;
  };
  // Where the key holds `expected`, or is not set and that is empty; what it holds now.
  Result<Held> compare_set(const std::string& key, const std::string& expected,
                           const std::string& desired);
  // Whether it was set.
  Result<bool> erase(const std::string& key);
  Result<std::string> get_user(const std::string& key, std::chrono::nanoseconds timeout) {
    return get(kUserKeys + key, timeout);
  }

  // What the key holds now, asked by somebody whose own news must not wait for a stopped launcher:
  // kDeadlineExceeded after kMoment, or when the key is not set.
  Result<std::string> peek(const std::string& key);

  // Asks to enter an epoch and waits until that is decided, which may take long. With `given_up` it
  // is kAborted when a signal came meanwhile: ask again with the same standing, and nothing is
  // lost. One may come just before the wait, or while another thread reads for this one: where the
  // deadline is beyond kGrace it is kAborted once in a while (kSignalsLook) in any case. And it is
  // kFailedPrecondition soon after another thread has set `given_up`.
  Result<wire::NewEpoch> enter(const wire::Standing& standing, Deadline deadline,
                               const std::atomic<bool>* given_up = nullptr);
  // Tells the launcher something that it keeps until the end, and waits kMoment for its answer.
  // key: "failure", why this rank fails; or "summary", a RankSummary, of which the last one counts.
  Status report(const std::string& key, const std::string& value);

 private:
  // Whether a launcher that does not answer in time costs the stream, or this call alone; the last
  // one ends at a signal, too.
  enum class Late { kGiveUp, kForget };
  static constexpr std::chrono::milliseconds kGivenUpLook{100}, kSignalsLook{1000};
  Result<wire::StoreReply> call(wire::StoreRequest request, Deadline deadline,
                                Late late = Late::kGiveUp,
                                const std::atomic<bool>* given_up = nullptr);
  Result<wire::StoreReply> change(wire::StoreOp op, const std::string& key,
                                  const std::string& value, const std::string& expected = "");
  Status send_frame(const std::string& frame, Deadline deadline);
  Status read_reply(wire::StoreReply* reply, Deadline deadline);
  Status read_exactly(std::string* out, size_t bytes, Deadline deadline);
  void give_up(const Status& why);
  Status keeper_gone() const;
  Status keeper_silent() const;

  const std::string keeper_;
  const Rank keeper_rank_;
  const host::GuardedFd fd_;  // a forked child is no client

  std::mutex send_mutex_;  // one frame at a time; never taken while mutex_ is held

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_id_;  // guarded by mutex_, as what follows
  std::map<uint64_t, std::optional<wire::StoreReply>> waiting_;  // by id
  bool someone_reads_ = false;
  Status broken_;  // the first reason, for everyone
};

}  // namespace rueda::rendezvous
