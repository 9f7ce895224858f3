// Place: which rank of which job this process is, read from the environment that its launcher made.
//
// ruedarun sets RUEDA_MEMBER, RUEDA_AGENT_FD, RUEDA_KEY_FD and RUEDA_JOB_ID, and as what a member
// can expect at its start RUEDA_RANK and RUEDA_SIZE: which rank it is comes with each epoch
// (StoreClient::enter). Without them
// other launchers' variables count (launchers/claims.h), or RUEDA_RANK, RUEDA_SIZE and
// RUEDA_RENDEZVOUS set by hand, and the ranks meet without an agent (launchers/meet.h). Without
// those a process is a job of one rank. A conflict or a gap is an error, never a silent size 1.
// A program may also say it itself; that wins over everybody but ruedarun, whose word must be the
// same unless the program says the whole of it: it then takes part in another job than ruedarun's,
// for which it is a process that has not called init.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::membership {

// What the program says of itself.
struct GivenPlace {
  Rank rank = 0;
  Rank size = 1;
  std::string job;          // needed from two ranks on
  bool by_address = false;  // the ranks meet at an address that is given too; else on this host
  bool has_key = false;     // what proves that ranks which meet there belong together
  bool whole = false;       // job, address and key are all the program's own
};

struct Place {
  Rank rank = 0;
  Rank size = 1;
  uint64_t member = 0;   // of the job's processes, this one; 0 where there is no agent
  bool elastic = false;  // members come and go
  int agent_fd = -1;     // socket to the agent (the store); inherited, not owned
  int flight_fd = -1;    // memory of the flight recorder; inherited, not owned; -1: none
  int key_fd = -1;       // memfd with the job's key; inherited, not owned
  std::string life_fds;  // what the rank shares with its agent; empty: no agent looks after it
  std::string job_id;    // tells the job from others of this user on a host; may be empty
  std::string source = "nothing: a job of one rank";  // which variables said so
  // Only for a job of several ranks that another launcher started:
  bool agentless = false;
  bool one_host = false;  // the launcher says that all ranks are on this host
  std::string root_host;  // where rank 0 is; empty: unknown
  int root_port = 0;      // ports above it are tried for meeting there; 0: none
  bool has_key = false;   // the program has the job's; else it is a file's
  std::string remark;     // a warning that the user should see; empty: none
};

// FailedPrecondition names the variables when they conflict or some are missing.
Result<Place> read_place(const GetEnv& get_env,
                         const std::optional<GivenPlace>& given = std::nullopt);

// This host for the question "can we share memory": boot, network namespace and user. Equal text is
// verified by connecting. `override_id` replaces it when not empty.
std::string host_identity(const std::string& override_id);

}  // namespace rueda::membership
