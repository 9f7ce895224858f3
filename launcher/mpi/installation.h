// The MPI that librueda_mpi.so was built for, and the mpirun that belongs to it.
//
// Opens the plugin and runs `mpirun --version`; call it from a process that ends soon, or that
// becomes mpirun.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::launcher {

// Path of librueda_mpi.so: beside the library that RUEDA_LIBRARY names (`library`, may be null),
// else where it lies seen from this program: ../lib in a build or an installed prefix, .. in the
// Python package. Empty: there is none.
std::string find_mpi_plugin(const char* library);

struct MpiInstallation {
  std::string library;  // "Open MPI v4.1.4"
  std::string mpirun;   // path
};

// `path`: the user's PATH, may be null. `mpirun`: the user's choice (--mpirun), else empty.
// FailedPrecondition says what is missing and what to install.
Result<MpiInstallation> find_mpi(const char* library, const char* path, const std::string& mpirun);

// "4.1.4" of "Open MPI v4.1.4" or "mpirun (Open MPI) 4.1.4"; empty when it is no Open MPI. Pure.
std::string open_mpi_version(const std::string& text);

// Where the mpirun of a libmpi.so may lie, likely ones first, folders without links.
std::vector<std::string> mpirun_places(const std::string& libmpi, const char* path);

}  // namespace rueda::launcher
