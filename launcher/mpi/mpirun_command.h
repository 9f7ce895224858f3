// `ruedarun --mpi`: what Open MPI's mpirun is started with, instead of our own agents. Pure.
//
// No value of a variable is among the words: mpirun takes them from its environment.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/command/options.h"
#include "launcher/job/host_plan.h"

namespace rueda::launcher {

// With --mpi, makes MPI the ranks' transport (RUEDA_TRANSPORT=mpi) unless the user has chosen one
// of MPI's; InvalidArgument when tcp was chosen. Without --mpi, does nothing.
Status choose_mpi_transport(const std::vector<std::string>& environment, Options* options);

struct MpirunRequest {
  Options options;
  std::vector<HostPlan> hosts;
  bool hosts_given = false;  // by the user: their slots are kept to
  bool several_hosts = false;
  std::string mpirun;       // path
  std::string own_host;     // a name of this machine that the other hosts know
  int rendezvous_port = 0;  // of the first host, for the ranks to meet; several hosts only
  int threads = 1;          // OMP_NUM_THREADS of each rank, unless the user has set it
  bool root = false;
  bool terminal_stdin = false;
  std::vector<std::string> environment;  // base_environment()
};

struct MpirunCommand {
  std::vector<std::string> words;
  std::vector<std::string> environment;  // mpirun's own
};

// InvalidArgument names an option that cannot be kept under mpirun, FailedPrecondition what the
// ranks of several hosts lack.
Result<MpirunCommand> mpirun_command(const MpirunRequest& request);

}  // namespace rueda::launcher
