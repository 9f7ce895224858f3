// MemoryStore: the Store of ranks that are threads of one process.
//
// Owns its keys and values. A get that waits when the store is destroyed is the caller's mistake.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

#include "runtime/rendezvous/key_table.h"
#include "runtime/rendezvous/store.h"

namespace rueda::rendezvous {

class MemoryStore : public Store {
 public:
  Status set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) override;

  // Every get that waits now, and every later one for a key of `rank`, ends with kUnavailable and
  // this text.
  void mark_dead(Rank rank, const std::string& text);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  KeyTable table_;
  uint64_t deaths_ = 0;
  Status last_death_;
};

}  // namespace rueda::rendezvous
