// LifeWatch: how an agent knows at once that a rank of its host has died or gone silent, and how
// the verdict reaches the others.
//
//   robust futex   one thread per rank sleeps on it: the kernel wakes it at the very start of a
//                  process's end, whatever memory is still to be freed
//   crash word     a signal handler rang the alarm: the core dump comes before the end
//   /proc          a rank whose counters stand still is looked at: stopped, traced, dumping core
//
// Evidence becomes a verdict here and nowhere else; the first one of the job wins
// (JobBooks::rank_lost).
//
// Owns:    a life page and an eventfd per rank, the threads, until it is told to forget the rank.
// Threads: the agent's, unless said.
// Failure: where a page cannot be made the rank is not started; where no thread can be, started()
// says so.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/base/types.h"
#include "launcher/job/member.h"
#include "launcher/job/supervisor.h"
#include "launcher/processes/silence.h"
#include "runtime/observe/life/life_page.h"

namespace rueda::launcher {

class LifeWatch {
 public:
  // host: as verdicts name it.
  static Result<std::unique_ptr<LifeWatch>> create(std::string host, Duration dead_after);
  ~LifeWatch();
  LifeWatch(const LifeWatch&) = delete;
  LifeWatch& operator=(const LifeWatch&) = delete;

  // What a rank about to be started inherits, and its variable RUEDA_LIFE_FDS. The descriptors stay
  // this object's.
  struct Handed {
    std::vector<int> fds;
    std::string variable;
  };
  Result<Handed> add(MemberId member, Rank rank);
  Status started(MemberId member, pid_t pid);
  // The ranks are stopped because the user wants it, until the opposite is said: that is no
  // silence.
  void pause(bool paused) { paused_ = paused; }
  // Which rank it is in the epoch that begins.
  void set_rank(MemberId member, Rank rank);
  // It is to end: that, and its silence, is no loss.
  void expect_end(MemberId member);
  // It has been reaped: nothing is looked at any more.
  void ended(MemberId member);
  // Nor asked: all that belonged to it is given back.
  void forget(MemberId member);

  // Two descriptors that become readable when look() has something to see.
  void add_to_poll(std::vector<pollfd>* fds) const;
  std::optional<TimePoint> next_deadline() const { return next_look_; }

  struct Findings {
    std::vector<life::LostRank> lost;  // in the order in which they were noticed
    // Their end was noticed, and no thread of them can run any more. Not told of who has been
    // reaped.
    std::vector<MemberId> fenced;
    std::vector<std::string> remarks;  // for the user: who is silent, who goes on
  };
  // Kills ranks that have been stopped for too long.
  Findings look(TimePoint now);

  // The verdict on a rank whose end was noticed otherwise: what the page knows, and this cause.
  life::LostRank verdict(MemberId member, pid_t pid, const std::string& cause, bool is_final) const;
  // How long its threads have waited for operations so far.
  std::chrono::nanoseconds waited(MemberId member) const;
  // It has not left the job in order: it was in it, or never came as far.
  bool has_not_left(MemberId member) const;
  // It is known to have ended, and yet its process runs: exec has put another program in its place.
  bool was_replaced(MemberId member) const;
  // It has begun to join the job.
  bool has_joined(MemberId member) const;
  // The process that did; 0: none yet.
  pid_t joined_pid(MemberId member) const;
  // The UUID of the GPU that it uses; "": none yet.
  std::string gpu(MemberId member) const;
  // It did, as another process than the one that was started (a shell that has more to do).
  bool has_joined_inside(MemberId member) const;
  // The ranks of this host get the verdict, or its newer version, from whatever host it comes:
  // those that are in its epoch, or have not come to it yet, give up. What is told of an earlier
  // epoch than the last is no news to anybody.
  void tell(const life::LostRank& lost);
  // The members of this host are about to change: serial << 8 | changes (LifePage::announced).
  void announce(uint64_t word);

 private:
  struct Watched {
    explicit Watched(life::LifeMapping mapping) : page(std::move(mapping)) {}
    MemberId member = kNoMember;
    Rank rank = 0;
    pid_t pid = 0;
    bool running = false;
    bool given = false;                // its verdict; or none will be
    std::optional<TimePoint> lost_at;  // our verdict
    bool fenced = false;
    life::LifeMapping page;
    UniqueFd page_fd, news;
    std::thread waiter;
    std::atomic<int64_t> died_ns{0};  // by the waiter
    std::atomic<bool> waiter_stops{false}, waiter_ended{false};
    // The process in the job, where it is another than `pid`, since it was seen there.
    pid_t inside = 0;
    uint64_t inside_since = 0;
    std::optional<TimePoint> crash_seen;
    std::optional<Silence> silence;
    std::string kill_reason;  // we killed it for this
  };

  LifeWatch(std::string host, Duration dead_after)
      : host_(std::move(host)), dead_after_(dead_after) {}
  void wait_for_end(Watched* watched);
  static void stop_waiter(Watched* watched);
  std::optional<std::string> cause_of(Watched* watched, TimePoint now);
  static bool look_at_threads(Watched* watched, TimePoint now, Findings* findings);
  void look_at_silence(Watched* watched, TimePoint now, Findings* findings);
  static pid_t member_of(const Watched& watched);
  static void look_inside(Watched* watched);
  static bool is_fenced(const Watched& watched);
  Watched* find(MemberId member) const;

  const std::string host_;
  const Duration dead_after_;
  UniqueFd deaths_;                              // eventfd: a waiter has woken
  UniqueFd alarm_;                               // eventfd that all ranks have
  std::vector<std::unique_ptr<Watched>> ranks_;  // of all members
  uint64_t told_epoch_ = 0;                      // that ended last; 0: none, or the job
  bool paused_ = false;
  std::optional<TimePoint> next_look_;
  TimePoint last_look_{};
};

}  // namespace rueda::launcher
