// How an epoch ends and the next is formed: wait for who is left, for the last call, for the fence,
// for newcomers where they are needed; then decide once, for all.
#include <algorithm>

#include "launcher/membership/state.h"

namespace rueda::launcher::membership {

using Decider = MembershipDecider;

namespace {

std::string ranks_text(size_t count) {
  return count == 1 ? "1 rank" : std::to_string(count) + " ranks";
}

std::string waiting_text(size_t there, int needed, bool with_state) {
  std::string who = there == 0 ? "no rank is" : ranks_text(there) + (there == 1 ? " is" : " are");
  who += " left, and --min-np is " + std::to_string(needed) + ": ";
  if (there == 0) return who + "the job waits for new ones";
  if (!with_state) return who + (there == 1 ? "it waits" : "they wait") + " for others";
  return who + (there == 1 ? "it keeps its state and waits" : "they keep their state and wait") +
         " for others";
}

}  // namespace

void Decider::State::answer(const Member& member, wire::EpochAnswer how, const std::string& text) {
  auto words = std::make_shared<wire::NewEpoch>();
  words->answer = how;
  words->text = text;
  words->epoch = epoch;
  words->size = how == wire::EpochAnswer::kProvisional ? member.expected.size : 1;
  do_(Answer{member.id, member.expected.rank, std::move(words)});
}

void Decider::State::answer(Member& member) {
  if (!std::exchange(member.answered, true)) --unanswered;
  if (unanswered == 0) trained = true;
  do_(Answer{member.id, member.rank, current});
}

// It has left in order and comes again, as all others will: the same places, without waiting.
void Decider::State::same_again(Member& member) {
  auto next = std::make_shared<wire::NewEpoch>(*current);
  next->epoch = ++epoch;
  next->branch = wire::EpochBranch::kFresh;
  next->target = 0;
  next->fresh_memory = false;
  next->announced = served;
  next->process_sets.clear();
  for (size_t rank = 0; rank < next->members.size(); ++rank) {
    next->members[rank].last_rank = static_cast<int32_t>(rank);
    next->members[rank].has_target = false;
  }
  current = std::move(next);
  told = 0;  // what was announced is announced again
  unanswered = 0;
  for (const MemberId id : ranks) {
    members.at(id).answered = false;
    unanswered += members.at(id).lives() ? 1 : 0;
  }
  answer(member);
}

// Who has not come when the patience with the whole epoch is over.
void Decider::State::give_up_laggards() {
  const auto here = std::count_if(ranks.begin(), ranks.end(),
                                  [&](MemberId id) { return members.at(id).standing.has_value(); });
  if (here == 0 || here < policy.min_np)
    return end_job(kTooFew, "only " + std::to_string(here) + " of " + std::to_string(alive) +
                                " ranks came back after epoch " + std::to_string(epoch));
  for (const MemberId id : std::set<MemberId>(awaited))
    stop(members.at(id), "it has not left epoch " + std::to_string(epoch) + " in time");
}

// A lost process may still have running threads, and there is patience left.
bool Decider::State::fence_is_due() const {
  return std::any_of(unfenced.begin(), unfenced.end(),
                     [&](const auto& lost) { return !passed(lost.second, policy.fence_patience); });
}

// Somebody lives, or will be started when a slot is free or a host is back.
bool Decider::State::has_hope() const {
  if (alive > 0 || !newcomers.empty()) return true;
  return policy.on_failure == OnFailure::kReplace && slot_comes_free();
}

void Decider::State::try_form() {
  if (!has_hope() || (alive == 0 && policy.on_failure != OnFailure::kReplace))
    return fail_job("every rank has failed");
  const bool late = passed(*since, policy.elastic_timeout);
  if (first_left && passed(*since, policy.fence_patience) && !std::exchange(told_end, true))
    do_(EndEpoch{epoch, *first_left, true});
  if (!awaited.empty()) {
    if (!late) return;
    give_up_laggards();
    if (phase == Phase::kOver) return;
  }
  if (by_loss && (!passed(last_loss, policy.last_call) || fence_is_due())) return;

  std::vector<MemberId> stay;  // survivors, then newcomers
  uint64_t target = 0, left_target = 0;
  bool has_holder = false, left_holds = false;
  std::string layout;
  const Member* last_holder = nullptr;  // with the newest commit, of those that leave
  for (const MemberId id : ranks) {
    const Member& member = members.at(id);
    if (!member.standing) continue;
    const wire::Standing& at = *member.standing;
    if (layout.empty() && at.has_state) layout = at.layout;
    if (!member.leaving) {
      stay.push_back(id);
      if (at.has_state) has_holder = true, target = std::max(target, at.commits);
    } else if (at.has_state && (!left_holds || at.commits > left_target)) {
      left_holds = true, left_target = at.commits, last_holder = &member;
    }
  }
  const bool keeps_leaver = left_holds && (!has_holder || left_target > target);
  std::vector<MemberId> kept = kept_for_copies(stay);
  const bool one_holds = std::any_of(kept.begin(), kept.end(), [&](MemberId id) {
    const wire::Standing& at = *members.at(id).standing;
    return at.has_state && at.commits == left_target;
  });
  if (keeps_leaver && !one_holds) kept.push_back(last_holder->id);
  refuse_other_layouts(layout);
  const size_t survivors = stay.size();
  const auto cap = static_cast<size_t>(seat_cap());
  bool others_come = false;
  for (const MemberId id : newcomers) {
    const Member& member = members.at(id);
    if (member.spare) continue;
    if (member.stage != Stage::kReady)
      others_come = true;
    else if (stay.size() < cap)
      stay.push_back(id);
  }
  const int needed = finishing ? 1 : std::max(policy.min_np, 1);
  if (policy.on_join == OnJoin::kAnnounce && others_come && !late) return;
  if (std::ssize(stay) < needed) {
    if (late)
      return end_job(kTooFew,
                     "only " + ranks_text(stay.size()) + (stay.size() == 1 ? " was" : " were") +
                         " there for " +
                         std::to_string(static_cast<int64_t>(policy.elastic_timeout.count())) +
                         " s, and --min-np is " + std::to_string(needed));
    if (!std::exchange(said_waiting, true))
      say_of_losses(waiting_text(stay.size(), needed, has_holder));
    if (keeps_leaver || stay.empty()) return;
  } else {
    size_t come = stay.size() - survivors;
    for (const MemberId id : kept) {
      if (stay.size() >= cap && come > 0) stay.pop_back(), --come;  // a newcomer waits for it
      stay.insert(stay.begin(), id);
    }
    if (keeps_leaver) target = left_target, has_holder = true;
  }
  // Whoever is not needed leaves, also while the others wait.
  for (const MemberId id : std::set<MemberId>(leaving)) {
    Member& member = members.at(id);
    if (!member.standing || std::count(kept.begin(), kept.end(), id) != 0) continue;
    answer(member, wire::EpochAnswer::kRemoved, "its place is given up");
    member.stage = Stage::kGone;
    member.stopped = true;
    member.standing.reset();
    leaving.erase(id);
    --alive;
  }
  if (std::ssize(stay) < needed) return;

  if (!has_holder && survivors == 0) {  // from a checkpoint: older than what was, or nothing
    for (const MemberId id : stay) {
      const wire::Standing& at = *members.at(id).standing;
      if (at.has_state) has_holder = true, target = std::max(target, at.commits);
    }
    if (has_holder)
      do_(Say{"no rank is left that trained: the job goes on from commit " +
              std::to_string(target)});
  }
  const bool had_state = known_commits > 0 || (trained && survivors == 0);
  if (!has_holder && had_state)
    return fail_job("no rank is left that holds the state of the job (commit " +
                    std::to_string(known_commits) + "), and none has loaded a checkpoint");
  if (within_limits(target)) form(std::move(stay), target, !has_holder);
}

// Of those that leave, who is in one epoch more: what it has for itself has no copy with anybody
// who is left, or it has the only one that is left of another's that goes.
// `stay`: who does not leave.
std::vector<MemberId> Decider::State::kept_for_copies(const std::vector<MemberId>& stay) const {
  std::set<MemberId> there(stay.begin(), stay.end());  // and those that leave, until they go
  std::vector<MemberId> leave;
  for (const MemberId id : ranks) {
    const Member& member = members.at(id);
    if (member.leaving && member.standing) leave.push_back(id), there.insert(id);
  }
  std::vector<MemberId> kept;
  std::set<MemberId> needed;
  for (const MemberId id : leave) {
    const std::vector<uint64_t>& copies = members.at(id).standing->mirrors;
    const bool goes = std::all_of(copies.begin(), copies.end(), [&](MemberId other) {
      return other != id && there.count(other) != 0;
    });
    if (!goes || needed.count(id) != 0) {
      kept.push_back(id);
    } else {
      there.erase(id);
      needed.insert(copies.begin(), copies.end());
    }
  }
  return kept;
}

// Their states could not be copied to; found out when somebody is there to compare with.
void Decider::State::refuse_other_layouts(const std::string& layout) {
  if (layout.empty()) return;
  for (const MemberId id : std::set<MemberId>(newcomers)) {
    Member& member = members.at(id);
    if (!member.standing || member.standing->layout.empty()) continue;
    if (member.standing->layout == layout) continue;
    const std::string why = "the names, shapes or dtypes of its state are not those of the job's";
    do_(Say{name_of(member) + " is refused: " + why});
    answer(member, wire::EpochAnswer::kRefused, why);
    slots.bar(member.host, member.slot);
    newcomers.erase(id);
    member.stage = Stage::kGone;
    member.stopped = true;
    seats_dirty = true;
  }
}

bool Decider::State::within_limits(uint64_t target) {
  if (finishing) return true;
  if (policy.reset_limit >= 0 && resets >= policy.reset_limit) {
    end_job(kTooOften, "number of resets during elastic job exceeded limit: " +
                           std::to_string(policy.reset_limit));
    return false;
  }
  if (heals > 0 && target != heal_commits) heals = 0;
  const bool heals_one = by_loss || first_left;
  if (heals_one && heals >= policy.most_heals_without_commit) {
    end_job(kTooOften,
            std::to_string(heals) +
                " times the job went on after a loss without a commit since: " + culprit);
    return false;
  }
  ++resets;
  if (heals_one) ++heals, heal_commits = target;
  return true;
}

wire::EpochBranch Decider::State::branch_of(const wire::NewEpoch& next) const {
  bool same = true;
  for (const wire::EpochMember& word : next.members) {
    const Member& member = members.at(word.member);
    same &= word.has_target && word.last_rank >= 0;
    if (word.last_rank < 0 || member.standing->cause == wire::EnterCause::kInterrupted) continue;
    return wire::EpochBranch::kRestore;
  }
  return same ? wire::EpochBranch::kGoOn : wire::EpochBranch::kSync;
}

// They may wait for ranks that do not come any more: not for ever.
void Decider::State::begin_rest() {
  if (rest_since) return;
  rest_since = now;
  const auto seconds = static_cast<int64_t>(policy.elastic_timeout.count());
  do_(Say{who_finished +
          " has ended with code 0, so no rank is started any more; the others "
          "have " +
          std::to_string(seconds) + " s to end (--elastic-timeout)"});
}

void Decider::State::form(std::vector<MemberId> chosen, uint64_t target, bool fresh) {
  const bool has_old = std::any_of(chosen.begin(), chosen.end(), [&](MemberId id) {
    const Member& member = members.at(id);
    return member.rank >= 0 && member.standing->has_state;
  });
  std::vector<Candidate> candidates;
  for (const MemberId id : chosen) {
    const Member& member = members.at(id);
    Candidate c = candidate(member);
    const wire::Standing& at = *member.standing;
    // A newcomer is a source only where nobody else is.
    c.leads = fresh || (at.has_state && at.commits == target && (member.rank >= 0 || !has_old));
    candidates.push_back(c);
  }
  candidates = in_order(std::move(candidates));

  auto next = std::make_shared<wire::NewEpoch>();
  next->epoch = ++epoch;
  next->size = static_cast<int32_t>(candidates.size());
  next->target = target;
  next->announced = served = serial;
  next->fresh_memory = !unfenced.empty();
  std::map<MemberId, int32_t> new_rank;
  for (const Candidate& c : candidates) {
    new_rank[c.member] = static_cast<int32_t>(next->members.size());
    next->members.push_back({c.member, members.at(c.member).host, c.last_rank, c.leads && !fresh});
  }
  for (const std::vector<uint64_t>& set :
       members.at(candidates.front().member).standing->process_sets) {
    std::vector<int32_t>& formed = next->process_sets.emplace_back();
    for (const uint64_t id : set) {
      if (const auto it = new_rank.find(id); it != new_rank.end()) formed.push_back(it->second);
    }
    std::sort(formed.begin(), formed.end());
  }
  next->branch = fresh ? wire::EpochBranch::kFresh : branch_of(*next);
  const std::string end = ranks_text(candidates.size()) +
                          (candidates.size() == 1 ? " goes on" : " go on") +
                          (fresh ? "" : " from commit " + std::to_string(target));
  if (!losses.losses.empty())
    say_of_losses(end);
  else if (by_loss && !culprit.empty())
    do_(Say{culprit + "; " + end});
  say_losses();
  current = next;

  for (const MemberId id : ranks) {
    const auto it = members.find(id);
    if (new_rank.count(id) != 0 || it == members.end()) continue;
    it->second.rank = -1;
    if (!it->second.lives() && it->second.fenced) members.erase(it);
  }
  ranks.clear();
  alive = unanswered = next->size;
  for (const Candidate& c : candidates) {
    Member& member = members.at(c.member);
    member.stage = Stage::kInEpoch;
    member.rank = static_cast<Rank>(ranks.size());
    member.answered = false;
    member.standing.reset();
    newcomers.erase(c.member);
    ranks.push_back(c.member);
    answer(member);
  }
  phase = Phase::kRunning;
  since = now;
  told = 0;
  by_loss = false;
  unheard.reset();
  if (finishing) begin_rest();
  first_left.reset();
  unfenced.clear();
  known_commits = std::max(known_commits, target);
  slow.clear();  // among others it may not be
  announce();
}

}  // namespace rueda::launcher::membership
