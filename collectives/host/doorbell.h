// Doorbell: wakes a thread that sleeps in epoll, with a system call only if it really sleeps.
//
// One rank owns a doorbell: an eventfd and a word, both shared with whoever may wake it (threads of
// this process, local peers that got the fd and map the word). The protocol (Dekker's, with full
// fences on both sides):
//
//   poster                                         owner
//   ------                                         -----
//   write the news                                 word = 1
//   fence                                          fence
//   if (word != 0 && exchange(word, 0) != 0)       look for news once more
//     write(eventfd)                               none: epoll_wait(eventfd, ...)
//                                                  word = 0
//
// Without the fences both sides may read the past, and the owner sleeps with news waiting.
#pragma once

#include <atomic>
#include <cstdint>

#include "collectives/base/status.h"
#include "collectives/host/fork_guard.h"

namespace rueda::host {

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
  // The same where the caller has done fence_before_rings() since the news: one fence for several.
  void ring_after_fence() const;
};

void fence_before_rings();

// The owner's side. One thread at a time arms and disarms.
//
// Two words over one eventfd: `word` for what always matters (messages, submissions),
// `channel_word` for the progress of a peer in a channel, which matters only to a rank that waits
// in that channel. A peer that runs ahead of an idle rank thus makes no system call.
class Doorbell {
 public:
  // The words must outlive the doorbell; channel_word may be null.
  static Result<Doorbell> create(SleepWord* word, SleepWord* channel_word = nullptr);

  int fd() const { return fd_.get(); }
  Ringer ringer() const { return {fd_.get(), word_}; }
  Ringer channel_ringer() const { return {fd_.get(), channel_word_}; }

  // From here on until disarm() every ring makes fd() readable. Look for news once more before
  // sleeping.
  void arm();
  void arm_channel();
  // Ends the nap and empties the eventfd if somebody rang.
  void disarm();

 private:
  Doorbell(UniqueFd fd, SleepWord* word, SleepWord* channel_word)
      : fd_(std::move(fd)), word_(word), channel_word_(channel_word) {}
  void disarm(SleepWord* word, bool* armed);

  GuardedFd fd_;
  SleepWord* word_;
  SleepWord* channel_word_;
  bool armed_ = false;
  bool channel_armed_ = false;
  uint64_t owed_ = 0;  // rings whose write to the eventfd has not been read yet
};

}  // namespace rueda::host
