#include "launcher/job/timeline_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "collectives/base/create_file.h"
#include "collectives/base/file_status.h"
#include "collectives/base/unique_fd.h"
#include "runtime/observe/timeline/timeline_file.h"

namespace rueda::launcher {
namespace {

// A whole file, read where it lies.
class Mapped {
 public:
  static std::optional<Mapped> open(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info = {};
    if (!fd || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
    Mapped mapped;
    mapped.size_ = static_cast<size_t>(info.st_size);
    if (mapped.size_ == 0) return mapped;
    void* at = mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (at == MAP_FAILED) return std::nullopt;
    mapped.at_ = at;
    return mapped;
  }
  Mapped(Mapped&& other) noexcept
      : at_(std::exchange(other.at_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapped& operator=(Mapped&&) = delete;
  ~Mapped() {
    if (at_ != nullptr) munmap(at_, size_);
  }
  std::string_view text() const { return {static_cast<const char*>(at_), at_ ? size_ : 0}; }

 private:
  Mapped() = default;
  void* at_ = nullptr;
  size_t size_ = 0;
};

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Cuts off what the writer of a file was killed in the middle of, and closes an array.
Status close_file(const timeline::TimelineFile& file) {
  unlink((file.path + std::string(timeline::kRewritten)).c_str());
  const bool is_json = file.form == timeline::Form::kJson;
  const std::string_view tail = is_json ? timeline::kTimelineEnd : std::string_view();
  size_t end = 0;
  {
    const auto mapped = Mapped::open(file.path);
    if (!mapped || (is_json && mapped->text().ends_with(tail))) return {};
    const std::string_view whole = timeline::whole_part(file.form, mapped->text());
    if (whole.size() == mapped->text().size()) return {};
    if (whole.data() == nullptr || (!is_json && whole.empty())) return {};  // no timeline at all
    end = 1;                                                                // the bracket
    if (!whole.empty())
      end = static_cast<size_t>(whole.data() + whole.size() - mapped->text().data());
  }
  RUEDA_RETURN_IF_ERROR(check_link(file.path));
  const UniqueFd fd(::open(file.path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(end)) != 0 ||
      lseek(fd.get(), 0, SEEK_END) < 0 || !write_all(fd.get(), tail)) {
    return file_status("cannot close the timeline '" + file.path + "'", file.path, tail.size(),
                       errno);
  }
  return {};
}

bool is_merged(const TimelineFiles& files) {
  return files.all_ranks && timeline::timeline_file(files.path, false, 1) == std::nullopt;
}

std::string part_of(const TimelineFiles& files, int rank) {
  return timeline::timeline_file(files.path, files.all_ranks, rank)->path;
}

void remove_part(const std::string& part) {
  unlink(part.c_str());
  unlink((part + std::string(timeline::kRewritten)).c_str());
}

std::vector<std::string> merge(const TimelineFiles& files) {
  std::vector<std::string> missing;
  std::vector<std::string> done;
  UniqueFd out;
  bool good = true;
  const timeline::Form form = timeline::form_of(files.path);
  const bool is_json = form == timeline::Form::kJson;
  const std::string_view tail = is_json ? timeline::kTimelineEnd : std::string_view();
  uint64_t needed = tail.size();
  for (int rank = 0; rank < files.ranks && good; ++rank) {
    const std::string part = part_of(files, rank);
    const auto mapped = Mapped::open(part);
    const std::string_view events =
        mapped ? timeline::whole_part(form, mapped->text()) : std::string_view();
    if (events.empty()) {
      missing.push_back("the timeline has nothing of rank " + std::to_string(rank) + ": '" + part +
                        "' is missing or empty");
      continue;
    }
    const bool is_first = !out;
    if (is_first) {
      auto made = create_file(files.path, "cannot write the timeline '" + files.path + "'");
      if (!made.ok()) return {made.status().message() + "; the ranks' parts lie beside it"};
      out = std::move(made).value();
    }
    needed = events.size();
    const std::string_view before = !is_json ? "" : is_first ? "[\n" : ",\n";
    good = out && write_all(out.get(), before) && write_all(out.get(), events);
    done.push_back(part);
  }
  if (good && done.empty())
    return {
        "there is no timeline: no rank has begun one (did init fail, or did the program not call "
        "it?)"};
  if (!good || !write_all(out.get(), tail)) {
    return {file_status("cannot write the timeline '" + files.path + "'", files.path, needed, errno)
                .message() +
            "; the ranks' parts lie beside it"};
  }
  for (const std::string& part : done) remove_part(part);
  return missing;
}

}  // namespace

void remove_stale_parts(const TimelineFiles& files) {
  if (!timeline::timeline_file(files.path, files.all_ranks, 0) || !is_merged(files)) return;
  for (int rank = 0; rank < files.ranks; ++rank) remove_part(part_of(files, rank));
}

std::vector<std::string> finish_timelines(const TimelineFiles& files) {
  if (!timeline::timeline_file(files.path, files.all_ranks, 0)) return {};
  if (is_merged(files)) return merge(files);
  std::vector<std::string> problems;
  for (int rank = 0; rank < files.ranks; ++rank) {
    const auto file = timeline::timeline_file(files.path, files.all_ranks, rank);
    if (!file) continue;
    const Status closed = close_file(*file);
    if (!closed.ok()) problems.push_back(closed.message());
  }
  return problems;
}

}  // namespace rueda::launcher
