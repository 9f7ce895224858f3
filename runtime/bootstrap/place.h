// Place: which rank of which job this process is, read from the environment that its launcher made.
//
// ruedarun sets RUEDA_RANK, RUEDA_SIZE, RUEDA_AGENT_FD, RUEDA_KEY_FD and RUEDA_JOB_ID. Without them
// a process is a job of one rank, unless another launcher says that there are more: that is an
// error, never a silent size 1.
#pragma once

#include <string>

#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::bootstrap {

struct Place {
  Rank rank = 0;
  Rank size = 1;
  int agent_fd = -1;  // socket to the agent (the store); inherited, not owned
  int flight_fd = -1; // memory of the flight recorder; inherited, not owned; -1: none
  int key_fd = -1;    // memfd with the job's key; inherited, not owned
  std::string job_id;
  std::string source = "nothing: a job of one rank";
};

// FailedPrecondition names the variables when they conflict or some are missing.
Result<Place> read_place(const GetEnv& get_env);

// This host for the question "can we share memory": boot, network namespace and user. Equal text is
// verified by connecting. `override_id` replaces it when not empty.
std::string host_identity(const std::string& override_id);

}  // namespace rueda::bootstrap
