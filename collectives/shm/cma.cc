#include "collectives/shm/cma.h"

#include <sys/uio.h>

#include <cerrno>
#include <string>

namespace rueda::shm {

Status read_peer(pid_t pid, uint64_t address, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    iovec local{to, bytes};
    // An address of the other process, never followed here.
    iovec remote{reinterpret_cast<void*>(address), bytes};  // NOLINT(performance-no-int-to-ptr)
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got <= 0) {
      const int error = got < 0 ? errno : EFAULT;
      if (error == EINTR) continue;
      if (error == ESRCH) return unavailable("local process " + std::to_string(pid) + " is gone");
      return errno_status(
          "cannot read the memory of local process " + std::to_string(pid) + " (process_vm_readv)",
          error);
    }
    to += got;
    address += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

bool probe_cma(const host::Arena& peer) {
  const host::ArenaHeader& header = peer.header();
  uint64_t cookie = 0;
  return read_peer(static_cast<pid_t>(header.pid), header.cookie_address,
                   reinterpret_cast<std::byte*>(&cookie), sizeof(cookie))
             .ok() &&
         cookie == header.cookie;
}

}  // namespace rueda::shm
