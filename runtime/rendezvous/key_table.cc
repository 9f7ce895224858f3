#include "runtime/rendezvous/key_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>

#include "collectives/base/utf8.h"
#include "runtime/rendezvous/store.h"

namespace rueda::rendezvous {
namespace {

size_t bytes_of(const std::string& key, const std::string& value) {
  constexpr size_t kOverhead = 128;  // of a map node, a string and a shared pointer
  return key.size() + value.size() + kOverhead;
}

}  // namespace

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

uint64_t epoch_of(const std::string& key) {
  uint64_t epoch = 0;
  if (!key.starts_with('e')) return 0;
  const auto [rest, error] = std::from_chars(key.data() + 1, key.data() + key.size(), epoch);
  return error == std::errc() && rest != key.data() + key.size() && *rest == '/' ? epoch : 0;
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

Status KeyTable::put(const std::string& key, const std::string& value) {
  RUEDA_RETURN_IF_ERROR(check_key(key));
  RUEDA_RETURN_IF_ERROR(check_value(key, value));
  const auto found = values_.find(key);
  const size_t before = found == values_.end() ? 0 : bytes_of(key, *found->second);
  const size_t after = user_bytes_ - before + bytes_of(key, value);
  if (after > kMostUserBytes) {
    return {Code::kResourceExhausted,
            fmt::format("store: the keys of users take more than {} bytes in all; erase some",
                        kMostUserBytes)};
  }
  user_bytes_ = after;
  values_[key] = std::make_shared<const std::string>(value);
  return {};
}

Result<int64_t> KeyTable::add(const std::string& key, const std::string& amount) {
  const auto number = [&](const std::string& text, int64_t* to) {
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), *to);
    return error == std::errc() && rest == text.data() + text.size();
  };
  int64_t sum = 0, more = 0;
  const Value before = find(key);
  if (!number(amount, &more) || (before != nullptr && !number(*before, &sum)))
    return invalid_argument(fmt::format("store: key '{}' does not hold a whole number", key));
  if (__builtin_add_overflow(sum, more, &sum))
    return invalid_argument(fmt::format("store: the sum in key '{}' has more than 63 bits", key));
  RUEDA_RETURN_IF_ERROR(put(key, std::to_string(sum)));
  return sum;
}

bool KeyTable::erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  user_bytes_ -= bytes_of(key, *found->second);
  values_.erase(found);
  return true;
}

KeyTable::Value KeyTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

void KeyTable::drop_epochs_before(uint64_t epoch) {
  std::erase_if(values_, [epoch](const auto& entry) {
    const uint64_t its = epoch_of(entry.first);
    return its != 0 && its < epoch;
  });
}

void KeyTable::mark_dead(Rank rank, std::string text) {
  mark_alive(rank);
  dead_.emplace_back(rank, std::move(text));
}

void KeyTable::mark_alive(Rank rank) {
  std::erase_if(dead_, [rank](const auto& death) { return death.first == rank; });
}

Status KeyTable::first_death() const {
  if (dead_.empty()) return {};
  const auto& [first, how] = dead_.front();
  return unavailable(how).with_rank(first);
}

Status KeyTable::death_behind(const std::string& key) const {
  const bool is_behind = std::any_of(dead_.begin(), dead_.end(), [&](const auto& death) {
    return key.ends_with(fmt::format("/{}", death.first));
  });
  return is_behind ? first_death() : Status();
}

}  // namespace rueda::rendezvous
