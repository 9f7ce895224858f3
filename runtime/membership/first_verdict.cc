#include "runtime/membership/first_verdict.h"

#include <charconv>
#include <set>

namespace rueda::membership {
namespace {

using std::chrono::nanoseconds;

// No rank's key: it does not go with the rank that has set it.
std::string key_of(const std::string& prefix) { return prefix + "verdict"; }

std::string note_key(const std::string& prefix, Rank rank, int number) {
  return prefix + "waits/" + std::to_string(rank) + "." + std::to_string(number);
}

}  // namespace

std::optional<std::string> FirstVerdict::said(rendezvous::Store* store, const std::string& prefix) {
  auto text = store->get(key_of(prefix), nanoseconds(0));
  if (!text.ok()) return std::nullopt;
  return std::move(text).value();
}

std::optional<std::string> FirstVerdict::said_earlier(rendezvous::StoreClient* store,
                                                      const std::string& prefix) {
  auto text = store->peek(key_of(prefix));
  if (!text.ok()) return std::nullopt;
  return std::move(text).value();
}

Status FirstVerdict::look(Rank peer) {
  if (peer != noted_) {
    noted_ = peer;
    (void)store_->set(note_key(prefix_, me_, notes_++), std::to_string(peer));
  }
  const auto text = said(store_, prefix_);
  return text ? unavailable(*text) : Status();
}

std::string FirstVerdict::name(Rank rank) const {
  const auto at = static_cast<size_t>(rank);
  return at < names_.size() ? names_[at] : "rank " + std::to_string(rank);
}

// The last of its notes.
std::optional<Rank> FirstVerdict::waits_for(Rank rank) {
  std::optional<Rank> found;
  for (int number = 0;; ++number) {
    const auto text = store_->get(note_key(prefix_, rank, number), nanoseconds(0));
    if (!text.ok()) return found;
    Rank peer = -1;
    std::from_chars(text.value().data(), text.value().data() + text.value().size(), peer);
    if (peer >= 0) found = peer;
  }
}

// Two ranks that wait for each other are the end of a chain.
std::string FirstVerdict::follow(const Status& mine) {
  if (noted_ < 0) return mine.message();
  std::set<Rank> seen = {me_};
  Rank from = me_, to = noted_;
  for (auto next = waits_for(to); next && seen.insert(to).second && *next != from;
       next = waits_for(to)) {
    from = to;
    to = *next;
  }
  if (from == me_) return mine.message();
  return name(from) + " has no answer from " + name(to) + " (RUEDA_START_TIMEOUT); " + name(me_) +
         " waited for " + name(noted_);
}

Status FirstVerdict::settle(const Status& mine) {
  const bool in_time = mine.code() != Code::kDeadlineExceeded;
  const bool refused = mine.code() == Code::kUnauthenticated;  // or its end came half-way
  if (in_time && !refused && mine.code() != Code::kUnavailable) return mine;
  if (auto text = said(store_, prefix_)) return unavailable(std::move(*text));
  if (refused) return mine;
  const std::string text = in_time ? mine.message() : follow(mine);
  const Status set = store_->set(key_of(prefix_), text + " (as " + name(me_) + " says)");
  if (set.code() == Code::kAlreadyExists) {
    if (auto first = said(store_, prefix_)) return unavailable(std::move(*first));
  }
  return mine.with_message(text);
}

Result<std::string> get_patiently(rendezvous::Store* store, const std::string& key,
                                  const rendezvous::Patience& patience) {
  for (;;) {
    const auto left = patience.deadline - std::chrono::steady_clock::now();
    const nanoseconds slice = std::min<nanoseconds>(left, rendezvous::Patience::kLookAround);
    auto value = store->get(key, slice);
    if (value.ok() || value.status().code() != Code::kDeadlineExceeded || slice >= left)
      return value;
    if (patience.look) RUEDA_RETURN_IF_ERROR(patience.look());
  }
}

}  // namespace rueda::membership
