// The environment of one rank: ours, what the user added, and the rank's place in the job.
//
// Variables of an outer ruedarun (when one runs inside a rank of another) are taken out first: its
// ranks, job and descriptors mean nothing here. Holds no secret: the job's key travels as a file
// descriptor. Pure.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/config.h"
#include "launcher/command/options.h"
#include "launcher/job/member.h"

namespace rueda::launcher {

struct JobEnvironment {
  std::string job_id;
  int threads = 1;  // OMP_NUM_THREADS of this rank, unless the user has set it
  int key_fd = -1;
  bool elastic = false;
};

// The user's environment ("NAME=value" each) with -x and the settings of flags applied, and without
// what an outer ruedarun had set. The same for all ranks.
std::vector<std::string> base_environment(const std::vector<std::string>& ours,
                                          const Options& options);

// `base` plus what one process is told. `agent_fd`: the rank's end of its socket to the agent.
std::vector<std::string> rank_environment(const std::vector<std::string>& base,
                                          const JobEnvironment& job, const MemberStart& start,
                                          int agent_fd);

// Puts a variable in, instead of one of this name.
void set_variable(std::vector<std::string>* environment, const std::string& name,
                  const std::string& value);

// The value of a variable, nullptr when it is not set.
const char* find_variable(const std::vector<std::string>& environment, const std::string& name);

// The value of a variable, nullptr when it is not set or empty.
const char* non_empty(const GetEnv& get, const char* name);

}  // namespace rueda::launcher
