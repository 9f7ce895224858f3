#include "runtime/observe/timeline/json_array_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include <spdlog/fmt/fmt.h>

#include "collectives/base/create_file.h"
#include "collectives/base/file_status.h"
#include "collectives/base/utf8.h"
#include "runtime/observe/timeline/timeline_file.h"

namespace rueda::timeline {
namespace {

// Errors are those of errno.
bool write_all(int fd, std::string_view bytes, size_t at) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

std::string json_quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : clean_text(text, std::string::npos)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\u{:04x}", byte);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

Result<JsonArrayFile> JsonArrayFile::create(const std::string& path) {
  JsonArrayFile file;
  file.path_ = path;
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd,
                         create_file(path, "cannot write the timeline '" + path + "'"));
  const std::string nothing = std::string("[") + std::string(kTimelineEnd);
  if (!write_all(fd.get(), nothing, 0))
    return file_status("cannot write the timeline '" + path + "'", path, nothing.size(), errno);
  file.fd_ = host::GuardedFd(std::move(fd));
  file.end_ = 1;
  return file;
}

Status JsonArrayFile::append(std::string_view events) {
  if (events.empty()) return {};
  scratch_ = empty_ ? "\n" : ",\n";
  scratch_ += events;
  const size_t end = end_ + scratch_.size();
  scratch_ += kTimelineEnd;
  if (!write_all(fd_.get(), scratch_, end_)) {
    const int why = errno;
    (void)::ftruncate(fd_.get(), static_cast<off_t>(end_));
    (void)write_all(fd_.get(), kTimelineEnd, end_);
    return file_status("cannot write the timeline '" + path_ + "'", path_, scratch_.size(), why);
  }
  end_ = end;
  empty_ = false;
  return {};
}

}  // namespace rueda::timeline
