#include "collectives/transport/doorbell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace rueda::transport {
namespace {

// ThreadSanitizer does not model fences; a read-modify-write of the word orders the same accesses.
inline bool asleep_after_fence(std::atomic<uint32_t>* word) {
#if defined(__SANITIZE_THREAD__)
  return word->fetch_add(0, std::memory_order_seq_cst) != 0;
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return word->load(std::memory_order_relaxed) != 0;
#endif
}

}  // namespace

void Ringer::ring() const {
  if (!asleep_after_fence(&word->asleep)) return;
  if (word->asleep.exchange(0, std::memory_order_seq_cst) == 0) return;  // somebody else rang
  const uint64_t one = 1;
  // Fails only when the counter is full (the owner will wake anyway) or the owner has closed it.
  while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

Result<Doorbell> Doorbell::create(SleepWord* word) {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd.get() < 0) return errno_status("cannot create an eventfd", errno);
  word->asleep.store(0, std::memory_order_relaxed);
  return Doorbell(std::move(fd), word);
}

void Doorbell::arm() {
  word_->asleep.exchange(1, std::memory_order_seq_cst);
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void Doorbell::disarm() {
  word_->asleep.exchange(0, std::memory_order_seq_cst);
  // Always: a poster may have taken the word in an earlier nap and written only now.
  uint64_t count = 0;
  while (read(fd_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

}  // namespace rueda::transport
