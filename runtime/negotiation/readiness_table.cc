#include "runtime/negotiation/readiness_table.h"

#include <algorithm>

namespace rueda::negotiation {

const wire::Request& Decision::request() const {
  return **std::find_if(by_rank.begin(), by_rank.end(),
                        [](const RequestPtr& r) { return r != nullptr; });
}

ReadinessTable::ReadinessTable(std::vector<std::string> rank_names)
    : rank_names_(std::move(rank_names)), left_(rank_names_.size(), false) {}

Status ReadinessTable::missing_rank(const std::string& name, Rank rank) const {
  return cancelled(title_of(name) + " cannot complete: " + rank_names_[static_cast<size_t>(rank)] +
                   " has been shut down without submitting it");
}

std::optional<Decision> ReadinessTable::add(Rank rank, RequestPtr request, Time now) {
  const std::string& name = request->name;
  auto [it, is_new] = entries_.try_emplace(name);
  Entry& entry = it->second;
  if (is_new) {
    entry.by_rank.resize(rank_names_.size());
    entry.since = entry.latest = now;
  }
  RequestPtr& slot = entry.by_rank[static_cast<size_t>(rank)];
  // A rank submits a name once at a time (its own queue sees to that); a second one is a broken
  // peer, and is dropped.
  if (slot == nullptr) ++entry.count;
  slot = std::move(request);
  if (entry.count == entry.by_rank.size()) {
    Decision decision{std::move(entry.by_rank), {}, entry.latest};
    entries_.erase(it);
    decision.status = check_agreement(decision.by_rank);
    return decision;
  }
  entry.latest = now;
  for (size_t other = 0; other < left_.size(); ++other) {
    if (left_[other] && entry.by_rank[other] == nullptr) {
      Decision decision{std::move(entry.by_rank), {}};
      decision.status = missing_rank(it->first, static_cast<Rank>(other));
      entries_.erase(it);
      return decision;
    }
  }
  return std::nullopt;
}

std::vector<Decision> ReadinessTable::leave(Rank rank) {
  std::vector<Decision> decisions;
  left_[static_cast<size_t>(rank)] = true;
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    // What the leaver itself had submitted ends on its side; the others wait for it all the same.
    if (entry.by_rank[static_cast<size_t>(rank)] != nullptr) --entry.count;
    entry.by_rank[static_cast<size_t>(rank)] = nullptr;
    if (entry.count > 0)
      decisions.push_back({std::move(entry.by_rank), missing_rank(it->first, rank)});
    it = entries_.erase(it);
  }
  return decisions;
}

std::optional<Decision> ReadinessTable::fail(const std::string& name, const Status& status) {
  const auto it = entries_.find(name);
  if (it == entries_.end()) return std::nullopt;
  Decision decision{std::move(it->second.by_rank), status};
  entries_.erase(it);
  return decision;
}

bool ReadinessTable::withdraw(const RequestPtr& request) {
  const auto it = entries_.find(request->name);
  if (it == entries_.end()) return true;
  Entry& entry = it->second;
  for (RequestPtr& sent : entry.by_rank) {
    if (sent == nullptr || !(sent == request || *sent == *request)) continue;
    sent = nullptr;
    --entry.count;
  }
  if (entry.count > 0) return false;
  entries_.erase(it);
  return true;
}

std::vector<Waiting> ReadinessTable::waiting() const {
  std::vector<Waiting> result;
  for (const auto& [name, entry] : entries_) {
    Waiting waiting{name, entry.since, {}, {}};
    for (size_t rank = 0; rank < entry.by_rank.size(); ++rank) {
      (entry.by_rank[rank] != nullptr ? waiting.ready : waiting.missing)
          .push_back(static_cast<Rank>(rank));
    }
    result.push_back(std::move(waiting));
  }
  std::sort(result.begin(), result.end(), [](const Waiting& a, const Waiting& b) {
    return a.since != b.since ? a.since < b.since : a.name < b.name;
  });
  return result;
}

std::vector<std::string> ReadinessTable::members_of(const std::string& group) const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    const bool is_member = std::any_of(
        entry.by_rank.begin(), entry.by_rank.end(),
        [&](const RequestPtr& request) { return request != nullptr && request->group == group; });
    if (is_member) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool ReadinessTable::submitted(Rank rank, const std::string& name) const {
  const auto it = entries_.find(name);
  return it != entries_.end() && it->second.by_rank[static_cast<size_t>(rank)] != nullptr;
}

}  // namespace rueda::negotiation
