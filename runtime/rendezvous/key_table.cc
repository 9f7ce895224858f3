#include "runtime/rendezvous/key_table.h"

#include <spdlog/fmt/fmt.h>

#include "collectives/base/utf8.h"
#include "runtime/rendezvous/store.h"

namespace rueda::rendezvous {

Status check_key(const std::string& key) {
  if (key.empty()) return invalid_argument("store: a key may not be empty");
  if (key.size() > kMaxKeyBytes) {
    return invalid_argument(
        fmt::format("store: a key of {} bytes is too long (at most {})", key.size(), kMaxKeyBytes));
  }
  if (!is_valid_utf8(key)) return invalid_argument("store: a key must be UTF-8");
  return {};
}

Status check_value(const std::string& key, const std::string& value) {
  if (value.size() <= kMaxValueBytes) return {};
  return invalid_argument(fmt::format("store: the value of key '{}' has {} bytes, at most {} fit",
                                      key, value.size(), kMaxValueBytes));
}

Status not_set_in_time(const std::string& key, std::chrono::nanoseconds timeout) {
  return deadline_exceeded(fmt::format("store: key '{}' was not set within {:g} s", key,
                                       std::chrono::duration<double>(timeout).count()));
}

Status KeyTable::set(const std::string& key, const std::string& value) {
  RUEDA_RETURN_IF_ERROR(check_key(key));
  RUEDA_RETURN_IF_ERROR(check_value(key, value));
  Value& slot = values_[key];
  if (slot == nullptr) {
    slot = std::make_shared<const std::string>(value);
    return {};
  }
  if (*slot == value) return {};
  return {Code::kAlreadyExists,
          fmt::format("store: key '{}' already holds another value ({} bytes; {} bytes were to be "
                      "set); keys are set once",
                      key, slot->size(), value.size())};
}

KeyTable::Value KeyTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

void KeyTable::mark_dead(Rank rank, std::string text) {
  mark_alive(rank);
  dead_.emplace_back(rank, std::move(text));
}

void KeyTable::mark_alive(Rank rank) {
  std::erase_if(dead_, [rank](const auto& death) { return death.first == rank; });
}

Status KeyTable::death_behind(const std::string& key) const {
  for (const auto& [rank, text] : dead_) {
    const auto& [first, how] = dead_.front();
    if (key.ends_with(fmt::format("/{}", rank))) return unavailable(how).with_rank(first);
  }
  return {};
}

}  // namespace rueda::rendezvous
