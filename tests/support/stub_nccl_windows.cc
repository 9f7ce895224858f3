// libstub_nccl.so: memory that NCCL gives or is told of, and windows.
#include "tests/support/stub_nccl_comm.h"
#include "tests/support/stub_nccl_fault.h"

using rueda::nccl::SymmetricHandle;
using rueda::stub::Fault;

namespace {

[[maybe_unused]] std::atomic<int64_t> registered{0};
[[maybe_unused]] std::atomic<int64_t> windows_made{0};

}  // namespace

#ifndef STUB_NCCL_OLD
EXPORT ResultCode ncclMemAlloc(void** memory, size_t bytes) {
  *memory = memory_known.allocate(bytes);
  return *memory == nullptr ? kSystemError : 0;
}
EXPORT ResultCode ncclMemFree(void* memory) {
  memory_known.free(memory);
  return 0;
}
EXPORT ResultCode ncclCommRegister(ncclComm* handle, void* memory, size_t bytes,
                                   void** registration) {
  const Comm comm = find(handle);
  if (comm == nullptr || memory == nullptr) return kInvalidArgument;
  if (comm->state == rueda::nccl::kInProgress)
    return refuse(kInvalidUsage, "ncclCommRegister while the communicator is in progress");
  if (rueda::stub::fault("ncclCommRegister", comm->rank) == Fault::kError)
    return refuse(kSystemError, "injected error of ncclCommRegister");
  *registration = memory_known.add(handle, {memory, bytes}, false);
  ++registered;
  return 0;
}
EXPORT ResultCode ncclCommDeregister(ncclComm* handle, void* registration) {
  const Comm comm = find(handle);
  if (comm == nullptr) rueda::stub::misuse("ncclCommDeregister of an unknown communicator");
  if (comm->state == rueda::nccl::kInProgress)
    rueda::stub::misuse("ncclCommDeregister while the communicator is in progress");
  memory_known.remove(handle, registration, false);
  return 0;
}
// Since the process began.
EXPORT int64_t stub_nccl_registered() { return registered; }
// There now: registrations and windows of all communicators; blocks of ncclMemAlloc.
EXPORT int64_t stub_nccl_registered_now() { return memory_known.registered_now(); }
EXPORT int64_t stub_nccl_given_now() { return memory_known.given_now(); }
#endif

#if !defined(STUB_NCCL_OLD) && !defined(STUB_NCCL_WINDOWLESS)
// STUB_NCCL_NO_WINDOWS=1: the GPUs cannot; as NCCL, all goes well and there is none.
EXPORT ResultCode ncclCommWindowRegister(ncclComm* handle, void* memory, size_t bytes,
                                         SymmetricHandle* window, int flags) {
  const Comm comm = find(handle);
  if (comm == nullptr || memory == nullptr || flags != rueda::nccl::kSymmetric)
    return refuse(kInvalidArgument, "ncclCommWindowRegister");
  if (comm->state == rueda::nccl::kInProgress)
    return refuse(kInvalidUsage, "ncclCommWindowRegister while the communicator is in progress");
  const auto fault = rueda::stub::fault("ncclCommWindowRegister", comm->rank);
  if (fault == Fault::kError)
    return refuse(kSystemError, "injected error of ncclCommWindowRegister");
  *window = nullptr;
  if (comm->starter.joinable()) comm->starter.join();
  comm->state = rueda::nccl::kInProgress;
  comm->starter = std::thread([c = comm.get(), memory, bytes, window, fault] {
    if (fault == Fault::kHang) {
      c->wait([] { return false; });
      return;
    }
    if (fault == Fault::kAsync) {
      c->state = kRemoteError;
      return;
    }
    Meeting* const meeting = c->meeting;
    const auto all_come = [&](uint64_t times) {
      meeting->windowing.fetch_add(1);
      const uint64_t all = times * static_cast<uint64_t>(c->size);
      return c->wait([&] { return meeting->windowing.load() >= all; });
    };
    meeting->window_bytes[c->rank] = bytes;
    const uint64_t number = ++c->windows;
    if (!all_come(2 * number - 1)) return;
    for (int rank = 0; rank < c->size; ++rank)
      if (meeting->window_bytes[rank] != bytes) rueda::stub::misuse("windows of different sizes");
    if (!all_come(2 * number)) return;
    if (std::getenv("STUB_NCCL_NO_WINDOWS") == nullptr) {
      *window = static_cast<SymmetricHandle>(memory_known.add(c, {memory, bytes}, true));
      ++windows_made;
    }
    if (!c->aborted) c->state = 0;
  });
  return rueda::nccl::kInProgress;
}
EXPORT ResultCode ncclCommWindowDeregister(ncclComm* handle, SymmetricHandle window) {
  const Comm comm = find(handle);
  if (comm == nullptr) rueda::stub::misuse("ncclCommWindowDeregister of an unknown communicator");
  if (comm->state == rueda::nccl::kInProgress)
    rueda::stub::misuse("ncclCommWindowDeregister while the communicator is in progress");
  memory_known.remove(handle, window, true);
  return 0;
}
// Since the process began.
EXPORT int64_t stub_nccl_windows() { return windows_made; }
#endif
