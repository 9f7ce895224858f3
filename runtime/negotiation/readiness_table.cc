#include "runtime/negotiation/readiness_table.h"

#include <algorithm>

namespace rueda::negotiation {

const RequestPtr& Decision::first() const {
  return *std::find_if(by_rank.begin(), by_rank.end(),
                       [](const RequestPtr& r) { return r != nullptr; });
}

ReadinessTable::ReadinessTable(Members members, bool strict)
    : members_(std::move(members)),
      left_(members_.size(), false),
      joined_(members_.size(), false),
      strict_(strict) {}

Status ReadinessTable::missing_rank(const std::string& name, Rank rank) const {
  return cancelled(title_of(name) + " cannot complete: " + members_.name(rank) + " " +
                   members_.has_left + " without submitting it")
      .with_rank(members_.ranks[static_cast<size_t>(rank)]);
}

std::optional<Decision> ReadinessTable::add(Rank rank, RequestPtr request, Time now,
                                            std::optional<CacheId> id) {
  const std::string& name = request->name;
  auto [it, is_new] = entries_.try_emplace(name);
  Entry& entry = it->second;
  if (is_new) {
    entry.by_rank.resize(members_.size());
    entry.since = entry.latest = now;
    entry.id = id;
  }
  RequestPtr& sent = entry.by_rank[static_cast<size_t>(rank)];
  // A rank submits a name once at a time (its own queue sees to that); a second one is a broken
  // peer, and is dropped.
  if (sent == nullptr) ++entry.count;
  sent = std::move(request);
  if (entry.id != id) entry.id.reset();
  if (is_complete(name, entry)) {
    Decision decision = decide(std::move(entry));
    entries_.erase(it);
    return decision;
  }
  entry.latest = now;
  for (size_t other = 0; other < left_.size(); ++other) {
    if (left_[other] && entry.by_rank[other] == nullptr) {
      Decision decision;
      decision.by_rank = std::move(entry.by_rank);
      decision.status = missing_rank(it->first, static_cast<Rank>(other));
      entries_.erase(it);
      return decision;
    }
  }
  return std::nullopt;
}

// Every rank has submitted it, or has joined.
bool ReadinessTable::is_complete(const std::string& name, const Entry& entry) const {
  if (entry.count == entry.by_rank.size()) return true;
  // These come from every rank all the same.
  if (name == kJoinName || name == kChangeEndName) return false;
  if (entry.count + joined_count_ < entry.by_rank.size()) return false;
  for (size_t rank = 0; rank < entry.by_rank.size(); ++rank) {
    if (entry.by_rank[rank] == nullptr && !joined_[rank]) return false;
  }
  return true;
}

Decision ReadinessTable::decide(Entry entry) const {
  Decision decision;
  decision.by_rank = std::move(entry.by_rank);
  decision.id = entry.id;
  decision.before = entry.latest;
  for (size_t place = 0; entry.count < decision.by_rank.size() && place < decision.by_rank.size();
       ++place) {
    if (decision.by_rank[place] == nullptr) decision.absent.push_back(static_cast<Rank>(place));
  }
  // Agreed on before; but where a rank has joined, other rows arrive.
  if (!decision.id || !decision.absent.empty()) decision.status = agreement_of(decision);
  decision.disagreement = !decision.status.ok();
  if (!decision.absent.empty() && decision.status.ok())
    decision.status = check_absent(decision.request(), decision.absent);
  return decision;
}

Status ReadinessTable::agreement_of(const Decision& decision,
                                    const std::vector<std::string>& sites) const {
  const Status agreed = agreement_of_present(decision, sites);
  if (!agreed.ok() || !has_sizes(decision.request().kind)) return agreed;
  return check_output_rows(decision.by_rank, members_.ranks, sites);
}

Status ReadinessTable::agreement_of_present(const Decision& decision,
                                            const std::vector<std::string>& sites) const {
  if (decision.absent.empty()) return check_agreement(decision.by_rank, members_.ranks, sites);
  std::vector<RequestPtr> present;
  std::vector<Rank> ranks;
  std::vector<std::string> sites_of_present;
  for (size_t place = 0; place < decision.by_rank.size(); ++place) {
    if (decision.by_rank[place] == nullptr) continue;
    present.push_back(decision.by_rank[place]);
    ranks.push_back(members_.ranks[place]);
    if (!sites.empty()) sites_of_present.push_back(sites[place]);
  }
  return check_agreement(present, ranks, sites_of_present);
}

// What nobody can stand in for.
Status ReadinessTable::check_absent(const wire::Request& r, const std::vector<Rank>& absent) const {
  const std::string title = title_of(r) + ": ";
  const Rank first = members_.ranks[static_cast<size_t>(absent.front())];
  if (r.device >= 0) {
    return failed_precondition(
               title + members_.name(absent.front()) +
               " has joined, and nobody stands in for it with a GPU tensor yet; give "
               "all ranks the same number of steps, or use CPU tensors")
        .with_rank(first);
  }
  if (r.kind == CollectiveKind::kProcessSet) {
    return failed_precondition(title + members_.name(absent.front()) +
                               " has joined; add and remove process sets before join")
        .with_rank(first);
  }
  const bool stands_in = r.kind == CollectiveKind::kAllreduce || r.kind == CollectiveKind::kBarrier;
  if (strict_ && !stands_in) {
    return failed_precondition(title_of(r) +
                               " is not supported with Join: " + members_.name(absent.front()) +
                               " has joined, and RUEDA_HOROVOD_STRICT is set, as Horovod has only "
                               "allreduce then")
        .with_rank(first);
  }
  if (r.kind == CollectiveKind::kBroadcast &&
      std::find(absent.begin(), absent.end(), r.root) != absent.end()) {
    return failed_precondition(title + "its root, " + members_.name(r.root) +
                               ", has joined and sends nothing; broadcast from a rank that has "
                               "not, or before join")
        .with_rank(members_.ranks[static_cast<size_t>(r.root)]);
  }
  const bool reduces =
      r.kind == CollectiveKind::kAllreduce || r.kind == CollectiveKind::kReducescatter;
  const bool scaled = reduces && r.prescale != 1.0;
  const bool min_or_max = r.reduce_op == ReduceOp::kMin || r.reduce_op == ReduceOp::kMax;
  if (scaled && (r.reduce_op == ReduceOp::kProduct || (min_or_max && !is_floating(r.dtype)))) {
    return failed_precondition(title + name_of(r.reduce_op) + " of prescaled " + name_of(r.dtype) +
                               " has no neutral element for " + members_.name(absent.front()) +
                               ", which has joined; scale before the call")
        .with_rank(first);
  }
  return {};
}

std::vector<Decision> ReadinessTable::join(Rank rank) {
  std::vector<Decision> decisions;
  if (has_joined(rank)) return decisions;
  joined_[static_cast<size_t>(rank)] = true;
  ++joined_count_;
  std::vector<std::string> complete;
  for (const auto& [name, entry] : entries_) {
    if (is_complete(name, entry)) complete.push_back(name);
  }
  std::sort(complete.begin(), complete.end());
  for (const std::string& name : complete)
    decisions.push_back(decide(std::move(entries_.extract(name).mapped())));
  return decisions;
}

void ReadinessTable::end_join() {
  std::fill(joined_.begin(), joined_.end(), false);
  joined_count_ = 0;
}

void ReadinessTable::refresh(const std::string& name, Time now) {
  if (const auto it = entries_.find(name); it != entries_.end()) it->second.since = now;
}

std::vector<Decision> ReadinessTable::leave(Rank rank) {
  std::vector<Decision> decisions;
  left_[static_cast<size_t>(rank)] = true;
  if (has_joined(rank)) {
    joined_[static_cast<size_t>(rank)] = false;
    --joined_count_;
  }
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

bool ReadinessTable::withdraw(const Requests& requests) {
  const auto it = entries_.find(requests.first()->name);
  if (it == entries_.end()) return true;
  Entry& entry = it->second;
  for (size_t rank = 0; rank < entry.by_rank.size(); ++rank) {
    RequestPtr& sent = entry.by_rank[rank];
    if (sent == nullptr || !same(sent, requests.of(static_cast<Rank>(rank)))) continue;
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
      if (entry.by_rank[rank] != nullptr) {
        waiting.ready.push_back(static_cast<Rank>(rank));
      } else if (!joined_[rank]) {
        waiting.missing.push_back(static_cast<Rank>(rank));
      }
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
