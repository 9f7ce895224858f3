#include "launcher/output/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "collectives/base/file_status.h"
#include "collectives/base/unique_fd.h"

namespace rueda::launcher {
namespace {

Status write_all(int fd, ByteView bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return file_status("cannot write", path, bytes.size(), errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace

Status replace_file(const std::string& path, std::span<const ByteView> parts,
                    const std::string& what, unsigned mode) {
  const std::string draft = path + ".part";
  size_t bytes = 0;
  for (const ByteView part : parts) bytes += part.size();
  const UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd) return file_status("cannot write " + what + " '" + draft + "'", draft, bytes, errno);
  for (const ByteView part : parts) {
    const Status status = write_all(fd.get(), part, draft);
    if (status.ok()) continue;
    unlink(draft.c_str());
    return status.with_message(what + " '" + draft + "': " + status.message());
  }
  if (rename(draft.c_str(), path.c_str()) != 0)
    return file_status("cannot write " + what + " '" + path + "'", path, 0, errno);
  return {};
}

}  // namespace rueda::launcher
