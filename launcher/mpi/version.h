// What an MPI calls itself.
#pragma once

#include <string>

namespace rueda::launcher {

// "Open MPI v4.1.4": what an opened MPI library, or one that uses it, calls itself.
std::string mpi_version(void* library);
// "/usr/bin/mpirun, mpirun (Open MPI) 4.1.4" of the first mpirun in PATH; empty when there is none.
// Runs it, a few seconds at most.
std::string mpirun_version();

}  // namespace rueda::launcher
