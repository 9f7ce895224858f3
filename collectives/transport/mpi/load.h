// Opens librueda_mpi.so, which lies beside librueda.so where it was built, and starts the engine of
// this process.
#pragma once

#include <memory>

#include "collectives/transport/mpi/engine.h"

namespace rueda::mpi {

// The one engine of this process: MPI can be initialised once. Lives until the process ends; then
// what was handed over is sent and, if rueda initialised MPI, MPI_Finalize is called, which waits
// for all ranks as it does for any MPI program. FailedPrecondition says what is missing.
Result<std::shared_ptr<Engine>> engine_of_process(size_t chunk_bytes);

}  // namespace rueda::mpi
