// WriterFirstMutex: a shared mutex of which a writer waits for those who hold it and for no
// newcomer. std::shared_mutex lets newcomers pass a waiting writer for as long as they overlap.
//
// Threads: any. Who holds it shared does not take it again: behind a waiting writer that is for
// ever.
#pragma once

#include <pthread.h>

#include "collectives/base/check.h"

namespace rueda::host {

class WriterFirstMutex {
 public:
  WriterFirstMutex() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~WriterFirstMutex() { pthread_rwlock_destroy(&lock_); }
  WriterFirstMutex(const WriterFirstMutex&) = delete;
  WriterFirstMutex& operator=(const WriterFirstMutex&) = delete;

  void lock() { RUEDA_CHECK(pthread_rwlock_wrlock(&lock_) == 0, "this thread holds it already"); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() {
    RUEDA_CHECK(pthread_rwlock_rdlock(&lock_) == 0, "this thread holds it already");
  }
  bool try_lock_shared() { return pthread_rwlock_tryrdlock(&lock_) == 0; }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

}  // namespace rueda::host
