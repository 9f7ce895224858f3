#include "collectives/host/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace rueda::host {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<int> fds;
  std::vector<void (*)()> functions;
  std::atomic<uint64_t> generation{0};
};

Registry& registry() {
  static Registry* const instance = [] {
    auto* r = new Registry;  // outlives every thread and every exit handler
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     Registry& mine = registry();
                     for (const auto function : mine.functions) function();
                     for (const int fd : mine.fds) close(fd);
                     mine.fds.clear();
                     mine.generation.fetch_add(1, std::memory_order_relaxed);
                     mine.mutex.unlock();
                   });
    return r;
  }();
  return *instance;
}

}  // namespace

uint64_t fork_generation() { return registry().generation.load(std::memory_order_relaxed); }

void close_in_forked_children(int fd) {
  if (fd < 0) return;
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.fds.insert(fd);
}

void run_in_forked_children(void (*function)()) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (std::find(all.functions.begin(), all.functions.end(), function) == all.functions.end())
    all.functions.push_back(function);
}

GuardedFd::GuardedFd(UniqueFd fd) : fd_(fd.release()), generation_(fork_generation()) {
  close_in_forked_children(fd_);
}

GuardedFd::GuardedFd(GuardedFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}

GuardedFd& GuardedFd::operator=(GuardedFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

void GuardedFd::reset() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  // In a forked child it is closed already, and the number may be somebody else's.
  if (generation_ != all.generation.load(std::memory_order_relaxed)) return;
  all.fds.erase(fd);
  close(fd);
}

}  // namespace rueda::host
