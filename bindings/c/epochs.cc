// From one epoch into the next, and what a context knows of its own.
#include <algorithm>
#include <cstring>
#include <vector>

#include "bindings/c/context.h"
#include "bindings/c/init.h"
#include "runtime/engine/completion.h"

using rueda::Status;
using rueda::c_abi::EpochRecord;
using rueda::c_abi::guarded_value;
using rueda::c_abi::MemberPtr;

namespace {

// Nothing for who has no launcher that decides, and for a forked child.
const EpochRecord* record_of(const rueda_context* context) {
  if (context == nullptr || !rueda::c_abi::check_process(context->process).ok()) return nullptr;
  return context->epoch.get();
}

// The process sets of this rank, as members: those that the epoch began with and that have not been
// removed, empty ones too, then those that were added since. The set of all is no news.
std::vector<std::vector<uint64_t>> sets_of(const rueda::c_abi::Member& member,
                                           const EpochRecord& epoch) {
  const auto there = member.runtime->process_sets().all();
  std::vector<std::vector<uint64_t>> sets;
  const auto add = [&](const std::vector<int32_t>& ranks) {
    sets.emplace_back();
    for (const int32_t rank : ranks) {
      const auto at = static_cast<size_t>(rank);
      if (at < epoch.said.members.size()) sets.back().push_back(epoch.said.members[at].member);
    }
  };
  const auto& first = epoch.said.process_sets;
  for (const auto& ranks : first) {
    const bool stays = std::any_of(there.begin(), there.end(),
                                   [&](const auto& set) { return set->ranks == ranks; });
    if (ranks.empty() || stays) add(ranks);
  }
  for (const auto& set : there) {
    if (set->id != 0 && std::find(first.begin(), first.end(), set->ranks) == first.end())
      add(set->ranks);
  }
  return sets;
}

rueda::Result<rueda::wire::Standing> standing_of(const rueda_standing* given) {
  rueda_standing said = RUEDA_STANDING_INIT;
  if (given == nullptr) return rueda::invalid_argument("next_epoch: no standing (NULL)");
  RUEDA_RETURN_IF_ERROR(
      rueda::c_abi::read_struct(given, sizeof(rueda_standing), "rueda_standing", &said));
  if (said.cause < 1 || said.cause > 4)
    return rueda::invalid_argument("next_epoch: there is no cause " + std::to_string(said.cause));
  rueda::wire::Standing standing;
  standing.cause = static_cast<rueda::wire::EnterCause>(said.cause);
  standing.has_state = said.has_state != 0;
  standing.commits = said.commits;
  if (said.layout != nullptr)
    standing.layout.assign(static_cast<const char*>(said.layout), said.layout_bytes);
  if (said.mirrors != nullptr)
    standing.mirrors.assign(said.mirrors, said.mirrors + said.mirror_count);
  return standing;
}

void leave_epoch(rueda_context* context) {
  MemberPtr member;
  {
    const std::lock_guard lock(context->mutex);
    member = std::move(context->member);
    context->was_left = true;
  }
  if (member == nullptr) return;
  context->process_sets = sets_of(*member, *context->epoch);
  member->leave(true);
}

}  // namespace

extern "C" {

int32_t rueda_next_epoch(rueda_context* previous, const rueda_standing* standing,
                         rueda_context** next, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (next == nullptr) return rueda::invalid_argument("nowhere to put the context (NULL)");
    *next = nullptr;
    if (previous == nullptr)
      return rueda::failed_precondition("rueda has not been initialized on this rank: call init");
    RUEDA_RETURN_IF_ERROR(rueda::c_abi::check_process(previous->process));
    if (rueda::engine::Completion::in_callback())
      return rueda::failed_precondition("next_epoch in a callback would wait for itself");
    RUEDA_ASSIGN_OR_RETURN(auto mine, standing_of(standing));
    if (previous->epoch == nullptr) {
      return rueda::failed_precondition(
          "nobody decides epochs in this job: only ruedarun and horovodrun do");
    }
    const std::lock_guard leaving(previous->leaving);
    leave_epoch(previous);
    mine.process_sets = previous->process_sets;
    if (previous->epoch_ended) mine.cause = rueda::wire::EnterCause::kEpochEnded;
    const auto asked_as = mine.cause;
    auto made = rueda::c_abi::make_member(nullptr, &mine, &previous->given_up);
    // For who asks again after a signal.
    previous->process_sets = mine.process_sets;
    previous->epoch_ended |= mine.cause != asked_as;
    if (!made.ok()) return made.status();
    if (previous->given_up.load()) {
      if (const MemberPtr& member = made.value().member) member->leave();
      return rueda::failed_precondition("rueda has been shut down on this rank meanwhile");
    }
    *next = rueda::c_abi::make_context(std::move(made).value()).release();
    return {};
  });
}

