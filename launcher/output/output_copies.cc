#include "launcher/output/output_copies.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "collectives/base/create_file.h"
#include "collectives/base/file_status.h"
#include "collectives/host/event_fd.h"

namespace rueda::launcher {
namespace {

constexpr const char* kNames[] = {"/stdout", "/stderr"};
constexpr size_t kMuchWaiting = 1 << 20;

std::string folder_of_rank(const std::string& folder, Rank rank, int num_ranks) {
  std::string number = std::to_string(rank);
  const size_t width = std::to_string(num_ranks - 1).size();
  number.insert(0, width - std::min(width, number.size()), '0');
  return folder + "/rank." + number;
}

// Files, and what is as ready to take bytes: /dev/null and its like, which Linux gives the major
// number 1. A FIFO, a socket or a terminal may never take them.
bool takes_bytes(const struct stat& file) {
  return S_ISREG(file.st_mode) || (S_ISCHR(file.st_mode) && major(file.st_rdev) == 1);
}

Result<OutputCopies::Files> open_files(const std::string& root, const std::string& folder,
                                       CreateFile how) {
  OutputCopies::Files files;
  files.folder = folder;
  RUEDA_RETURN_IF_ERROR(check_link(root));
  RUEDA_RETURN_IF_ERROR(check_link(folder));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return file_status("cannot make the folder " + folder, root, 0, error.value());
  for (size_t i = 0; i < 2; ++i) {
    const std::string path = folder + kNames[i];
    struct stat there = {};
    const bool exists = stat(path.c_str(), &there) == 0;
    if (exists && !takes_bytes(there))
      return invalid_argument("cannot write " + path + ": it is there and no regular file");
    RUEDA_ASSIGN_OR_RETURN(files.streams[i], create_file(path, "cannot write " + path, how));
    if (fstat(files.streams[i].get(), &there) != 0 || !takes_bytes(there))
      return invalid_argument("cannot write " + path + ": it is no regular file");
  }
  return files;
}

}  // namespace

struct OutputCopies::Shared {
  std::vector<Files> files;  // of each rank; the writer's thread alone
  std::string folder;        // of ranks that come later; likewise
  int num_ranks = 0;         // to begin with
  CreateFile how = CreateFile::kEmpty;
  std::atomic<size_t> waiting{0};
  UniqueFd wake;

  Status write(Rank rank, Stream stream, std::string_view bytes) {
    while (std::ssize(files) <= rank) {
      auto more = open_files(
          folder, folder_of_rank(folder, static_cast<Rank>(files.size()), num_ranks), how);
      if (!more.ok()) files.emplace_back();  // said once
      RUEDA_RETURN_IF_ERROR(more.status());
      files.push_back(std::move(more).value());
    }
    Files& of_rank = files[static_cast<size_t>(rank)];
    const auto i = static_cast<size_t>(stream);
    UniqueFd& fd = of_rank.streams[i];
    while (fd && !bytes.empty()) {
      const ssize_t wrote = ::write(fd.get(), bytes.data(), bytes.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        const int why = errno;
        fd.reset();
        const std::string path = of_rank.folder + kNames[i];
        return file_status("the copy of the output ends here: cannot write " + path, path,
                           bytes.size(), why);
      }
      bytes.remove_prefix(static_cast<size_t>(wrote));
    }
    return {};
  }
};

OutputCopies::OutputCopies(std::vector<Files> files) : shared_(std::make_shared<Shared>()) {
  shared_->files = std::move(files);
  if (auto wake = host::make_event_fd(); wake.ok()) shared_->wake = std::move(wake).value();
}

Result<std::unique_ptr<OutputCopies>> OutputCopies::create(const std::string& folder, int num_ranks,
                                                           bool goes_on) {
  const CreateFile how = goes_on ? CreateFile::kAppend : CreateFile::kEmpty;
  auto made = std::make_shared<std::vector<Files>>();
  auto problem = std::make_shared<Status>();
  FileWriter opener;
  opener.add([=]() -> Status {
    for (Rank rank = 0; rank < num_ranks; ++rank) {
      auto files = open_files(folder, folder_of_rank(folder, rank, num_ranks), how);
      if (!files.ok()) {
        *problem = files.status();
        break;
      }
      made->push_back(std::move(files).value());
    }
    return {};
  });
  if (!opener.wait(kOpenLimit)) {
    return deadline_exceeded("the folder " + folder + " does not answer (--output-filename): " +
                             "its files could not be opened within " +
                             std::to_string(kOpenLimit.count()) + " s");
  }
  RUEDA_RETURN_IF_ERROR(*problem);
  auto copies = std::make_unique<OutputCopies>(std::move(*made));
  copies->shared_->folder = folder;
  copies->shared_->num_ranks = num_ranks;
  copies->shared_->how = how;
  return copies;
}

void OutputCopies::write(Rank rank, Stream stream, std::string_view bytes) {
  if (bytes.empty()) return;
  shared_->waiting += bytes.size();
  writer_.add([shared = shared_, rank, stream, text = std::string(bytes)] {
    const Status done = shared->write(rank, stream, text);
    const size_t before = shared->waiting.fetch_sub(text.size());
    if (!done.ok() || (before > kMuchWaiting && before - text.size() <= kMuchWaiting))
      host::ring_event_fd(shared->wake.get());
    return done;
  });
}

bool OutputCopies::congested() const { return shared_->waiting > kMuchWaiting; }

void OutputCopies::add_to_poll(std::vector<pollfd>* fds) const {
  fds->push_back({shared_->wake.get(), POLLIN, 0});
}

std::vector<std::string> OutputCopies::finish(const std::function<bool()>& go_on) {
  constexpr std::chrono::milliseconds kLookAround{50};
  const auto end = std::chrono::steady_clock::now() + kEndLimit;
  bool done = writer_.idle();
  while (!done && go_on() && std::chrono::steady_clock::now() < end)
    done = writer_.wait(kLookAround);
  std::vector<std::string> problems = take_problems();
  if (!done) {
    problems.push_back("the copies of the output are not complete (--output-filename): " +
                       std::to_string(shared_->waiting) + " bytes could not be written");
  }
  return problems;
}

std::vector<std::string> OutputCopies::take_problems() {
  host::clear_event_fd(shared_->wake.get());
  return writer_.take_problems();
}

}  // namespace rueda::launcher
