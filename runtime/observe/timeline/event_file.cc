#include "runtime/observe/timeline/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "collectives/base/create_file.h"
#include "collectives/base/file_status.h"
#include "runtime/observe/timeline/json_array_file.h"
#include "runtime/observe/timeline/packet_file.h"

namespace rueda::timeline {
namespace {

constexpr size_t kCopied = 1 << 20;  // bytes at a time

// Errors are those of errno.
bool write_all(int fd, std::string_view bytes, uint64_t at) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<uint64_t>(n);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool copy_all(int from_fd, uint64_t from, uint64_t to, int fd, uint64_t at) {
  std::string piece(std::min<uint64_t>(kCopied, to - from), '\0');
  while (from < to) {
    const size_t wanted = std::min<uint64_t>(piece.size(), to - from);
    const ssize_t n = ::pread(from_fd, piece.data(), wanted, static_cast<off_t>(from));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;  // somebody else has shortened it
    if (n <= 0 || !write_all(fd, std::string_view(piece).substr(0, static_cast<size_t>(n)), at))
      return false;
    from += static_cast<uint64_t>(n);
    at += static_cast<uint64_t>(n);
  }
  return true;
}

std::string real_path(const std::string& path) {
  char found[PATH_MAX];
  return ::realpath(path.c_str(), found) == nullptr ? path : found;
}

}  // namespace

Result<WrittenFile> WrittenFile::create(const std::string& path) {
  WrittenFile file;
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd,
                         create_file(path, "cannot write the timeline '" + path + "'"));
  file.fd_ = host::GuardedFd(std::move(fd));
  file.path_ = real_path(path);
  return file;
}

Status WrittenFile::failed(uint64_t needed, int why) const {
  return file_status("cannot write the timeline '" + path_ + "'", path_, needed, why);
}

Status WrittenFile::write(std::string_view bytes, uint64_t at) {
  if (write_all(fd_.get(), bytes, at)) return {};
  const int why = errno;
  (void)::ftruncate(fd_.get(), static_cast<off_t>(at));
  return failed(bytes.size(), why);
}

void WrittenFile::end_with(std::string_view bytes, uint64_t at) {
  (void)write_all(fd_.get(), bytes, at);
}

Status WrittenFile::rewrite(std::string_view head, uint64_t from, uint64_t to,
                            std::string_view tail) {
  const std::string fresh = path_ + std::string(kRewritten);
  const UniqueFd old(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!old) return failed(0, errno);
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd,
                         create_file(fresh, "cannot write the timeline '" + path_ + "' anew"));
  if (!write_all(fd.get(), head, 0) || !copy_all(old.get(), from, to, fd.get(), head.size()) ||
      !write_all(fd.get(), tail, head.size() + to - from) ||
      ::rename(fresh.c_str(), path_.c_str()) != 0) {
    const int why = errno;
    ::unlink(fresh.c_str());
    return failed(head.size() + to - from + tail.size(), why);
  }
  fd_ = host::GuardedFd(std::move(fd));
  return {};
}

Result<std::unique_ptr<EventFile>> create_event_file(const TimelineFile& file) {
  if (file.form == Form::kJson) {
    RUEDA_ASSIGN_OR_RETURN(JsonArrayFile made, JsonArrayFile::create(file.path));
    return std::unique_ptr<EventFile>(std::make_unique<JsonArrayFile>(std::move(made)));
  }
  RUEDA_ASSIGN_OR_RETURN(PacketFile made, PacketFile::create(file));
  return std::unique_ptr<EventFile>(std::make_unique<PacketFile>(std::move(made)));
}

}  // namespace rueda::timeline
