// Doorbell: wakes a thread that sleeps in epoll, with a system call only if it really sleeps.
//
// One rank owns a doorbell: an eventfd and a word, both shared with whoever may wake it (threads of
// this process, local peers that got the fd and map the word). The protocol (Dekker's, with full
// fences on both sides):
//
//   poster:  write the news;  fence;  if (word != 0 && exchange(word, 0) != 0) write(eventfd)
//   owner:   word = 1;  fence;  look for news once more;  if none: epoll_wait(eventfd, ...);  word
//   = 0
//
// Without the fences both sides may read the past, and the owner sleeps with news waiting.
#pragma once

#include <atomic>
#include <cstdint>

#include "collectives/base/fork_guard.h"
#include "collectives/base/status.h"

namespace rueda::transport {

// The word; lives in an arena or in the owner's memory. 1 while the owner sleeps or is about to.
struct alignas(128) SleepWord {
  std::atomic<uint32_t> asleep{0};
};

// What a poster needs. Borrows both; cheap to copy.
struct Ringer {
  int fd = -1;
  SleepWord* word = nullptr;
  // Call after the news has been written (with at least release order). Any thread.
  void ring() const;
};

// The owner's side. One thread arms and disarms.
class Doorbell {
 public:
  // `word` must outlive the doorbell.
  static Result<Doorbell> create(SleepWord* word);

  int fd() const { return fd_.get(); }
  Ringer ringer() const { return {fd_.get(), word_}; }

  // From here on until disarm() every ring makes fd() readable. Look for news once more before
  // sleeping.
  void arm();
  // Ends the nap and empties the eventfd.
  void disarm();

 private:
  Doorbell(UniqueFd fd, SleepWord* word) : fd_(std::move(fd)), word_(word) {}
  GuardedFd fd_;
  SleepWord* word_;
};

}  // namespace rueda::transport
