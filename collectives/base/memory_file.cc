#include "collectives/base/memory_file.h"

#include <sys/mman.h>

#include <cerrno>

namespace rueda {

Result<UniqueFd> memory_file(const char* name, const std::string& what) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd) return fd;
  const int error = errno;
  const bool refused = error == ENOSYS || error == EPERM || error == EACCES;
  const Status status = errno_status(what, error);
  if (!refused) return status;
  return status.with_message(status.message() +
                             "; memfd_create must be allowed: loosen the container's seccomp "
                             "profile (kernel 3.17 or newer)");
}

}  // namespace rueda
