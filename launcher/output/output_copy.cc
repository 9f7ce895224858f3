#include "launcher/output/output_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "collectives/base/file_status.h"

namespace rueda::launcher {
namespace {

constexpr const char* kNames[] = {"/stdout", "/stderr"};
constexpr mode_t kMode = 0666;  // what the user's umask leaves of it

}  // namespace

Result<OutputCopy> OutputCopy::create(const std::string& folder, Rank rank, int num_ranks) {
  std::string number = std::to_string(rank);
  const size_t width = std::to_string(num_ranks - 1).size();
  number.insert(0, width - std::min(width, number.size()), '0');
  OutputCopy copy;
  copy.folder_ = folder + "/rank." + number;
  std::error_code error;
  std::filesystem::create_directories(copy.folder_, error);
  if (error) return file_status("cannot make the folder " + copy.folder_, folder, 0, error.value());
  for (int i = 0; i < 2; ++i) {
    const std::string path = copy.folder_ + kNames[i];
    copy.files_[i].reset(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
    if (!copy.files_[i]) return file_status("cannot write " + path, path, 0, errno);
  }
  return copy;
}

Status OutputCopy::write(Stream stream, std::string_view bytes) {
  const int i = static_cast<int>(stream);
  while (files_[i] && !bytes.empty()) {
    const ssize_t wrote = ::write(files_[i].get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int why = errno;
      files_[i].reset();
      const std::string path = folder_ + kNames[i];
      return file_status("the copy of the output ends here: cannot write " + path, path,
                         bytes.size(), why);
    }
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return {};
}

}  // namespace rueda::launcher