int32_t rueda_epoch_of(const rueda_context* context, rueda_epoch* epoch) {
  const EpochRecord* const record = record_of(context);
  if (record == nullptr) return RUEDA_FAILED_PRECONDITION;
  if (epoch == nullptr || epoch->struct_size < sizeof(size_t)) return RUEDA_INVALID_ARGUMENT;
  const rueda::wire::NewEpoch& said = record->said;
  rueda_epoch whole = RUEDA_EPOCH_INIT;
  whole.number = record->provisional() ? 0 : said.epoch;
  whole.member = record->member;
  whole.target = said.target;
  whole.announced = said.announced << 8;
  whole.branch = static_cast<int32_t>(said.branch);
  whole.provisional = record->provisional() ? 1 : 0;
  whole.size = said.size;
  whole.process_sets = static_cast<int32_t>(said.process_sets.size());
  whole.elastic = record->elastic ? 1 : 0;
  whole.struct_size = epoch->struct_size;
  std::memcpy(epoch, &whole, std::min(whole.struct_size, sizeof(whole)));
  return RUEDA_OK;
}

int32_t rueda_epoch_members(const rueda_context* context, uint64_t* members, int32_t* last_ranks,
                            int32_t* has_target, int32_t max_count) {
  const EpochRecord* const record = record_of(context);
  if (record == nullptr) return -1;
  const auto& all = record->said.members;
  const size_t count = std::min(all.size(), static_cast<size_t>(std::max(max_count, 0)));
  for (size_t rank = 0; rank < count; ++rank) {
    if (members != nullptr) members[rank] = all[rank].member;
    if (last_ranks != nullptr) last_ranks[rank] = all[rank].last_rank;
    if (has_target != nullptr) has_target[rank] = all[rank].has_target ? 1 : 0;
  }
  return static_cast<int32_t>(all.size());
}

int32_t rueda_epoch_process_set(const rueda_context* context, int32_t index, int32_t* ranks,
                                int32_t max_count) {
  const EpochRecord* const record = record_of(context);
  if (record == nullptr || index < 0) return -1;
  const auto& sets = record->said.process_sets;
  if (static_cast<size_t>(index) >= sets.size()) return -1;
  const auto& set = sets[static_cast<size_t>(index)];
  const size_t count = std::min(set.size(), static_cast<size_t>(std::max(max_count, 0)));
  if (ranks != nullptr) std::copy_n(set.begin(), count, ranks);
  return static_cast<int32_t>(set.size());
}

uint64_t rueda_announced(const rueda_context* context) {
  const EpochRecord* const record = record_of(context);
  if (record == nullptr || record->life == nullptr) return 0;
  return record->life->page()->announced.load(std::memory_order_acquire);
}

int32_t rueda_commit_vote(rueda_context* context, uint64_t* announced, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    if (announced == nullptr) return rueda::invalid_argument("nowhere to put the answer (NULL)");
    *announced = 0;
    RUEDA_ASSIGN_OR_RETURN(const int64_t most, member->commit.ask(member->runtime.get(), [&] {
      return static_cast<int64_t>(rueda_announced(context));
    }));
    *announced = static_cast<uint64_t>(most);
    return {};
  });
}

int32_t rueda_epoch_ended(const rueda_context* context, int64_t wait_ns) {
  return guarded_value(0, [&] {
    const MemberPtr member = rueda::c_abi::try_use(context);
    if (member == nullptr || record_of(context) == nullptr) return 0;
    constexpr int64_t kLongest = int64_t{3600} * 1'000'000'000;
    const std::chrono::nanoseconds wait(std::clamp<int64_t>(wait_ns, 0, kLongest));
    return member->runtime->ended_by_loss(wait) ? 1 : 0;
  });
}

}  // extern "C"
