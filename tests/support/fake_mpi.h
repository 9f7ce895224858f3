// FakeMpi: the MPI that the transport needs, between threads of this process: ordered messages,
// small ones copied at once, large ones done when they have been received.
#pragma once

#include <memory>

#include "collectives/transport/mpi/engine.h"

namespace rueda::testing {

class FakeMpi : public std::enable_shared_from_this<FakeMpi> {
 public:
  explicit FakeMpi(int size);
  ~FakeMpi();

  // Starts the engine of a rank; it keeps this world alive.
  std::shared_ptr<mpi::Engine> engine(int rank, size_t chunk_bytes);
  // From now on every call of this rank fails.
  void break_rank(int rank);
  // What MPI_Finalize of this rank's program does first.
  void finalize(int rank);
  int finished() const;  // ranks whose engine has called finish

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace rueda::testing
