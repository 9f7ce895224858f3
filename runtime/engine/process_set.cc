#include "runtime/engine/process_set.h"

#include <algorithm>
#include <numeric>

#include "collectives/base/utf8.h"
#include "collectives/host/arena.h"
#include "proto/limits.h"
#include "runtime/negotiation/agreement.h"

namespace rueda::engine {
namespace {

ProcessSetPtr make_global(Rank rank, Rank size) {
  auto set = std::make_shared<ProcessSet>();
  set->ranks.resize(static_cast<size_t>(size));
  std::iota(set->ranks.begin(), set->ranks.end(), Rank{0});
  set->place = rank;
  set->channels = 0;
  return set;
}

bool overlap(const std::vector<Rank>& a, const std::vector<Rank>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](Rank rank) { return std::binary_search(b.begin(), b.end(), rank); });
}

}  // namespace

std::optional<Rank> ProcessSet::place_of(Rank rank) const {
  const auto it = ordered ? std::find(ranks.begin(), ranks.end(), rank)
                          : std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (it == ranks.end() || *it != rank) return std::nullopt;
  return static_cast<Rank>(it - ranks.begin());
}

std::string ProcessSet::describe() const {
  const std::string which = ordered ? "group '" + key + "'" : "process set " + std::to_string(id);
  return which + " (" + negotiation::name_ranks(ranks) + ")";
}

ProcessSetTable::ProcessSetTable(Rank rank, Rank size)
    : rank_(rank), global_(make_global(rank, size)), sets_{global_} {}

Result<ProcessSetPtr> ProcessSetTable::find_locked(uint32_t id) const {
  if (id >= kFirstGroup) {
    const auto group = ordered_.find(id);
    if (group != ordered_.end()) return group->second;
    return invalid_argument("there is no group " + std::to_string(id) +
                            " on this rank: it was never opened, or has been closed");
  }
  for (const ProcessSetPtr& set : sets_) {
    if (set->id != id) continue;
    if (set == closed_) return invalid_argument(set->describe() + " is being removed");
    return set;
  }
  return invalid_argument("process set " + std::to_string(id) +
                          " does not exist: it was never added, or has been removed");
}

Result<ProcessSetPtr> ProcessSetTable::find(uint32_t id) const {
  if (id == 0) return global_;
  const std::lock_guard<std::mutex> lock(mutex_);
  return find_locked(id);
}

Result<ProcessSetPtr> ProcessSetTable::find_own(uint32_t id) const {
  RUEDA_ASSIGN_OR_RETURN(ProcessSetPtr set, find(id));
  if (set->place) return set;
  return invalid_argument("rank " + std::to_string(rank_) +
                          " is not a member of the provided process set: " + set->describe() +
                          "; only its members may call its operations");
}

std::vector<ProcessSetPtr> ProcessSetTable::all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ProcessSetPtr> open;
  for (const ProcessSetPtr& set : sets_) {
    if (set != closed_) open.push_back(set);
  }
  return open;
}

// The first group of channels that no overlapping set has.
std::optional<size_t> ProcessSetTable::free_channels(const std::vector<Rank>& ranks) const {
  for (size_t group = 1; group < host::kProcessSetChannels; ++group) {
    const bool taken = std::any_of(sets_.begin(), sets_.end(), [&](const ProcessSetPtr& set) {
      return set->channels == group && overlap(set->ranks, ranks);
    });
    if (!taken) return group;
  }
  return std::nullopt;
}

Result<ProcessSetPtr> ProcessSetTable::plan(const std::vector<int64_t>& ranks) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ranks.empty()) return invalid_argument("a process set needs at least one rank");
  auto set = std::make_shared<ProcessSet>();
  for (const int64_t rank : ranks) {
    if (rank < 0 || rank >= global_->size()) {
      return invalid_argument("a process set cannot have rank " + std::to_string(rank) +
                              ": the job has ranks 0 to " + std::to_string(global_->size() - 1));
    }
    if (!set->ranks.empty() && rank <= set->ranks.back())
      return invalid_argument("a process set cannot have rank " + std::to_string(rank) + " twice");
    set->ranks.push_back(static_cast<Rank>(rank));
  }
  for (const ProcessSetPtr& other : sets_) {
    if (other->ranks == set->ranks) {
      return invalid_argument("a process set with the same ranks exists already: " +
                              other->describe());
    }
  }
  if (next_serial_ >= kMostSerials) {
    return Status(Code::kResourceExhausted,
                  "a job can add " + std::to_string(kMostSerials - 1) + " process sets in all");
  }
  set->id = free_ids_.empty() ? next_id_ : free_ids_.front();
  set->serial = next_serial_;
  set->place = set->place_of(rank_);
  set->channels = free_channels(set->ranks);
  return set;
}

ProcessSetPtr ProcessSetTable::add(const std::vector<int64_t>& ranks) {
  ProcessSetPtr set = plan(ranks).value();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_ids_.empty()) {
    ++next_id_;
  } else {
    free_ids_.pop_front();
  }
  ++next_serial_;
  const auto by_id = [](const ProcessSetPtr& a, const ProcessSetPtr& b) { return a->id < b->id; };
  sets_.insert(std::lower_bound(sets_.begin(), sets_.end(), set, by_id), set);
  return set;
}

void ProcessSetTable::close(const ProcessSetPtr& set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = set;
}

void ProcessSetTable::remove(const ProcessSetPtr& set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sets_.erase(std::find(sets_.begin(), sets_.end(), set));
  free_ids_.push_back(set->id);
  closed_ = nullptr;
}

Result<ProcessSetPtr> ProcessSetTable::open_group(std::string key, std::vector<Rank> ranks) {
  if (key.empty() || key.size() > wire::kMaxGroupKeyBytes || !is_valid_utf8(key)) {
    return invalid_argument("the key of a group must be UTF-8 of 1 to " +
                            std::to_string(wire::kMaxGroupKeyBytes) + " bytes");
  }
  for (auto it = ranks.begin(); it != ranks.end(); ++it) {
    if (*it < 0 || *it >= global_->size()) {
      return invalid_argument("group '" + key + "' cannot have rank " + std::to_string(*it) +
                              ": the job has ranks 0 to " + std::to_string(global_->size() - 1));
    }
    if (std::find(ranks.begin(), it, *it) != it)
      return invalid_argument("group '" + key + "' cannot have rank " + std::to_string(*it) +
                              " twice");
  }
  auto group = std::make_shared<ProcessSet>();
  group->ordered = true;
  group->key = std::move(key);
  group->ranks = std::move(ranks);
  group->place = group->place_of(rank_);
  if (!group->place) {
    return invalid_argument("rank " + std::to_string(rank_) + " cannot open " + group->describe() +
                            ": it is no member; a group is opened by its members alone");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (next_group_ == tags::kMostGroups) {
    return Status(Code::kResourceExhausted,
                  "a rank can open " + std::to_string(tags::kMostGroups) + " groups in all");
  }
  group->serial = next_group_++;
  group->id = kFirstGroup + group->serial;
  ordered_.emplace(group->id, group);
  return group;
}

bool ProcessSetTable::close_group(const ProcessSetPtr& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ordered_.erase(group->id) != 0;
}

}  // namespace rueda::engine
