#include "collectives/base/file_status.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rueda {

Status file_status(const std::string& what, const std::string& path, uint64_t needed, int err) {
  if (err != ENOSPC && err != EDQUOT) return errno_status(what, err);
  char text[128];
  std::string message = what + ": " + strerror_r(err, text, sizeof(text)) + "; " +
                        std::to_string(needed) + " bytes were to be written";
  struct statvfs disk = {};
  const size_t slash = path.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  if (err == EDQUOT) {
    message += ", your quota there is used up";
  } else if (statvfs(path.c_str(), &disk) == 0 || statvfs(folder.c_str(), &disk) == 0) {
    message += ", its file system has " + std::to_string(uint64_t{disk.f_bavail} * disk.f_frsize) +
               " left and " + std::to_string(disk.f_favail) + " files";
  }
  return Status(Code::kResourceExhausted, message).with_limit(Limit::kDisk);
}

}  // namespace rueda
