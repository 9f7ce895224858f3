// The command that starts an agent on another host. Pure.
//
// Every command is a list of words that is executed as it is; no shell of ours reads it. ssh joins
// the words after the host with blanks and gives them to a shell there, so these are quoted where
// that matters. No secret is among them: the ticket goes over standard input.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/job/hostfile.h"

namespace rueda::launcher {

struct StartRequest {
  HostSlots host;
  int host_index = 0;
  std::string program;        // path of ruedarun there
  std::string rsh_agent;      // --rsh-agent, empty: ssh
  int ssh_port = 0;           // -p
  std::string identity_file;  // -i
};

// ssh:  ssh -o BatchMode=yes -p 22 -i key user@host -- /path/ruedarun agent --host-index 1
// else: the words of --rsh-agent, the host, /path/ruedarun agent --host-index 1
Result<std::vector<std::string>> start_command(const StartRequest& request);

// By the program's name.
bool is_ssh(const std::string& program);

// One srun for all agents; which host it is each knows from SLURMD_NODENAME.
std::vector<std::string> srun_command(const std::vector<std::string>& hosts,
                                      const std::string& program);

// Cuts a command line into words as a shell would: blanks, '...', "...", backslash.
Result<std::vector<std::string>> split_words(const std::string& line);

// 'it'\''s' where a shell would read more into it, else unchanged.
std::string quote_for_shell(const std::string& word);

}  // namespace rueda::launcher
