#include "collectives/base/create_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "collectives/base/file_status.h"

namespace rueda {
namespace {

constexpr mode_t kMode = 0666;  // what the user's umask leaves of it

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

}  // namespace

Status check_link(const std::string& path) {
  struct stat link = {}, folder = {};
  if (lstat(path.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) return {};
  if (link.st_uid == geteuid() || link.st_uid == 0) return {};
  if (stat(folder_of(path).c_str(), &folder) == 0 && folder.st_uid == link.st_uid) return {};
  return {Code::kPermissionDenied, "'" + path + "' is a symbolic link of another user (uid " +
                                       std::to_string(link.st_uid) +
                                       "), which is not followed; choose a folder of your own"};
}

Result<UniqueFd> create_file(const std::string& path, const std::string& what, CreateFile how) {
  const Status link_is_ours = check_link(path);
  if (!link_is_ours.ok()) return link_is_ours.with_message(what + ": " + link_is_ours.message());
  struct stat link = {};
  const bool trusted = lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode);
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK |
                    (how == CreateFile::kEmpty ? O_TRUNC : O_APPEND);
  UniqueFd fd(open(path.c_str(), flags | (trusted ? 0 : O_NOFOLLOW), kMode));
  if (!fd) return file_status(what, path, 0, errno);
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

}  // namespace rueda
