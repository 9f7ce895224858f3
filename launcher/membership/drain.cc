// What becomes of a job when a host is drained, before it is.
#include <algorithm>
#include <climits>

#include "collectives/base/number_text.h"
#include "launcher/membership/state.h"

namespace rueda::launcher::membership {

using Decider = MembershipDecider;

Result<std::string> Decider::drain_outlook(const std::string& host) const {
  return state_->drain_outlook(host);
}

Result<std::string> Decider::State::drain_outlook(const std::string& name) const {
  if (phase == Phase::kOver || end_at || finishing)
    return failed_precondition("the job is about to end");
  const HostTable::Host* const host = hosts.find(name);
  if (host != nullptr && host->drained) return "host " + name + " is drained already";
  if (host == nullptr || !host->listed) {
    std::string names;
    for (const HostTable::Host& one : hosts.hosts()) {
      if (one.listed) names += (names.empty() ? "" : ", ") + one.name;
    }
    return Status(Code::kNotFound, "the job has no host '" + name + "'; " +
                                       (names.empty() ? "it has none yet" : "it has " + names));
  }
  if (hosts.usable_hosts() == (host->usable() ? 1 : 0))
    return failed_precondition("host " + name +
                               " is the only one that the job can use: its ranks could go nowhere "
                               "(SIGTERM to ruedarun ends the job)");
  size_t leave = 0, stay = 0;
  for (const auto& [id, member] : members) {
    if (!member.lives() || member.spare || member.leaving) continue;
    ++(member.host == name ? leave : stay);
  }
  const std::string drained = "host " + name + " is drained";
  if (leave == 0) return drained + ", no rank is there";
  std::string text =
      drained + ": " +
      (leave == 1 ? "its rank leaves at its next commit"
                  : "its " + std::to_string(leave) + " ranks leave at their next commit");
  const int room = hosts.usable_slots() - (host->usable() ? host->slots : 0);
  const int most = std::min(room, policy.max_np > 0 ? policy.max_np : INT_MAX);
  const size_t come = std::max(most - static_cast<int>(stay), 0);
  if (come > 0) text += ", and " + counted(come, "new rank") + " on other hosts may replace them";
  const auto left = static_cast<int>(stay + come);
  if (left < policy.min_np)
    text += ". Then " + std::to_string(left) + (left == 1 ? " is" : " are") +
            " left, and --min-np is " + std::to_string(policy.min_np) +
            ": the job waits for other hosts, no longer than --elastic-timeout";
  return text;
}

}  // namespace rueda::launcher::membership
