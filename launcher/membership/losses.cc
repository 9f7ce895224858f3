#include <algorithm>

#include "launcher/membership/state.h"

namespace rueda::launcher::membership {

using Decider = MembershipDecider;

std::string Decider::State::name_of(const Member& member) const {
  return (member.rank < 0 ? "a rank that was to join" : "rank " + std::to_string(member.rank)) +
         " on " + member.host;
}

void Decider::State::begin_ending() {
  phase = Phase::kEnding;
  since = now;
  by_loss = told_end = said_waiting = false;
  lost_first.reset();
  unfenced.clear();
  first_left.reset();
  culprit.clear();
  culprit_id.reset();
  losses = {};
  awaited.clear();
  for (const MemberId id : ranks) {
    if (members.at(id).lives()) awaited.insert(id);
  }
}

// A member of the epoch, that lived until now.
void Decider::State::lose(Member& member, const std::string& how, bool is_final) {
  if (phase == Phase::kRunning) begin_ending();
  member.stage = Stage::kGone;
  last_loss = now;
  if (!member.fenced) unfenced[member.id] = now;
  if (!lost_first) lost_first = member.id;
  member.standing.reset();
  --alive;
  if (!member.answered) --unanswered;
  awaited.erase(member.id);
  slow.erase(member.id);
  const bool was_leaving = leaving.erase(member.id) != 0;
  by_loss = true;
  seats_dirty = true;
  if (!std::exchange(told_end, true)) do_(EndEpoch{epoch, member.id});
  if (member.stopped) return;
  losses.losses.push_back({member.id, name_of(member), how, is_final});
  if (culprit.empty()) {
    culprit = name_of(member) + " was lost: " + how;
    culprit_id = member.id;
  }
  if (!first_failed) {
    first_failed = member.id;
    first_how = name_of(member) + ": " + how;
  }
  if (finishing && unheard) return fail_unheard();
  if (!policy.elastic || finishing) return fail_job("");
  if (was_leaving) return;  // a place that is given up is not filled, and its host is not to blame
  switch (policy.on_failure) {
    case OnFailure::kBlacklist: return blacklist(member.host, how);
    case OnFailure::kShrink: return slots.bar(member.host, member.slot);
    case OnFailure::kReplace:
      if (slots.failed(member.host, member.slot, now)) return;
      if (hosts.usable_hosts() > 1) return blacklist(member.host, how);
      slots.bar(member.host, member.slot);
  }
}

void LossLine::know_more(MemberId member, const std::string& how, bool is_final) {
  for (Loss& loss : losses) {
    if (loss.member != member || loss.is_final) continue;
    if (!how.empty()) loss.how = how;
    loss.is_final = is_final;
  }
}

bool LossLine::is_known() const {
  return std::all_of(losses.begin(), losses.end(), [](const Loss& loss) { return loss.is_final; });
}

std::string LossLine::text() const {
  std::string text;
  for (const Loss& loss : losses) text += loss.name + " was lost: " + loss.how + "; ";
  return text + end;
}

// Of one that is lost: it may be forgotten by then, but for the line that waits.
void Decider::State::know_more(MemberId id, const std::string& how, bool is_final) {
  losses.know_more(id, how, is_final);
  for (LossLine& line : loss_lines) line.know_more(id, how, is_final);
  const Member* member = find(id);
  if (member == nullptr || member->rank < 0 || how.empty()) return;
  if (culprit_id == id) culprit = name_of(*member) + " was lost: " + how;
  if (first_failed == id) first_how = name_of(*member) + ": " + how;
}

// What became of the others, after those that are lost if nobody has been told of them.
void Decider::State::say_of_losses(const std::string& end) {
  if (losses.losses.empty()) return do_(Say{end});
  losses.end = end;
  losses.until = after(now, policy.fence_patience);
  loss_lines.push_back(std::exchange(losses, {}));
}

// Once the causes are known, for which a process has to be reaped: the heal does not wait for that.
void Decider::State::say_losses() {
  std::erase_if(loss_lines, [&](const LossLine& line) {
    if (!line.is_known() && now < line.until) return false;
    do_(Say{line.text()});
    return true;
  });
}

// It costs the others nothing but a line.
void Decider::State::lose_newcomer(Member& member, const std::string& how) {
  do_(Say{name_of(member) + " was lost before it was in: " + how + "; the others go on"});
  newcomers.erase(member.id);
  member.stage = Stage::kGone;
  seats_dirty = true;
  keep_slow(member);
  if (finishing || member.stopped) return;
  bool has_ranks = false;
  for (const MemberId id : ranks) {
    const Member& other = members.at(id);
    has_ranks |= other.lives() && other.host == member.host;
  }
  if (policy.on_failure == OnFailure::kBlacklist && !has_ranks) return blacklist(member.host, how);
  if (policy.on_failure != OnFailure::kReplace || !slots.failed(member.host, member.slot, now))
    slots.bar(member.host, member.slot);
}

// The whole host leaves at once.
void Decider::State::blacklist(const std::string& name, const std::string& why) {
  const HostTable::Host* host = hosts.find(name);
  if (host == nullptr || host->blacklisted) return;
  hosts.blacklist(name, now);
  slots.forget(name);
  const std::optional<Time> back = hosts.find(name)->back;
  std::string until = "any more";
  if (back)
    until =
        "for " + std::to_string(static_cast<int64_t>(Seconds(*back - now).count() + 0.5)) + " s";
  do_(Say{"host " + name + " is not used " + until + ": " + why});
  for (auto& [id, member] : members) {
    if (member.host == name && member.lives()) stop(member, "its host has failed: " + why);
  }
}

// Ends a member's process; a member of the epoch is lost with it.
void Decider::State::stop(Member& member, const std::string& why) {
  if (!member.lives()) return;
  member.stopped = true;
  do_(StopMember{member.id, why});
  if (newcomers.erase(member.id) != 0) {
    member.stage = Stage::kGone;
    seats_dirty = true;
    keep_slow(member);
  } else {
    lose(member, why);
  }
}

// The job has failed. Its code is the first failed rank's, for which it waits a moment.
void Decider::State::fail_job(const std::string& why) {
  if (end_at || phase == Phase::kOver) return;
  end_text = first_how;
  if (!why.empty()) end_text = why + (first_how.empty() ? "" : ": " + first_how);
  if (policy.elastic && policy.on_failure == OnFailure::kBlacklist)
    end_text =
        "Horovod detected that one or more processes exited with non-zero status: " + end_text;
  if (!first_failed) first_code = 1;
  if (first_code) return end_job(*first_code, end_text);
  end_at = after(now, policy.fence_patience);
}

// Who was heard has ended with 0, before or after that: as if the silent ones had failed, who may
// have been about to save something. Those that are left and go on without them need not care.
void Decider::State::fail_unheard() {
  first_failed = unheard;
  first_code = 1;
  end_job(1, "others have ended with code 0, and nobody has heard how " + unheard_how);
}

void Decider::State::end_job(int code, std::string text) {
  if (phase == Phase::kOver) return;
  const bool is_first =
      first_failed && first_code == code;  // its end is told together with its code
  if ((code == 0 || !is_first) && !losses.losses.empty()) {  // nobody goes on without them
    losses.end = code == 0 ? "the others have ended with code 0" : "the job ends";
    loss_lines.push_back(std::exchange(losses, {}));
  }
  phase = Phase::kOver;
  end_at.reset();
  end_code = code;
  end_text = std::move(text);
  do_(EndJob{code, end_text, is_first ? first_failed : std::nullopt,
             std::exchange(loss_lines, {})});
}

}  // namespace rueda::launcher::membership
