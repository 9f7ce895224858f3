#include "runtime/membership/first_verdict.h"

#include <charconv>
#include <set>

namespace rueda::membership {
namespace {

using std::chrono::nanoseconds;

// No rank's key: it does not go with the rank that has set it.
std::string key_of(const std::string& prefix) { return prefix + "verdict"; }

// "1 text": rank 1 was lost; "-1 text": another reason.
std::string written(const Status& verdict, const std::string& text) {
  const Rank lost = verdict.code() == Code::kUnavailable ? verdict.facts().rank : -1;
  return std::to_string(lost) + " " + text;
}

Status read(const std::string& value) {
  Rank lost = -1;
  const char* const end = value.data() + value.size();
  const char* text = std::from_chars(value.data(), end, lost).ptr;
  if (text != end) ++text;
  return unavailable(std::string(text, end)).with_rank(lost);
}

std::string note_key(const std::string& prefix, Rank rank, int number) {
  return prefix + "waits/" + std::to_string(rank) + "." + std::to_string(number);
}

}  // namespace

Status FirstVerdict::said(rendezvous::Store* store, const std::string& prefix) {
  const auto value = store->get(key_of(prefix), nanoseconds(0));
  return value.ok() ? read(value.value()) : Status();
}

Status FirstVerdict::said_earlier(rendezvous::StoreClient* store, const std::string& prefix) {
  const auto value = store->peek(key_of(prefix));
  return value.ok() ? read(value.value()) : Status();
}

Status FirstVerdict::look(Rank peer) {
  if (peer != noted_) {
    noted_ = peer;
    (void)store_->set(note_key(prefix_, me_, notes_++), std::to_string(peer));
  }
  return said(store_, prefix_);
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
  if (Status first = said(store_, prefix_); !first.ok()) return first;
  if (refused) return mine;
  const std::string text = in_time ? mine.message() : follow(mine);
  const Status set =
      store_->set(key_of(prefix_), written(mine, text + " (as " + name(me_) + " says)"));
  if (set.code() == Code::kAlreadyExists) {
    if (Status first = said(store_, prefix_); !first.ok()) return first;
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
