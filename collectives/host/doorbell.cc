#include "collectives/host/doorbell.h"

#include <algorithm>

#include "collectives/host/event_fd.h"

namespace rueda::host {
namespace {

// ThreadSanitizer does not model fences; a read-modify-write of the word orders the same accesses.
inline bool asleep_now(std::atomic<uint32_t>* word) {
#if defined(__SANITIZE_THREAD__)
  return word->fetch_add(0, std::memory_order_seq_cst) != 0;
#else
  return word->load(std::memory_order_relaxed) != 0;
#endif
}

}  // namespace

void fence_before_rings() {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void Ringer::ring_after_fence() const {
  if (!asleep_now(&word->asleep)) return;
  if (word->asleep.exchange(0, std::memory_order_seq_cst) == 0) return;  // somebody else rang
  ring_event_fd(fd);
}

void Ringer::ring() const {
  fence_before_rings();
  ring_after_fence();
}

Result<Doorbell> Doorbell::create(SleepWord* word, SleepWord* channel_word) {
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, make_event_fd());
  word->asleep.store(0, std::memory_order_relaxed);
  if (channel_word != nullptr) channel_word->asleep.store(0, std::memory_order_relaxed);
  return Doorbell(std::move(fd), word, channel_word);
}

namespace {

void set_asleep(SleepWord* word) {
  word->asleep.exchange(1, std::memory_order_seq_cst);
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

void Doorbell::arm() {
  // Armed already and taken by a ringer: its write is on the way, and is not forgotten.
  if (armed_ && word_->asleep.load(std::memory_order_relaxed) == 0) ++owed_;
  armed_ = true;
  set_asleep(word_);
}

void Doorbell::arm_channel() {
  if (channel_word_ == nullptr) return;
  if (channel_armed_ && channel_word_->asleep.load(std::memory_order_relaxed) == 0) ++owed_;
  channel_armed_ = true;
  set_asleep(channel_word_);
}

void Doorbell::disarm(SleepWord* word, bool* armed) {
  if (!*armed) return;
  *armed = false;
  if (word->asleep.exchange(0, std::memory_order_seq_cst) == 0) ++owed_;
}

void Doorbell::disarm() {
  disarm(word_, &armed_);
  disarm(channel_word_, &channel_armed_);
  if (owed_ == 0) return;
  // A ringer that took the word may write only later; what is still owed is read in a later nap.
  owed_ -= std::min(owed_, clear_event_fd(fd_.get()));
}

}  // namespace rueda::host
