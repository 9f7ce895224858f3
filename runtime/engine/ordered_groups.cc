#include "runtime/engine/ordered_groups.h"

#include <algorithm>
#include <utility>

#include "collectives/base/log.h"
#include "collectives/desc/tags.h"
#include "collectives/host/arena.h"
#include "proto/negotiation_codec.h"
#include "runtime/negotiation/agreement.h"

namespace rueda::engine {
namespace {

using wire::GroupWord;

constexpr size_t kMostEarlyBytes = size_t{64} << 20;

std::vector<Rank> ranks_of(const GroupWord& word) { return {word.ranks.begin(), word.ranks.end()}; }

}  // namespace

OrderedGroups::OrderedGroups(const OrderedGroup::Shared& shared)
    : shared_(shared), channels_taken_(host::kChannelGroups, false) {}

OrderedGroups::~OrderedGroups() = default;

void OrderedGroups::take(Request* request, Time now) {
  switch (request->group_change) {
    case Request::GroupChange::kOpen: return open(request);
    case Request::GroupChange::kClose:
      if (OrderedGroup* const group = request->set->ordered_group) group->close();
      return shared_.finisher->finish(request, {});
    case Request::GroupChange::kAbort: {
      const std::string& me = shared_.membership->own_name();
      if (OrderedGroup* const group = request->set->ordered_group)
        group->fail(cancelled(me + " has ended the group: " + request->announcement.layout)
                        .with_rank(shared_.membership->rank));
      return shared_.finisher->finish(request, {});
    }
    case Request::GroupChange::kNone: break;
  }
  OrderedGroup* const group = request->set->ordered_group;
  if (group == nullptr || group->is_closing()) {
    return shared_.finisher->finish(
        request, failed_precondition(request->set->describe() + " has been closed on this rank"));
  }
  group->take(request, now);
}

// ---- opening ----

void OrderedGroups::open(Request* request) {
  const ProcessSetPtr set = request->set;
  groups_.push_back(std::make_unique<OrderedGroup>(shared_, set, reserve_channels(set->ranks)));
  OrderedGroup* const group = groups_.back().get();
  set->ordered_group = group;
  group->say_hello();
  for (const Rank peer : left_) group->on_left(peer);
  hear_early(group);
  shared_.finisher->finish(request, {});
}

int64_t OrderedGroups::reserve_channels(const std::vector<Rank>& ranks) {
  if (ranks.size() == 1 || !shared_.memory->has_some(ranks)) return GroupWord::kNeedsNone;
  for (size_t number = host::kProcessSetChannels; number < host::kChannelGroups; ++number) {
    if (channels_taken_[number]) continue;
    host::Arena* const own = shared_.memory->own();
    const Status reserved = OrderedGroup::reserves_late(*shared_.memory, ranks)
                                ? own->reserve_controls(number)
                                : own->reserve_channels(number);
    if (!reserved.ok()) {
      RUEDA_WARN("coordinator", "a group of ranks goes by messages: {}", reserved.message());
      return GroupWord::kHasNone;
    }
    channels_taken_[number] = true;
    return static_cast<int64_t>(number);
  }
  return GroupWord::kHasNone;
}

void OrderedGroups::hear_early(OrderedGroup* group) {
  for (auto it = early_.begin(); it != early_.end();) {
    const bool is_hello = it->word.what == GroupWord::What::kHello;
    const bool is_its =
        is_hello ? group->awaits(it->peer) && (group->is_open_as(it->word.key, it->word.ranks) ||
                                               refuse_conflict(it->peer, group, it->word))
                 : group->knows(it->peer, it->word.number);
    if (!is_its) {
      ++it;
      continue;
    }
    const Early early = std::move(*it);
    it = early_.erase(it);
    if (is_hello) {
      group->hear_hello(early.peer, early.word);
    } else {
      group->hear(early.peer, early.word);
    }
  }
  if (early_.empty()) early_bytes_ = 0;
}

// The other side finds the same, as each has said hello to the other.
bool OrderedGroups::refuse_conflict(Rank peer, OrderedGroup* group, const GroupWord& word) {
  const ProcessSet& set = *group->set();
  if (word.key != set.key || group->is_open_as(word.key, word.ranks)) return false;
  const Rank me = shared_.membership->rank;
  const auto side = [](Rank rank, const std::vector<Rank>& ranks) {
    return "rank " + std::to_string(rank) + " with " + negotiation::name_ranks(ranks);
  };
  const std::string mine = side(me, set.ranks);
  const std::string theirs = side(peer, ranks_of(word));
  group->fail(failed_precondition("group '" + set.key + "' is opened by " +
                                  (me < peer ? mine + ", by " + theirs : theirs + ", by " + mine) +
                                  "; make all members give the same ranks in the same order"));
  return true;
}

Status OrderedGroups::on_control(Rank peer, std::string_view message) {
  const auto damaged = [&](const std::string& why) {
    return Status(Code::kDataLoss,
                  "damaged message from " + shared_.membership->name(peer) + ": " + why)
        .with_rank(peer);
  };
  GroupWord word;
  const Status read = wire::decode(message, &word);
  if (!read.ok()) return damaged(read.message());
  const bool is_hello = word.what == GroupWord::What::kHello;
  const bool is_of_job = word.number == tags::kOfJob && word.what >= GroupWord::What::kMeets;
  const bool names_rank =
      is_hello || word.ranks.empty() ||
      (word.ranks.size() == 1 && word.ranks[0] >= 0 && word.ranks[0] < shared_.membership->size);
  const bool has_channels = word.channels >= static_cast<int64_t>(host::kProcessSetChannels) &&
                            word.channels < static_cast<int64_t>(host::kChannelGroups);
  // What ends because of it would end well.
  const bool ends = word.what == GroupWord::What::kBye || word.what == GroupWord::What::kAbort;
  if ((word.number >= tags::kMostGroups && !is_of_job) || !names_rank ||
      word.what == GroupWord::What{} || (ends && word.code == Code::kOk) ||
      (is_hello && !has_channels && word.channels != GroupWord::kNeedsNone &&
       word.channels != GroupWord::kHasNone)) {
    return damaged("a group's numbers");
  }
  if (is_of_job) {
    shared_.device_messages->hear(peer, word);
    return {};
  }
  for (const auto& group : groups_) {
    if (is_hello && group->awaits(peer) && group->is_open_as(word.key, word.ranks)) {
      group->hear_hello(peer, word);
      return {};
    }
    if (!is_hello && group->knows(peer, word.number)) {
      group->hear(peer, word);
      return {};
    }
  }
  if (is_hello) {
    for (const auto& group : groups_) {
      if (!group->awaits(peer) || !refuse_conflict(peer, group.get(), word)) continue;
      group->hear_hello(peer, word);
      return {};
    }
  }
  early_bytes_ += message.size();
  if (early_bytes_ > kMostEarlyBytes) return damaged("too much for groups that are not open here");
  early_.push_back({peer, std::move(word)});
  return {};
}

void OrderedGroups::on_peer_left(Rank peer) {
  left_.push_back(peer);
  for (const auto& group : groups_) group->on_left(peer);
}

// ---- rounds ----

bool OrderedGroups::step(Time now) {
  bool moved = false;
  for (const auto& group : groups_) {
    moved |= group->advance();
    group->look_for_stalls(now);
  }
  std::erase_if(groups_, [&](const auto& group) {
    if (!group->is_over()) return false;
    group->add_to(&past_);
    group->set()->ordered_group = nullptr;
    if (group->channels() >= 0) {
      shared_.memory->own()->release_channels(static_cast<size_t>(group->channels()));
      channels_taken_[static_cast<size_t>(group->channels())] = false;
    }
    return true;
  });
  return moved;
}

bool OrderedGroups::advance() {
  for (const auto& group : groups_) {
    if (group->busy() && group->advance()) return true;
  }
  return false;
}

std::optional<OrderedGroups::Time> OrderedGroups::deadline() const {
  std::optional<Time> earliest;
  for (const auto& group : groups_) {
    const auto of = group->stall_deadline();
    if (of && (!earliest || *of < *earliest)) earliest = of;
  }
  return earliest;
}

bool OrderedGroups::busy() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->busy(); });
}

bool OrderedGroups::waits_for_channels() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->waits_for_channels(); });
}

Status OrderedGroups::failure() const {
  for (const auto& group : groups_) {
    if (!group->failure().ok()) return group->failure();
  }
  return {};
}

// ---- the end ----

void OrderedGroups::leave(const Status& status) {
  for (const auto& group : groups_) group->leave(status);
}

bool OrderedGroups::have_left() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->has_left(); });
}

void OrderedGroups::fail_messages(const Status& status) {
  for (const auto& group : groups_) group->fail_messages(status);
}

void OrderedGroups::break_down(const Status& verdict) {
  for (const auto& group : groups_) group->break_down(verdict);
}

bool OrderedGroups::uses_gpu() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->uses_gpu(); });
}

void OrderedGroups::add_to(counters::Values* totals) const {
  for (const counters::ValuesRow& row : counters::kValues) totals->*row.field += past_.*row.field;
  for (const auto& group : groups_) group->add_to(totals);
}

}  // namespace rueda::engine
