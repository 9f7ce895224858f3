// What the agent of a job over several hosts tells its driver, and what it is told. On one host
// there is none: the agent then holds the store and the console itself.
//
// Used by the agent's thread alone; what arrives is taken in with work().
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "launcher/exit_report.h"
#include "launcher/host_report.h"
#include "launcher/rank_output.h"

namespace rueda::launcher {

// Something that happened elsewhere and that this host's ranks are to be stopped for, or a wish of
// the driver.
struct Order {
  enum class Kind {
    kRankFailed,
    kRankLost,
    kSignal,
    kUserSignal,
    kOutputClosed,
    kKill,
    kObserve,
    kMail,
    kDrain
  };
  Kind kind = Kind::kKill;
  int signal = 0;         // of kSignal, kUserSignal
  life::LostRank lost;    // of kRankLost: the job's verdict, for every rank of this host
  HostQuestion question;  // of kObserve
  Rank rank = 0;          // of kMail
  std::string text;       // of kMail
};

class Uplink {
 public:
  virtual ~Uplink() = default;

  // The driver keeps the store: what the rank writes to its socket is carried there, and back.
  virtual Status attach(UniqueFd agent_end, Rank rank) = 0;
  virtual std::unique_ptr<OutputTaker> output_of(Rank rank) = 0;
  // The driver takes output more slowly than the ranks write: read no more from them for now.
  virtual bool congested() const = 0;

  // Descriptors to wait for, and how long at most; then work() does what is due.
  virtual void add_to_poll(std::vector<pollfd>* fds) const = 0;
  virtual int poll_limit_ms() const = 0;
  virtual std::vector<Order> work() = 0;

  virtual void rank_started(Rank rank, pid_t pid) = 0;
  virtual void rank_ended(const RankEnd& end) = 0;
  // A verdict on a rank of this host, perhaps without its cause, which comes with a second call.
  // The driver sends the job's first one to every agent as an order.
  virtual void rank_lost(const life::LostRank& lost) { static_cast<void>(lost); }
  virtual void say(const std::string& text) = 0;
  // Answers to kObserve and kDrain; the ranks' counters go with the next sign of life.
  virtual void report(HostReport report) { static_cast<void>(report); }
  virtual void drained(int asked, int ranks) { static_cast<void>(asked), static_cast<void>(ranks); }
  virtual void count(const std::vector<RankCounters>& counters) { static_cast<void>(counters); }
  // Every process of this host's ranks has ended. `failure`: why we could not do our part, else
  // empty. Returns when the driver has said goodbye, or is gone: until then it may have orders.
  using Follow = std::function<void(const std::vector<Order>&)>;
  virtual void finish(const std::string& failure, const Follow& follow) = 0;
  // It ended without a goodbye.
  virtual bool driver_was_lost() const { return false; }
};

}  // namespace rueda::launcher
