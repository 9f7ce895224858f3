// Calls in an ordered group that stand still: who has not called.
#include <algorithm>
#include <string>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "collectives/base/log.h"
#include "collectives/base/stall_limit.h"
#include "runtime/engine/ordered_call.h"
#include "runtime/negotiation/agreement.h"

namespace rueda::engine {
namespace {

using Seconds = std::chrono::duration<double>;

OrderedGroup::Time after(OrderedGroup::Time now, double seconds) {
  return now + std::chrono::duration_cast<OrderedGroup::Time::duration>(Seconds(seconds));
}

}  // namespace

const OrderedGroup::Call* OrderedGroup::oldest() const {
  for (const auto* calls : {&running_, &entering_, &waiting_})
    if (!calls->empty()) return calls->front().get();
  return nullptr;
}

void OrderedGroup::look_for_stalls(Time now) {
  const Call* const call = oldest();
  if (call == nullptr) {
    stall_check_.reset();
    return;
  }
  const double stall = shared_.config->stall_check_seconds;
  const double give_up = stall_limit(*shared_.config).seconds;
  // The others are told early, so that a passed deadline can say who is missing; the log speaks
  // after the stall time.
  double period = stall > 0 ? std::min(1.0, stall) : 1.0;
  if (give_up > 0) period = std::min(period, give_up);
  if (!stall_check_) stall_check_ = after(now, period);
  if (now < *stall_check_) return;
  stall_check_ = after(now, period);
  const double age = Seconds(now - call->members.front()->since).count();
  if (age < period) return;
  if (told_begun_ != next_) {
    told_begun_ = next_;
    wire::GroupWord word;
    word.epoch = shared_.membership->epoch;
    word.what = wire::GroupWord::What::kWaits;
    word.number = set_->serial;
    word.calls = next_;
    tell(word);
    return;  // and so do they: known in the next round
  }
  name_absentees(*call, age);
}

void OrderedGroup::name_absentees(const Call& call, double age) {
  std::vector<Rank> callers;
  std::string missing;
  for (const Member& member : members_) {
    const bool me = member.rank == shared_.membership->rank;
    if (me || member.begun > call.number) {
      callers.push_back(member.rank);
    } else {
      missing += (missing.empty() ? "" : ", ") + name(member.rank);
    }
  }
  if (missing.empty()) return;
  for (Request* member : call.members) member->set_note("not yet called by " + missing);
  const std::string title = negotiation::title_of(call.members.front()->announcement);
  const auto [give_up, reason] = stall_limit(*shared_.config);
  if (give_up > 0 && age >= give_up) {
    const std::string known = shared_.flight->mail();
    return fail(deadline_exceeded(fmt::format(
        "{} was called by {} but not by {} for {:.0f} s ({}){}{}", title,
        negotiation::name_ranks(callers), missing, age, reason, known.empty() ? "" : "\n", known)));
  }
  const double stall = shared_.config->stall_check_seconds;
  if (warned_of_ != call.number) next_warning_ = 0;
  warned_of_ = call.number;
  // One of them speaks.
  if (callers.front() != shared_.membership->rank || stall <= 0 ||
      age < std::max(stall, next_warning_)) {
    return;
  }
  next_warning_ = 2 * age;
  RUEDA_WARN("coordinator", "stalled: {} was called by {} {:.0f} s ago, still missing: {}", title,
             negotiation::name_ranks(callers), age, missing);
}

}  // namespace rueda::engine
