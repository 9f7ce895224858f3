// The negotiator and what the root has decided.
#include <algorithm>
#include <utility>

#include "runtime/negotiation/negotiator.h"

namespace rueda::negotiation {
namespace {

// What is agreed on under no id, or a new one.
SizesPtr sizes_in(const wire::ResponseEntry& entry, CollectiveKind kind) {
  if (!has_sizes(kind)) return nullptr;
  return std::make_shared<const Sizes>(kind == CollectiveKind::kAllgather ? entry.first_dims
                                                                          : entry.splits);
}

}  // namespace

void Negotiator::handle_responses(wire::ResponseList list, Time now) {
  for (wire::Response& response : list.responses) {
    if (response.freeze.empty()) {
      handle_response(std::move(response));
    } else {
      start_plan(response.freeze.front(), now);
    }
    if (broken_) return;
  }
  for (const wire::Stall& stall : list.stalls) handle_stall(stall);
  ask_sites(list.where);
  forget(list.evicted);
  if (list.left) root_has_left(list.left_before);
}

void Negotiator::handle_response(wire::Response response) {
  std::vector<std::pair<action::Member, Unanswered>> members;
  // The members taken so far wait again, so that they end with the verdict too.
  const auto refuse_batch = [&](const std::string& why) {
    for (const auto& [member, pending] : members) {
      if (member.neutral == nullptr) pending_[pending.request->name] = pending;
    }
    give_up(internal_error(why));
  };
  std::vector<SizesPtr> sizes;
  for (wire::ResponseEntry& entry : response.entries) {
    const bool has_id = entry.cache_id >= 0 && response.error.empty();
    const auto id = static_cast<CacheId>(entry.cache_id);
    const ResponseCache::Agreed* agreed = has_id ? cache_.get(id) : nullptr;
    if (agreed == nullptr && entry.name.empty())
      return refuse_batch("the root named a tensor that this rank does not know");
    const std::string name = agreed == nullptr ? entry.name : agreed->request->name;
    const bool absent =
        std::find(entry.absent.begin(), entry.absent.end(), group_.rank) != entry.absent.end();
    if (absent && !response.error.empty()) continue;  // another one than this rank's
    const auto it = absent ? pending_.end() : pending_.find(name);
    if (it == pending_.end() && !absent) {
      if (!response.error.empty()) continue;  // this rank did not wait for it
      return refuse_batch("the root answered " + title_of(name) +
                          ", which this rank has not submitted");
    }
    RequestPtr neutral;
    if (absent) {
      if (!entry.neutral.empty()) {
        neutral = std::make_shared<const wire::Request>(entry.neutral.front());
      } else if (agreed != nullptr) {
        neutral = agreed->request;
      } else {
        return refuse_batch("the root does not say what " + title_of(name) + " is");
      }
    }
    const wire::Request& request = absent ? *neutral : *it->second.request;
    SizesPtr agreed_sizes = agreed != nullptr ? agreed->sizes : sizes_in(entry, request.kind);
    if (response.error.empty() && !fit(request, agreed_sizes, group_.rank, group_.size)) {
      return refuse_batch("the root's sizes of " + title_of(name) +
                          " are not what this rank has submitted");
    }
    if (has_id) {
      agreed == nullptr ? cache_.put(id, request, agreed_sizes) : cache_.use(id);
      // With its name: the root has just met it and may put it into a batch next time.
      has_company_[name] = !entry.name.empty() || response.entries.size() > 1;
    }
    sizes.push_back(std::move(agreed_sizes));
    if (absent) {
      members.push_back({{{}, neutral}, {}});
    } else {
      members.push_back({{it->second.handle, nullptr}, it->second});
      pending_.erase(it);
    }
  }
  if (response.kind == CollectiveKind::kJoin) joined_ = false;
  if (members.empty()) return;
  if (!response.error.empty()) {
    // Somebody has left, or has not come in time: the launcher shall know why this rank fails.
    if (response.error_code == Code::kCancelled || response.error_code == Code::kDeadlineExceeded)
      act(action::Blame{response.error, response.error_code == Code::kCancelled});
    Status status = Status(response.error_code, response.error)
                        .with_rank(static_cast<Rank>(response.error_rank) - 1);
    if (!response.error_of_group) status = status.naming_operation();
    for (const auto& [member, pending] : members) act(action::Finish{member.handle, status});
    return;
  }
  const CollectiveKind kind = response.kind;
  const bool cached = response.entries.front().cache_id >= 0;
  action::Launch launch{std::move(response), {}, std::move(sizes)};
  for (auto& [member, pending] : members) launch.members.push_back(std::move(member));
  act(std::move(launch));
  if (is_root()) replace_idle_plan(kind, cached);
}

// The root has taken these back. What was to be asked for by such an id is asked for otherwise.
void Negotiator::forget(const std::vector<uint64_t>& evicted) {
  for (const CacheId id : evicted) {
    const ResponseCache::Agreed* agreed = cache_.get(id);
    if (agreed != nullptr) {
      const RequestPtr request = agreed->request;
      const RequestId number = agreed->request_id;
      cache_.forget(id);
      const auto unsent = std::find(collected_.cached.begin(), collected_.cached.end(), id);
      if (unsent != collected_.cached.end()) {
        if (cache_.knows(number)) {
          *unsent = cache_.id_of(number);
        } else {
          collected_.cached.erase(unsent);
          collected_.requests.push_back(*request);
        }
      }
      if (!cache_.knows_name(request->name)) has_company_.erase(request->name);
    }
    ++evictions_;
  }
}

void Negotiator::handle_stall(const wire::Stall& stall) {
  const auto it = pending_.find(stall.name);
  if (it == pending_.end()) return;
  std::string missing;
  for (const Rank rank : stall.missing) {
    if (rank < 0 || rank >= group_.size) continue;
    missing += (missing.empty() ? "" : ", ") + group_.members.name(rank);
  }
  act(action::Note{it->second.handle, "not yet submitted by " + missing});
}

// Ranks disagree about these names: the error is to say where each called.
void Negotiator::ask_sites(const std::vector<std::string>& names) {
  action::AskSites ask;
  for (const std::string& name : names) {
    const auto it = pending_.find(name);
    if (it != pending_.end()) ask.questions.push_back({name, it->second.handle});
  }
  if (!ask.questions.empty()) act(std::move(ask));
}

}  // namespace rueda::negotiation
