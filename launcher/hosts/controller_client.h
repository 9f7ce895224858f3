// What an agent and the controller of its job tell each other, as the agent sees it. The controller
// is in the agent's own process (controller/local_controller.h: a job on one host) or in another
// one (agent/grpc_controller_client.h); the agent does not know which.
//
// Used by the agent's thread alone.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "launcher/hosts/order.h"
#include "launcher/job/exit_report.h"
#include "launcher/observe/host_report.h"
#include "launcher/output/rank_output.h"

namespace rueda::launcher {

// How the end of this host's ranks came about, as only their agent can know.
struct HostEnd {
  StopCause cause = StopCause::kNone;  // why it has stopped them
  int signal = 0;                      // of the cause
  // Of the rank that was lost:
  bool lost_by_us = false;   // it ended because we stopped the job: nobody's failure
  bool lost_joined = false;  // it had begun to join the job
  bool lost_inside = false;  // it was another process than the one that was started
};

// An agent as its controller sees it.
class ControlledHost {
 public:
  virtual ~ControlledHost() = default;
  virtual void follow(const Order& order) = 0;
  // Complete from finish() on; until then the cause may be there already.
  virtual HostEnd end() const = 0;
  // Whether somebody still waits for our end, and descriptors that wake who waits when that may
  // have changed.
  virtual bool is_wanted() = 0;
  virtual void add_to_poll(std::vector<pollfd>* fds) const = 0;
};

class ControllerClient {
 public:
  virtual ~ControllerClient() = default;

  // First of all. What the controller wants of the host comes as orders, from within work(),
  // rank_lost() and finish(). Borrowed.
  virtual void serve(ControlledHost* host) = 0;
  // Before the first rank.
  virtual Status open() = 0;
  // We cannot do our part, for this reason: what has been started is killed.
  virtual void failed(const std::string& why) = 0;

  // The controller keeps the store: what the rank writes to its socket is carried there, and back.
  virtual Status attach(UniqueFd agent_end, MemberId member) = 0;
  // The client's.
  virtual OutputTaker* output_of(MemberId member, Rank rank) = 0;
  // Output is taken more slowly than the ranks write: read no more from them for now.
  virtual bool congested() const = 0;

  // Descriptors to wait for, and how long at most (-1: for ever); then work() does what is due.
  virtual void add_to_poll(std::vector<pollfd>* fds) const = 0;
  virtual int poll_limit_ms() const = 0;
  virtual void work() = 0;

  // `error`: why there is no process, of a member that was to be started by an order; else empty.
  virtual void rank_started(const MemberStart& start, pid_t pid, const std::string& error) = 0;
  virtual void rank_ended(const RankEnd& end) = 0;
  // A verdict on a rank of this host, perhaps without its cause, which comes with a second call.
  // The controller sends the job's first one to every agent as an order.
  virtual void rank_lost(const life::LostRank& lost) = 0;
  // No thread of a lost member can run any more, though its process has not been reaped yet.
  virtual void rank_fenced(MemberId member) = 0;
  // A child of this process that is none of the agent's has been reaped.
  virtual void child_ended(pid_t, int /*wait_status*/) {}
  virtual void say(const std::string& text) = 0;
  // Answers to kObserve and kDrain; the ranks' counters go with the next sign of life.
  virtual void report(HostReport report) = 0;
  virtual void drained(int asked, int ranks) = 0;
  virtual void count(const std::vector<RankCounters>& counters) = 0;
  // `rueda drain HOST`, asked here: what comes of it, or why it is not drained.
  virtual Result<std::string> drain_host(const std::string& host) = 0;
  // This machine is to go: its ranks are to leave at their next commit. Should the job have no
  // other host, kSignal comes as an order.
  virtual void leaves(const std::string& why) = 0;
  // Every process of this host's ranks has ended. Returns when the controller has no more orders:
  // it has said goodbye, or is gone.
  virtual void finish() = 0;
  // It ended without a goodbye.
  virtual bool controller_was_lost() const = 0;
};

}  // namespace rueda::launcher
