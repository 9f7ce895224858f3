// Starts one rank: fork, a session and process group of its own, default signals, exec.
//
// The child is killed by the kernel when the calling thread ends (PR_SET_PDEATHSIG), so spawn from
// a thread that lives as long as the agent. Between fork and exec only async-signal-safe calls are
// made. A program that cannot be executed ends with 126 or 127 after saying why on its stderr.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::launcher {

// As exec wants them, a null at the end. They borrow the texts.
std::vector<char*> pointers_to(const std::vector<std::string>& texts);

struct SpawnRequest {
  std::string program;  // path
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  int stdin_fd = -1, stdout_fd = -1, stderr_fd = -1;
  std::vector<int> inherited;         // stay open across exec, at the same numbers
  std::vector<int> cpus;              // that it may run on; empty: ours
  bool hangup_stays_ignored = false;  // started under nohup
  bool outlives_us = false;           // else the kernel kills it when the calling thread ends
};

Result<pid_t> spawn_rank(const SpawnRequest& request);

// Finds a command as a shell would. exit_code is 127 (not found) or 126 (not executable) when
// `path` is empty, and `reason` says why.
struct ResolvedCommand {
  std::string path;
  int exit_code = 0;
  std::string reason;
};
ResolvedCommand resolve_command(const std::string& command, const char* search_path);

}  // namespace rueda::launcher
