// The processes that start agents: ssh, srun, another command, or the agent itself on this machine.
//
// Each gets the job's ticket on its standard input, from memory. What it prints is handed on by
// lines. Owns the processes' pipes; they are killed by the kernel when the calling thread ends,
// where no other controller would take over.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "launcher/output/line_splitter.h"
#include "launcher/processes/connections.h"

namespace rueda::launcher {

class Starter {
 public:
  // Finds the command in `environment`'s PATH and runs it there. `outlives_us`: it stays when we
  // are killed, for the controller that takes over.
  static Result<std::unique_ptr<Starter>> start(const std::string& name,
                                                const std::vector<std::string>& command,
                                                const std::vector<std::string>& environment,
                                                const std::string& ticket, bool outlives_us);

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  int wait_status() const { return wait_status_; }
  // It has ended without reaching the host, which may be there later: hosts/late_start.h.
  bool may_come_later() const;
  // The last that it printed, with the indented lines that belong to it.
  const std::string& last_message() const { return last_message_; }
  // It runs, and its host has at least answered to it.
  bool connected() const { return running_ && has_tcp_connection(pid_); }
  // "the host cannot be started: ssh exited with code 255: <what it said last>"
  std::string describe() const;

  void add_to_poll(std::vector<pollfd>* fds) const;
  // Hands every line that has been printed to `say`.
  void pump(const std::function<void(const std::string&)>& say);
  void ended(int wait_status);
  void kill() const;

 private:
  Starter(std::string name, std::string program)
      : name_(std::move(name)), program_(std::move(program)) {}

  const std::string name_, program_;
  pid_t pid_ = -1;
  bool running_ = true;
  int wait_status_ = 0;
  UniqueFd output_;
  LineSplitter splitter_{false};
  std::string last_message_;
};

}  // namespace rueda::launcher
