// Discovery: which hosts a job may use now, as the user's script prints them again and again.
//
//   construct ─> work(): starts it ─> runs ─> work(): hosts, if they are others than before
//                   ^                  │ fails, prints nonsense, takes too long: the last answer
//                   └── interval ──────┘ stays, and why is said once; the first time: failed()
//
// Owns:    the process, which has a process group of its own, and its pipes. Whatever the script
//          leaves in its group is killed when it has ended, or when it has taken too long.
// Threads: that of its owner's poll loop, which is never blocked.
// End:     the destructor kills a script that runs.
//
// A script may be a file, with or without "#!", or words for a shell.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "launcher/job/hostfile.h"

namespace rueda::launcher {

struct DiscoveryPlan {
  std::string script;
  int slots_per_host = 0;  // of a host without a number; 0: then there must be one
  std::vector<std::string> environment;
  std::chrono::duration<double> interval{1};  // from the end of a run to the next
  std::chrono::duration<double> limit{10};    // of a run
};

class Discovery {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit Discovery(DiscoveryPlan plan);
  ~Discovery();
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

  void add_to_poll(std::vector<pollfd>* fds) const;
  // When work() is due even if nothing is readable.
  TimePoint next_deadline() const;
  // The hosts, in the order of the script, when they are others than those of the last answer.
  std::optional<std::vector<HostSlots>> work(TimePoint now);
  // Another one's last answer, before the first run: a failure is one of a job that goes on.
  void go_on_from(std::vector<HostSlots> answer) { answer_ = std::move(answer); }
  // For an owner that reaps all its children: what waitpid() has given it. False: not ours.
  bool ended(pid_t pid, int wait_status);

  // Not ok once the very first run has failed, which no job can start with; then nothing runs any
  // more. One sentence for the user.
  const Status& failed() const { return failed_; }
  // Lines for the user: why later runs failed, each text once.
  std::vector<std::string> take_said();

 private:
  Status start();
  // Reads what is there; false when that is more than an answer may have.
  bool read_output();
  // The end of the process, or why it is killed.
  std::optional<std::string> look_for_end(TimePoint now);
  void kill_group() const;
  std::string why_it_failed() const;
  std::optional<std::vector<HostSlots>> finish(const std::string& problem, TimePoint now);

  const DiscoveryPlan plan_;
  const bool is_file_;
  pid_t pid_ = -1;         // of the script that runs
  pid_t killed_pid_ = -1;  // of one that was killed and has not been reaped yet
  UniqueFd life_;          // readable when it has ended
  UniqueFd output_, errors_;
  std::string text_, error_text_;
  std::optional<int> wait_status_;
  TimePoint started_;
  TimePoint next_start_;  // the epoch of the clock: at once
  std::optional<std::vector<HostSlots>> answer_;
  Status failed_;
  std::set<std::string> said_;
  std::vector<std::string> to_say_;
};

// Whether there is something to run: a file that may be executed, or a command that is found.
// InvalidArgument with a sentence for the user. `search_path`: the variable PATH.
Status check_discovery_script(const std::string& script, const char* search_path);

}  // namespace rueda::launcher
