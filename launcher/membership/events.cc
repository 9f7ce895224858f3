#include <algorithm>

#include "collectives/base/config.h"
#include "launcher/membership/state.h"

namespace rueda::launcher::membership {

using Decider = MembershipDecider;

void Decider::State::on(const HostsFound& event) {
  std::set<std::string> away;
  for (const HostTable::Host& host : hosts.hosts()) {
    if (!host.listed) away.insert(host.name);
  }
  hosts.found(event.hosts, event.named);
  for (const HostSlots& host : event.hosts) {
    if (away.count(host.host) != 0) slots.forget(host.host);
  }
  seats_dirty = true;
  begins_short = begins_short || event.begin_short;
  if (!policy.elastic) return;
  leave_what_is_gone();
}

void Decider::State::on(const MemberStarted& event) {
  if (event.error.empty()) return;
  on(MemberEnded{event.member, 1, true, "it could not be started: " + event.error});
}

void Decider::State::on(const MemberLost& event) {
  Member* member = find(event.member);
  if (member == nullptr || !member->lives())
    return know_more(event.member, event.how, event.is_final);
  if (member->is_newcomer()) return lose_newcomer(*member, event.how);
  lose(*member, event.how, event.is_final);
}

void Decider::State::on(const MemberFenced& event) {
  Member* member = find(event.member);
  if (member != nullptr && !member->lives()) fence(*member);
}

// None of its threads runs: its slot is free, and so is what it had mapped.
void Decider::State::fence(Member& member) {
  member.fenced = seats_dirty = true;
  unfenced.erase(member.id);
}

void Decider::State::on(const MemberEnded& event) {
  // Also of one that is forgotten: its threads had ended, and the others went on without it.
  if (first_failed == event.member && !first_code) first_code = std::max(event.exit_code, 1);
  Member* member = find(event.member);
  if (member == nullptr) return know_more(event.member, event.failed ? event.how : "", true);
  fence(*member);
  if (event.removed) member->stopped = true;
  if (member->lives() && member->is_newcomer()) {
    lose_newcomer(*member, event.how.empty() ? "it ended" : event.how);
  } else if (member->lives() && event.removed) {
    lose(*member, event.how);
  } else if (member->lives() && event.failed) {
    const bool is_first = !first_failed;
    if (is_first) first_code = std::max(event.exit_code, 1);
    lose(*member, event.how);
  } else if (member->lives()) {
    finished(*member);
  } else {
    know_more(event.member, event.failed ? event.how : "", true);
  }
  if (!member->lives() && member->rank < 0) members.erase(event.member);
}

// Success of the job: the others are awaited, and nobody is started or replaced any more.
void Decider::State::finished(Member& member) {
  member.stage = Stage::kFinished;
  member.standing.reset();
  awaited.erase(member.id);
  leaving.erase(member.id);
  slow.erase(member.id);
  if (!member.answered) --unanswered;
  --alive;
  if (!std::exchange(finishing, true)) {
    who_finished = name_of(member);
    for (const MemberId id : std::set<MemberId>(newcomers))
      stop(members.at(id), "the job has finished");
    // Who fails because this one has left is not to wait for a verdict.
    if (policy.elastic && alive > 0) do_(Announce{serial, told | kFinishing, who_lives()});
  }
  if (alive > 0 || end_at) return;
  if (unheard) return fail_unheard();
  end_job(0, "");
}

void Decider::State::on(const MemberEnters& event) {
  Member* member = find(event.member);
  const wire::Standing& standing = event.standing;
  if (member == nullptr) {
    Member stranger;
    stranger.id = event.member;
    return answer(stranger, wire::EpochAnswer::kRemoved, "the job does not know this rank");
  }
  if (!member->lives())
    return answer(*member, wire::EpochAnswer::kRemoved, "the job has gone on without this rank");
  if (member->is_newcomer()) return newcomer_enters(*member, standing);
  known_commits = std::max(known_commits, standing.commits);  // also of who holds it no more
  if (version.empty()) version = standing.version;
  if (settings.empty()) settings = standing.settings;
  // It was told of this epoch, and the answer may be under way still: what it says is from before.
  if (standing.epoch < epoch && (phase == Phase::kRunning || member->answered || took_over))
    return answer(*member);
  if (phase == Phase::kRunning) {
    if (!policy.elastic || standing.cause == wire::EnterCause::kLeft) return same_again(*member);
    begin_ending();
    if (standing.cause == wire::EnterCause::kEpochEnded) first_left = member->id;
  }
  member->standing = standing;
  awaited.erase(member->id);
}

void Decider::State::newcomer_enters(Member& member, const wire::Standing& standing) {
  std::string why;
  if (!version.empty() && standing.version != version) {
    why = "its librueda is " + standing.version + ", the job's is " + version;
  } else if (!settings.empty() && standing.settings != settings) {
    why = "its settings are not the job's: " + settings_that_differ(standing.settings, settings);
  }
  if (!why.empty()) {
    do_(Say{name_of(member) + " is refused: " + why});
    answer(member, wire::EpochAnswer::kRefused, why);
    slots.bar(member.host, member.slot);
    newcomers.erase(member.id);
    member.stage = Stage::kGone;
    member.stopped = seats_dirty = true;
    return;
  }
  if (standing.cause == wire::EnterCause::kReady) {
    member.stage = Stage::kReady;
    member.standing = standing;
    return;
  }
  member.stage = Stage::kBuilding;
  answer(member, wire::EpochAnswer::kProvisional, "");
}

void Decider::State::on(const HostLost& event) {
  std::vector<MemberId> there;
  for (auto& [id, member] : members) {
    if (member.host != event.host) continue;
    fence(member);  // nothing of it maps memory of other hosts
    if (member.lives()) there.push_back(id);
  }
  for (const MemberId id : there) {
    Member& member = members.at(id);
    if (!member.lives()) continue;
    if (member.is_newcomer()) {
      member.stopped = true;
      lose_newcomer(member, event.how);
      continue;
    }
    if (!first_failed) first_code = 1;  // no code will come
    if (policy.elastic && event.was_silent && !member.leaving && !unheard) {
      unheard = id;
      unheard_how = name_of(member) + " ended: " + event.how;
    }
    lose(member, event.how);
  }
  const Member* first = first_failed ? find(*first_failed) : nullptr;
  if (first != nullptr && first->host == event.host && !first_code) first_code = 1;
  // One that was taken off the list, or was to be left, is not to blame.
  const HostTable::Host* host = hosts.find(event.host);
  const bool to_blame = host != nullptr && host->listed && !host->drained;
  if (policy.elastic && to_blame && !finishing && phase != Phase::kOver)
    blacklist(event.host, event.how);
}

void Decider::State::on(const HostDrained& event) {
  if (!policy.elastic) return;
  hosts.drain(event.host);
  seats_dirty = true;
  for (auto& [id, member] : members) {
    if (member.host == event.host && member.lives()) leave(member);
  }
}

void Decider::State::on(const MemberSlow& event) {
  const Member* member = find(event.member);
  if (!policy.elastic || member == nullptr || member->stage != Stage::kInEpoch) return;
  if (!event.is_slow) slow.erase(event.member);
  if (event.is_slow && !member->leaving) slow.insert(event.member);
  seats_dirty = true;
}

}  // namespace rueda::launcher::membership
