// Claims: what other launchers' variables say about this process. Pure: reads variables, decides,
// touches nothing.
//
//   launcher     rank, size                                       lies inside
//   torchrun     RANK, WORLD_SIZE (and MASTER_ADDR)               anything (TORCHELASTIC_RUN_ID)
//   deepspeed    the same and CROSS_SIZE, LOCAL_SIZE              anything
//   Open MPI     OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE       a Slurm step
//   MPICH, Intel PMI_RANK, PMI_SIZE                               a Slurm step
//   Horovod      HOROVOD_RANK, HOROVOD_SIZE                       a Slurm step
//   Flux, LSF    FLUX_TASK_RANK, ..; JSM_NAMESPACE_RANK, ..
//   Slurm        SLURM_PROCID, SLURM_STEP_NUM_TASKS, of an srun step
//   JAX's        JAX_PROCESS_ID, JAX_NUM_PROCESSES (and JAX_COORDINATOR_ADDRESS)
//
// A launcher often starts another one (srun torchrun, mpirun under Slurm): the inner one counts and
// the outer one's numbers are of its own tasks. Any other two that differ are a conflict. RANK and
// WORLD_SIZE without a mark of who set them may be left over from a shell, so they never win; nor
// do JAX's, which anybody sets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::launchers {

struct Number {
  int value = 0;
  std::string variable;  // where it comes from
};

struct Claim {
  std::string launcher;        // "Open MPI's mpirun"
  std::optional<Number> rank;  // absent: its variable is not set
  std::optional<Number> size;
  std::string rank_variable;  // its name, whether set or not
  std::string size_variable;
  bool one_host = false;  // all ranks are on this host, as far as the launcher says
  std::string job;        // tells this job from others of this user on this host; may be empty
  std::string root_host;  // where rank 0 is; empty: unknown
  int root_port = 0;      // that the launcher set apart on it; 0: none

  bool complete() const { return rank && size; }
};

struct Claims {
  std::vector<Claim> claims;  // inner launchers first
  std::string remark;         // what the user may have overlooked; empty: nothing
};

// Everything that launchers other than ruedarun say. FailedPrecondition names a variable whose
// value is no number.
Result<Claims> find_claims(const GetEnv& get_env);

// The one that counts; nothing when nobody claims this process. FailedPrecondition names both
// values of a conflict, or the variable that is missing, and says what to do.
Result<std::optional<Claim>> settle(const Claims& claims);

// The first host of Slurm's compressed list: "rack1node03" of "rack[1-2]node[03-08,12],x".
std::string first_host(const std::string& list);

}  // namespace rueda::launchers
