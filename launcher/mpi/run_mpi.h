// `ruedarun --mpi`: a job that mpirun starts and looks after, and that we look after in turn.
#pragma once

#include "launcher/mpi/mpirun_command.h"

namespace rueda::launcher {

// Blocks until mpirun has ended and no process of the job is left here; returns ruedarun's exit
// code. `request` without mpirun's path.
int run_mpi(MpirunRequest request);

}  // namespace rueda::launcher
