// What the agent of a job over several hosts tells its controller, and what it is told. On one host
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
#include "launcher/hosts/order.h"
#include "launcher/job/exit_report.h"
#include "launcher/observe/host_report.h"
#include "launcher/output/rank_output.h"

namespace rueda::launcher {

class ControllerClient {
 public:
  virtual ~ControllerClient() = default;

  // The controller keeps the store: what the rank writes to its socket is carried there, and back.
  virtual Status attach(UniqueFd agent_end, Rank rank) = 0;
  virtual std::unique_ptr<OutputTaker> output_of(Rank rank) = 0;
  // The controller takes output more slowly than the ranks write: read no more from them for now.
  virtual bool congested() const = 0;

  // Descriptors to wait for, and how long at most; then work() does what is due.
  virtual void add_to_poll(std::vector<pollfd>* fds) const = 0;
  virtual int poll_limit_ms() const = 0;
  virtual std::vector<Order> work() = 0;

  virtual void rank_started(Rank rank, pid_t pid) = 0;
  virtual void rank_ended(const RankEnd& end) = 0;
  // A verdict on a rank of this host, perhaps without its cause, which comes with a second call.
  // The controller sends the job's first one to every agent as an order.
  virtual void rank_lost(const life::LostRank& lost) = 0;
  virtual void say(const std::string& text) = 0;
  // Answers to kObserve and kDrain; the ranks' counters go with the next sign of life.
  virtual void report(HostReport report) = 0;
  virtual void drained(int asked, int ranks) = 0;
  virtual void count(const std::vector<RankCounters>& counters) = 0;
  // Every process of this host's ranks has ended. `failure`: why we could not do our part, else
  // empty. Returns when the controller has said goodbye, or is gone: until then it may have orders.
  using Follow = std::function<void(const std::vector<Order>&)>;
  virtual void finish(const std::string& failure, const Follow& follow) = 0;
  // It ended without a goodbye.
  virtual bool controller_was_lost() const = 0;
};

}  // namespace rueda::launcher
