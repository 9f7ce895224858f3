#include "runtime/observe/life/life_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "collectives/base/memory_file.h"
#include "collectives/base/version.h"

namespace rueda::life {
namespace {

Result<void*> map(int fd) {
  void* const memory = mmap(nullptr, sizeof(LifePage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return errno_status("cannot map the life page", errno);
  madvise(memory, sizeof(LifePage), MADV_DONTFORK);
  return memory;
}

// "allreduce.fc1.weight" -> "allreduce 'fc1.weight'"
std::string title_of(const std::string& operation) {
  const size_t dot = operation.find('.');
  if (dot == std::string::npos) return operation;
  return operation.substr(0, dot) + " '" + operation.substr(dot + 1) + "'";
}

}  // namespace

std::string LostRank::describe() const {
  if (rank < 0) return "this epoch of the job has ended: " + cause.str();
  std::string text = "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + " on " +
                     host.str() + ") was lost: " + cause.str();
  if (cause_is_final == 0) text += " [cause pending]";
  if (operations == 0 && !operation.str().empty()) return text;  // nobody knows any more
  if (operations == 0) return text + "; it had not submitted any operation";
  return text + "; " + describe_last_operation();
}

std::string LostRank::describe_last_operation() const {
  std::string text = "its last operation was " + title_of(operation.str()) + " (number " +
                     std::to_string(operations);
  if (step > 0) text += ", step " + std::to_string(step);
  return text + ")";
}

void LifeMapping::Unmap::operator()(LifePage* page) const { munmap(page, sizeof(LifePage)); }

Result<LifeMapping> LifeMapping::create(UniqueFd* fd) {
  RUEDA_ASSIGN_OR_RETURN(*fd, memory_file("rueda-life", "cannot make the life page"));
  // Allocated now: a page that cannot be had later would be a SIGBUS in a signal handler.
  if (const int error = posix_fallocate(fd->get(), 0, sizeof(LifePage)); error != 0)
    return errno_status("no memory for the life page (4096 bytes)", error);
  fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  RUEDA_ASSIGN_OR_RETURN(void* const memory, map(fd->get()));
  LifeMapping page(new (memory) LifePage);
  page->release = version_number();
  return page;
}

Result<LifeMapping> LifeMapping::open(int fd) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return errno_status("the life page is not open", errno);
  if (info.st_size < static_cast<off_t>(sizeof(LifePage)))
    return failed_precondition("the life page is too short: launcher and library differ");
  RUEDA_ASSIGN_OR_RETURN(void* const memory, map(fd));
  LifeMapping mapping(static_cast<LifePage*>(memory));
  if (mapping->magic != LifePage::kMagic || mapping->version != LifePage::kVersion ||
      mapping->bytes != sizeof(LifePage)) {
    return failed_precondition(
        "the life page is of another version: launcher and library differ; install both from one "
        "build");
  }
  if (mapping->release != version_number()) {
    return failed_precondition(
        "this librueda is of version " + version() + ", the launcher of this rank of version " +
        version_text(mapping->release) +
        ": two copies of rueda are in use here; start the ranks with the ruedarun that was "
        "installed with it, or remove one of them");
  }
  return mapping;
}

}  // namespace rueda::life
