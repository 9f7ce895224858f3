#include "runtime/negotiation/id_table.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "collectives/base/log.h"

namespace rueda::negotiation {
namespace {

constexpr size_t kNamed = 0;
constexpr size_t kUnnamed = 1;

// "allreduce.noname.7": numbered by the runtime. Few numbers go round; longer ones are used once,
// as groups without a name are.
bool is_unnamed(const wire::Request& request) {
  const size_t dot = request.name.find('.');
  return dot != std::string::npos && request.name.compare(dot + 1, 7, "noname.") == 0;
}

}  // namespace

IdTable::IdTable(size_t capacity, size_t ranks) : capacity_(capacity), ranks_(ranks) {}

bool IdTable::cacheable(const wire::Request& request) {
  switch (request.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kAllgather:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kAlltoall:
    case CollectiveKind::kBarrier:
      return !is_unnamed(request) ||
             (request.group.empty() &&
              request.name.size() <=
                  request.name.find('.') + std::string_view(".noname.15").size());
    case CollectiveKind::kJoin:
    case CollectiveKind::kProcessSet:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter: return false;
  }
  return false;
}

const IdTable::Entry* IdTable::get(CacheId id) const {
  const auto known = known_.find(id);
  return known == known_.end() ? nullptr : &known->second.entry;
}

RequestPtr IdTable::meaning(Rank rank, CacheId id) const {
  if (const Entry* entry = get(id)) return entry->requests.of(rank);
  const auto number = evicted_at_.find(id);
  if (number == evicted_at_.end()) return nullptr;
  const uint64_t first = evictions_ - evicted_.size() + 1;
  return evicted_[number->second - first].requests.of(rank);
}

std::optional<CacheId> IdTable::find(const std::vector<RequestPtr>& by_rank) const {
  const auto [begin, end] = by_hash_.equal_range(Requests(by_rank).hash());
  const auto found = std::find_if(begin, end, [&](const auto& of_hash) {
    return known_.at(of_hash.second).entry.requests.are(by_rank);
  });
  if (found == end) return std::nullopt;
  return found->second;
}

void IdTable::put_last(CacheId id, Known* known) {
  Order& order = order_[known->kind];
  known->at = order.insert(order.end(), id);
}

// The one to go next; those after one that the next list speaks of are younger still.
std::optional<CacheId> IdTable::oldest(size_t kind) const {
  for (const CacheId id : order_[kind]) {
    const Known& known = known_.at(id);
    if (known.list == list_) return std::nullopt;
    if (!known.held) return id;
  }
  return std::nullopt;
}

bool IdTable::make_room(size_t kind) {
  // Unnamed operations may come in any number of shapes: they leave room for named ones.
  if (kind == kUnnamed && counts_[kUnnamed] >= capacity_ / 4) {
    const auto unnamed = oldest(kUnnamed);
    if (!unnamed) return false;
    evict(*unnamed);
  }
  if (known_.size() < capacity_) return true;
  const auto named = oldest(kNamed);
  const auto unnamed = oldest(kUnnamed);
  if (!named && !unnamed) return false;
  const bool takes_unnamed =
      !named || (unnamed && known_.at(*unnamed).used < known_.at(*named).used);
  evict(takes_unnamed ? *unnamed : *named);
  return true;
}

std::optional<CacheId> IdTable::assign(Entry entry) {
  const wire::Request& request = *entry.requests.first();
  if (!cacheable(request)) return std::nullopt;
  const size_t kind = is_unnamed(request) ? kUnnamed : kNamed;
  if (capacity_ == 0 || !make_room(kind)) return std::nullopt;
  const CacheId id = next_++;
  by_hash_.emplace(entry.requests.hash(), id);
  Known& known = known_[id];
  known.entry = std::move(entry);
  known.kind = kind;
  known.used = ++uses_;
  known.list = list_;
  ++counts_[kind];
  put_last(id, &known);
  return id;
}

void IdTable::use(CacheId id) {
  const auto known = known_.find(id);
  if (known == known_.end()) return;
  known->second.used = ++uses_;
  known->second.list = list_;
  if (known->second.planned) return;
  Order& order = order_[known->second.kind];
  order.splice(order.end(), order, known->second.at);
}

void IdTable::hold(CacheId id, bool held) {
  const auto known = known_.find(id);
  if (known != known_.end()) known->second.held = held;
}

void IdTable::begin_plan(const std::vector<CacheId>& ids) {
  end_plan();
  for (const CacheId id : ids) {
    Known& known = known_.at(id);
    known.held = false;
    if (std::exchange(known.planned, true)) continue;
    order_[known.kind].erase(known.at);
    planned_.push_back(id);
  }
}

void IdTable::end_plan() {
  for (const CacheId id : std::exchange(planned_, {})) {
    Known& known = known_.at(id);
    known.planned = false;
    known.used = ++uses_;
    put_last(id, &known);
  }
}

void IdTable::evict(CacheId id) {
  if (evictions_ == 0) {
    RUEDA_INFO("coordinator", "response cache: {} tensors, the least recently used are forgotten",
               known_.size());
  }
  const auto gone = known_.find(id);
  Known known = std::move(gone->second);
  order_[known.kind].erase(known.at);
  --counts_[known.kind];
  known_.erase(gone);
  const auto [begin, end] = by_hash_.equal_range(known.entry.requests.hash());
  by_hash_.erase(
      std::find_if(begin, end, [&](const auto& known_id) { return known_id.second == id; }));
  evicted_at_[id] = ++evictions_;
  fresh_evicted_.push_back({id, known.entry.requests.first()});
  evicted_.push_back({id, std::move(known.entry.requests)});
}

bool IdTable::on_handled(Rank rank, uint64_t evictions) {
  if (evictions > announced_) return false;
  uint64_t& handled = ranks_[static_cast<size_t>(rank)].handled;
  if (evictions <= handled) return true;  // an older list of one that had joined
  handled = evictions;
  forget_handled();
  return true;
}

void IdTable::on_silent(Rank rank) {
  ranks_[static_cast<size_t>(rank)].silent = true;
  forget_handled();
}

void IdTable::on_end_join() {
  for (Member& member : ranks_) {
    if (!member.silent) continue;
    member.silent = false;
    member.handled = std::max(member.handled, announced_);
  }
}

void IdTable::forget_handled() {
  uint64_t by_all = evictions_;
  for (const Member& member : ranks_) {
    if (!member.silent) by_all = std::min(by_all, member.handled);
  }
  while (!evicted_.empty() && evictions_ - evicted_.size() < by_all) {
    evicted_at_.erase(evicted_.front().id);
    evicted_.pop_front();
  }
}

}  // namespace rueda::negotiation
