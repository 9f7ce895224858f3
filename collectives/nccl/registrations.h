// Registrations: the memory that one communicator of NCCL's has been told of, so that it uses it
// where it lies: by ncclCommRegister, each rank for itself, or as a symmetric window, which all
// ranks make together. A block is registered once, and is held until it is deregistered or the
// communicator is gone.
//
//   add                      ncclCommRegister
//   begin_window             ncclCommWindowRegister, under way
//     end_window             NCCL has written the window; it makes none where GPUs cannot: add then
//   remove, remove_all       deregistered; nothing on the GPU uses it any more
//   forget                   the communicator is gone, and its registrations with it
//
// Threads: the session's mutex is held, and the device's context is current.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/nccl/block.h"

namespace rueda::nccl {

class Registrations {
 public:
  // Since the beginning.
  struct Totals {
    int64_t blocks = 0;
    int64_t windows = 0;  // of these
    int64_t bytes = 0;
  };

  explicit Registrations(std::shared_ptr<const Library> library) : library_(std::move(library)) {}

  bool knows(const std::byte* data) const;
  // Of what it does not know yet.
  Status add(Handle comm, const Block& block);
  Result<ResultCode> begin_window(Handle comm, const Block& block);
  Status end_window(Handle comm);
  Status remove(Handle comm, const std::byte* data);
  // The same when NCCL can be called next.
  void remove_later(const std::byte* data);
  void remove_what_is_late(Handle comm);
  void remove_all(Handle comm);
  void forget() { all_.clear(); }
  const Totals& totals() const { return totals_; }

 private:
  struct Registration {
    Block block;
    void* handle = nullptr;
    std::unique_ptr<SymmetricHandle> window;  // NCCL writes it some time after the call
    bool late = false;
  };
  Status deregister(Handle comm, const Registration& gone) const;
  void count(const Block& block, bool window);

  std::shared_ptr<const Library> library_;
  std::vector<Registration> all_;
  Totals totals_;
};

}  // namespace rueda::nccl
