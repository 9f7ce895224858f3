#include "launcher/membership/membership.h"

#include <algorithm>

#include "launcher/membership/state.h"

namespace rueda::launcher::membership {

MembershipDecider::MembershipDecider(Policy policy)
    : state_(std::make_unique<State>(std::move(policy))) {}
MembershipDecider::MembershipDecider(std::unique_ptr<State> state) : state_(std::move(state)) {}
MembershipDecider::MembershipDecider(MembershipDecider&&) noexcept = default;
MembershipDecider& MembershipDecider::operator=(MembershipDecider&&) noexcept = default;
MembershipDecider::~MembershipDecider() = default;

std::vector<Action> MembershipDecider::on(const Event& event, Time now) {
  State& state = *state_;
  state.now = now;
  if (state.resumed) {
    state.hosts.shift(now.time_since_epoch());
    state.resumed = false;
    state.now = now;
    state.since = now;
    if (state.rest_since) state.rest_since = now;
    state.repeat_orders();
    state.repeat_end();
  }
  if (!state.since) state.since = now;
  if (state.phase != Phase::kOver) std::visit([&](const auto& what) { state.on(what); }, event);
  state.advance();
  return std::exchange(state.actions, {});
}

std::optional<Time> MembershipDecider::next_deadline() const { return state_->next_deadline(); }
uint64_t MembershipDecider::epoch() const { return state_->epoch; }

std::vector<MembershipDecider::Seat> MembershipDecider::seats() const {
  std::vector<Seat> seats;
  seats.reserve(state_->ranks.size());
  for (const MemberId id : state_->ranks) {
    const Member& member = state_->members.at(id);
    seats.push_back({id, member.host, member.slot, member.rank});
  }
  return seats;
}

std::vector<HostSlots> MembershipDecider::found_hosts() const {
  std::vector<HostSlots> found;
  for (const HostTable::Host& host : state_->hosts.hosts()) {
    if (host.listed || host.drained) found.push_back({host.name, host.slots});
  }
  return found;
}

bool MembershipDecider::is_drained(const std::string& name) const {
  const HostTable::Host* const host = state_->hosts.find(name);
  return host != nullptr && host->drained;
}

bool MembershipDecider::knows(const std::string& name) const {
  return state_->hosts.find(name) != nullptr;
}

std::set<std::string> MembershipDecider::hosts_with_members() const {
  std::set<std::string> hosts;
  for (const auto& [id, member] : state_->members) {
    if (member.lives()) hosts.insert(member.host);
  }
  return hosts;
}

MembershipDecider MembershipDecider::copy() const {
  return MembershipDecider(std::make_unique<State>(*state_));
}

std::string MembershipDecider::record() const { return state_->record(); }

std::unique_ptr<MembershipDecider> MembershipDecider::resume(Policy policy,
                                                             std::string_view record) {
  auto decider = std::make_unique<MembershipDecider>(std::move(policy));
  if (!decider->state_->restore(record)) return nullptr;
  return decider;
}

void MembershipDecider::State::advance() {
  if (phase == Phase::kOver) return;
  say_losses();
  if (hosts.expire(now)) seats_dirty = true;
  if (end_at) {
    if (first_code || now >= *end_at) end_job(first_code.value_or(1), end_text);
    return;
  }
  if (phase == Phase::kGathering) return try_start();
  if (!policy.elastic) return;
  if (!finishing && policy.on_failure == OnFailure::kBlacklist && first_failed &&
      hosts.all_blacklisted())
    return fail_job("every host has failed");
  if (rest_since && passed(*rest_since, policy.elastic_timeout))
    return end_job(kTooFew, who_finished + " has ended with code 0, and " + std::to_string(alive) +
                                " ranks still trained without it when --elastic-timeout was over");
  if (std::exchange(seats_dirty, false) && !finishing) fill_seats();
  if (!slow.empty() && !finishing) exchange_slow();
  if (phase == Phase::kRunning) announce();
  if (phase == Phase::kEnding) try_form();
}

void MembershipDecider::State::announce() {
  if (finishing) return;
  int changes = leaving.empty() ? 0 : 1;
  for (const MemberId id : newcomers) {
    const Member& member = members.at(id);
    const bool counts = policy.on_join == OnJoin::kAnnounce || member.stage == Stage::kReady;
    if (counts && !member.spare) changes |= 2;
  }
  if ((changes & ~told) == 0) return;
  told |= changes;
  do_(Announce{++serial, told, who_lives()});
}

std::vector<MemberId> MembershipDecider::State::who_lives() const {
  std::vector<MemberId> living;
  for (const MemberId id : ranks) {
    if (members.at(id).lives()) living.push_back(id);
  }
  return living;
}

std::optional<Time> MembershipDecider::State::next_deadline() const {
  std::optional<Time> next;
  const auto at = [&](std::optional<Time> time) {
    if (time && *time > now && (!next || *time < *next)) next = time;
  };
  if (phase == Phase::kOver) return next;
  if (end_at) return end_at;
  at(hosts.next_back());
  if (rest_since) at(after(*rest_since, policy.elastic_timeout));
  for (const LossLine& line : loss_lines) at(line.until);
  if (!since || (phase != Phase::kGathering && phase != Phase::kEnding)) return next;
  at(after(*since, policy.elastic_timeout));
  if (phase != Phase::kEnding) return next;
  if (first_left && !told_end) at(after(*since, policy.fence_patience));
  if (!by_loss) return next;
  at(after(last_loss, policy.last_call));
  for (const auto& [id, lost_at] : unfenced) at(after(lost_at, policy.fence_patience));
  return next;
}

}  // namespace rueda::launcher::membership
