#include "runtime/negotiation/steady_sizes.h"

#include <algorithm>
#include <utility>

namespace rueda::negotiation {

const SteadySizes::Name* SteadySizes::find(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : &found->second;
}

void SteadySizes::on_round(const std::vector<RequestPtr>& by_rank) {
  if (capacity_ == 0) return;
  const std::string& name = by_rank.front()->name;
  const auto [found, is_new] = names_.try_emplace(name);
  Name& of = found->second;
  if (is_new) {
    of.at = order_.insert(order_.end(), name);
    of.requests = Requests(by_rank);
    if (names_.size() <= capacity_) return;
    names_.erase(order_.front());
    order_.pop_front();
    return;
  }
  order_.splice(order_.end(), order_, of.at);
  if (of.requests.are(by_rank)) {
    ++of.rounds;
    return;
  }
  if (of.rounds >= of.needed) {
    const bool lasted = of.rounds >= kLasting * of.needed;
    of.needed = lasted ? kRounds : std::min(kMostRounds, 2 * of.needed);
  }
  of.requests = Requests(by_rank);
  of.rounds = 1;
}

bool SteadySizes::is_worth_an_id(const std::string& name) const {
  const Name* of = find(name);
  return of != nullptr && of->rounds >= kRounds;
}

bool SteadySizes::is_steady(const std::string& name) const {
  const Name* of = find(name);
  return of != nullptr && of->rounds >= of->needed;
}

bool SteadySizes::is_last(const std::string& name, const Requests& requests) const {
  const Name* of = find(name);
  return of != nullptr && of->requests == requests;
}

void SteadySizes::begin_plan(const std::vector<std::string>& names) { planned_ = names; }

void SteadySizes::end_plan(uint64_t cycles) {
  for (const std::string& name : std::exchange(planned_, {})) {
    const auto found = names_.find(name);
    if (found != names_.end()) found->second.rounds += cycles;
  }
}

}  // namespace rueda::negotiation
