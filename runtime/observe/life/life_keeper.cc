#include "runtime/observe/life/life_keeper.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <mutex>
#include <vector>

#include "collectives/base/log.h"
#include "collectives/host/threads.h"

namespace rueda::life {
namespace {

Result<UniqueFd> copy_of(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy)
    return errno_status("RUEDA_LIFE_FDS: descriptor " + std::to_string(fd) + " is not open", errno);
  return copy;
}

}  // namespace

Result<LifeFds> LifeFds::parse(const std::string& text) {
  LifeFds fds;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int* fd : {&fds.page, &fds.news, &fds.alarm}) {
    const bool divided = fd == &fds.page || (at != end && *at == ',');
    if (divided && fd != &fds.page) ++at;
    const auto [rest, error] = std::from_chars(at, end, *fd);
    if (!divided || error != std::errc() || *fd < 0)
      return invalid_argument("RUEDA_LIFE_FDS='" + text +
                              "': expected three descriptors, as ruedarun sets them");
    at = rest;
  }
  return fds;
}

Result<LifeKeeper*> LifeKeeper::of(const LifeFds& fds) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<LifeKeeper*>;  // one, but in tests
  const std::lock_guard lock(mutex);
  struct stat info = {};
  if (fstat(fds.page, &info) != 0) return errno_status("the life page is not open", errno);
  for (LifeKeeper* const keeper : *kept) {
    if (keeper->device_ == info.st_dev && keeper->inode_ == info.st_ino) return keeper;
  }
  RUEDA_ASSIGN_OR_RETURN(LifeMapping page, LifeMapping::open(fds.page));
  RUEDA_ASSIGN_OR_RETURN(UniqueFd news, copy_of(fds.news));
  RUEDA_ASSIGN_OR_RETURN(UniqueFd alarm, copy_of(fds.alarm));
  auto* const keeper = new LifeKeeper(std::move(page), std::move(news), std::move(alarm));
  keeper->device_ = info.st_dev;
  keeper->inode_ = info.st_ino;
  kept->push_back(keeper);
  if (const Status owned = keeper->own(); !owned.ok())
    RUEDA_INFO("life", "a death of this rank will be known late: {}", owned.message());
  return keeper;
}

Status LifeKeeper::own() {
  // Outlives this call where the thread does not come to tell at once.
  struct Outcome {
    Status status;
    std::atomic<bool> known{false};
  };
  const auto outcome = std::make_shared<Outcome>();
  RUEDA_ASSIGN_OR_RETURN(
      std::thread thread, host::start_thread([this, outcome] {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);  // they are for threads that do something
        outcome->status = take_ownership();
        const bool owns = outcome->status.ok();
        outcome->known.store(true);
        outcome->known.notify_all();
        if (!owns) return;
        for (;;) {  // nobody wakes it
          const uint32_t asleep = 0;
          syscall(SYS_futex, &asleep, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
        }
      }));
  thread.detach();
  outcome->known.wait(false);
  return outcome->status;
}

// The C library's own list of this thread is given up: it never takes a robust mutex.
Status LifeKeeper::take_ownership() {
  std::atomic<uint32_t>& owner = page()->owner;
  node_.next = reinterpret_cast<RobustNode*>(&head_);
  head_.list = &node_;
  head_.futex_offset =
      static_cast<long>(reinterpret_cast<uintptr_t>(&owner) - reinterpret_cast<uintptr_t>(&node_));
  head_.pending = nullptr;
  if (syscall(SYS_set_robust_list, &head_, sizeof(head_)) != 0)
    return errno_status("set_robust_list", errno);
  // The agent waits always: without the bit the kernel would wake nobody.
  owner.store(static_cast<uint32_t>(syscall(SYS_gettid)) | FUTEX_WAITERS,
              std::memory_order_release);
  return {};
}

}  // namespace rueda::life
