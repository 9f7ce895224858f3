#include "collectives/host/progress_lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rueda::host {

void ProgressLock::lock_slowly() {
  waiting_.fetch_add(1, std::memory_order_relaxed);
  while (word_.exchange(kContended, std::memory_order_seq_cst) != kFree) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word_), FUTEX_WAIT | FUTEX_PRIVATE_FLAG,
            kContended, nullptr, nullptr, 0);
  }
  waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void ProgressLock::wake() {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word_), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1,
          nullptr, nullptr, 0);
}

}  // namespace rueda::host
