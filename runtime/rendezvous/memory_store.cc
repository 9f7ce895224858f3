#include "runtime/rendezvous/memory_store.h"

#include "runtime/rendezvous/poll_until.h"

namespace rueda::rendezvous {

Status MemoryStore::set(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    RUEDA_RETURN_IF_ERROR(table_.set(key, value));
  }
  changed_.notify_all();
  return {};
}

Result<std::string> MemoryStore::get(const std::string& key, std::chrono::nanoseconds timeout) {
  RUEDA_RETURN_IF_ERROR(check_key(key));
  const Deadline deadline = deadline_in(timeout);
  std::unique_lock lock(mutex_);
  const uint64_t deaths_before = deaths_;
  for (bool in_time = true;;) {
    RUEDA_RETURN_IF_ERROR(table_.death_behind(key));
    if (const auto value = table_.find(key)) return *value;
    if (deaths_ != deaths_before) return last_death_;
    if (!in_time) return not_set_in_time(key, timeout);
    in_time = changed_.wait_until(lock, deadline) == std::cv_status::no_timeout;
  }
}

void MemoryStore::mark_dead(Rank rank, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    table_.mark_dead(rank, text);
    last_death_ = unavailable(text).with_rank(rank);
    ++deaths_;
  }
  changed_.notify_all();
}

}  // namespace rueda::rendezvous
