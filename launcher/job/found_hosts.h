// Where a job's hosts come from: flags, or else what the environment tells.
//
//   -H, --hostfile
//   a hostfile that is there for an MPI: OMPI_MCA_orte_default_hostfile, I_MPI_HYDRA_HOST_FILE,
//     HYDRA_HOST_FILE, /etc/mpi/hostfile (Kubernetes, MPIJob)
//   an allocation of Slurm, PBS, LSF or Flux
//
// The first that is there counts; one that is there and cannot be read is an error, not a reason
// to look on. Pure, apart from what `Surroundings` do.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "launcher/job/hostfile.h"

namespace rueda::launcher {

inline constexpr const char* kMpiHostfile = "/etc/mpi/hostfile";

struct Surroundings {
  GetEnv get;
  std::function<bool(const std::string& path)> exists;
  std::function<Result<std::string>(const std::string& path)> read;
  // What `flux resource list` prints in kFluxFormat; nothing where it cannot be asked.
  std::function<std::optional<std::string>()> ask_flux;
};
inline constexpr const char* kFluxFormat = "{nnodes} {ncores} {ngpus} {nodelist}";

struct FoundHosts {
  std::vector<HostSlots> hosts;  // empty: nothing is said of hosts
  std::string source;            // "-H a:1,b:1", "PBS_NODEFILE /var/spool/pbs/aux/17"
  bool by_itself = false;        // no flag says it
  bool allocation = false;       // a scheduler's: when it is one host, that is this machine
  bool slurm = false;            // agents are started by srun

  int slots() const;
};

// `hosts`, `hostfile`: of -H and --hostfile, empty where they are not given. InvalidArgument also
// in a Kubernetes MPIJob whose hostfile is missing: its launcher is no place for ranks.
Result<FoundHosts> find_hosts(const std::string& hosts, const std::string& hostfile,
                              const Surroundings& around);

// Why a job without -np cannot start when find_hosts() has found nothing, with what to do.
std::string no_ranks_said(const GetEnv& get);

}  // namespace rueda::launcher
