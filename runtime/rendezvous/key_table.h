// KeyTable: what a store knows, without waiting: keys, values, dead ranks. The rules that
// MemoryStore and StoreServer share. Pure; its owner brings the lock.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::rendezvous {

// kInvalidArgument when it can be no key (empty, too long, not UTF-8) or no value (too long).
Status check_key(const std::string& key);
Status check_value(const std::string& key, const std::string& value);
// "store: key 'e1/place/3' was not set within 2.5 s"
Status not_set_in_time(const std::string& key, std::chrono::nanoseconds timeout);

// 3 of "e3/place/1"; 0: a key of no epoch.
uint64_t epoch_of(const std::string& key);

class KeyTable {
 public:
  // Shared, since answers that wait to be sent outlive any change of the table.
  using Value = std::shared_ptr<const std::string>;
  static constexpr size_t kMostUserBytes = size_t{64} << 20;

  Status set(const std::string& key, const std::string& value);
  // Of the users' keys: whatever they hold. kResourceExhausted beyond kMostUserBytes in all.
  Status put(const std::string& key, const std::string& value);
  Result<int64_t> add(const std::string& key, const std::string& amount);
  // Whether it was set.
  bool erase(const std::string& key);
  // Keys of epochs before this one go: "e3/..." before epoch 4.
  void drop_epochs_before(uint64_t epoch);
  // Null when the key is not set.
  Value find(const std::string& key) const;
  const std::map<std::string, Value>& values() const { return values_; }

  // The keys of `rank` (those that end in "/<rank>") fail from now on, whether set or not.
  void mark_dead(Rank rank, std::string text);
  // A new process has taken the rank's place.
  void mark_alive(Rank rank);
  // Ranks are others' from now on.
  void forget_deaths() { dead_.clear(); }
  // kUnavailable when `key` belongs to a dead rank, with the text of the first that died: the later
  // ones may well have ended because of it. Else ok.
  Status death_behind(const std::string& key) const;
  // The same whatever the key, once any rank has died.
  Status first_death() const;

 private:
  std::map<std::string, Value> values_;
  size_t user_bytes_ = 0;
  std::vector<std::pair<Rank, std::string>> dead_;  // in the order of their deaths
};

}  // namespace rueda::rendezvous
