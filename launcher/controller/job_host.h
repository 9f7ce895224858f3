// One host of a running job as the controller sees it.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/reach.h"
#include "launcher/hosts/wire.h"
#include "launcher/job/host_plan.h"

namespace rueda::launcher {

struct JobHost {
  enum class State { kAwaited, kHere, kProbed, kRunning, kFinished, kLost };

  HostPlan plan;
  State state = State::kAwaited;
  int pid = 0;
  int probe_port = 0;
  ReachHost reach;
  std::string address;    // for the ranks' sockets, once it was chosen
  bool may_fail = false;  // the job goes on without it
  bool is_late = false;   // it was to be there at the beginning
  std::chrono::steady_clock::time_point awaited_until;  // where the job goes on without it
  std::chrono::steady_clock::time_point last_heard;
  // While it is late: how often it was tried in vain, why, and when it is tried again.
  int tries = 0;
  std::string why_late;
  std::optional<std::chrono::steady_clock::time_point> again_at;
  bool suspect = false;
  bool is_cut = false;  // its connection has ended, and it may come back over another

  const std::string& name() const { return plan.host.host; }
  bool talks() const { return state != State::kAwaited && state != State::kLost; }
  bool over() const { return state == State::kFinished || state == State::kLost; }
};

// "h1, h2 and h3"
std::string name_hosts(const std::vector<std::string>& names);

// The assignment of one host. `key`: the job's, 32 bytes. `address`: for the ranks' sockets.
struct JobText {
  std::string job_id, key, address, folder, bind;
  double grace_seconds = 5, silence_seconds = 5;
  double dead_seconds = 5;
  bool verbose = false, hangup_ignored = false;
  bool elastic = false;
  int num_proc = 1;                         // of an elastic job: to begin with
  std::vector<std::string> door_addresses;  // where agents come back to
  double driver_timeout = 0;
};
control::Assign make_assignment(const JobText& job, const HostPlan& host, int host_index,
                                const std::vector<std::string>& command,
                                const std::vector<std::string>& environment);

}  // namespace rueda::launcher
