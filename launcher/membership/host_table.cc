#include "launcher/membership/host_table.h"

#include <algorithm>
#include <cmath>

namespace rueda::launcher::membership {

void HostTable::found(const std::vector<HostSlots>& hosts, const std::set<std::string>& named) {
  std::map<std::string, int> slots;
  for (const HostSlots& host : hosts) slots[host.host] += host.slots;
  std::vector<Host> kept;
  std::vector<Host> away;  // not on the list, but with a past
  for (Host& host : hosts_) {
    const auto it = slots.find(host.name);
    if (it == slots.end()) {
      host.listed = false;
      host.drained = host.drained && named.contains(host.name);
      away.push_back(host);
    } else if (host.listed) {
      host.slots = it->second;
      slots.erase(it);
      kept.push_back(host);
    } else {
      away.push_back(host);
    }
  }
  for (const HostSlots& found : hosts) {
    const auto it = slots.find(found.host);
    if (it == slots.end()) continue;
    Host host;
    const auto past =
        std::find_if(away.begin(), away.end(), [&](const Host& a) { return a.name == found.host; });
    if (past != away.end()) {
      host = *past;
      away.erase(past);
    }
    host.name = found.host;
    host.slots = it->second;
    host.listed = true;
    slots.erase(it);
    kept.push_back(host);
  }
  kept.insert(kept.end(), away.begin(), away.end());
  hosts_ = std::move(kept);
  index();
}

void HostTable::drain(const std::string& name) {
  if (get(name) == nullptr) {
    Host host;
    host.name = name;
    hosts_.push_back(std::move(host));
    index();
  }
  get(name)->drained = true;
}

void HostTable::blacklist(const std::string& name, Time now) {
  Host* host = get(name);
  if (host == nullptr) return;
  ++host->failures;
  host->blacklisted = true;
  host->back.reset();
  if (!cooldown_) return;
  const auto [least, most] = *cooldown_;
  const double wanted = std::ldexp(least, std::min(host->failures, 60)) + uniform() * least;
  host->back = now + std::chrono::duration_cast<Time::duration>(
                         Seconds(std::clamp(wanted, least, std::max(least, most))));
}

bool HostTable::expire(Time now) {
  bool any = false;
  for (Host& host : hosts_) {
    if (!host.blacklisted || !host.back || now < *host.back) continue;
    host.blacklisted = false;
    host.back.reset();
    any = true;
  }
  return any;
}

std::optional<Time> HostTable::next_back() const {
  std::optional<Time> next;
  for (const Host& host : hosts_) {
    if (host.back && (!next || *host.back < *next)) next = host.back;
  }
  return next;
}

bool HostTable::usable(const std::string& name, int slot) const {
  const Host* host = find(name);
  return host != nullptr && host->usable() && slot < host->slots;
}

int HostTable::usable_hosts() const {
  return static_cast<int>(
      std::count_if(hosts_.begin(), hosts_.end(), [](const Host& h) { return h.usable(); }));
}

int HostTable::usable_slots() const {
  int slots = 0;
  for (const Host& host : hosts_) slots += host.usable() ? host.slots : 0;
  return slots;
}

bool HostTable::all_blacklisted() const {
  const auto is_good = [](const Host& h) { return h.listed && !h.blacklisted; };
  const auto is_bad = [](const Host& h) { return h.listed && h.blacklisted; };
  return std::none_of(hosts_.begin(), hosts_.end(), is_good) &&
         std::any_of(hosts_.begin(), hosts_.end(), is_bad);
}

size_t HostTable::position(const std::string& host) const {
  const auto it = positions_.find(host);
  return it == positions_.end() ? hosts_.size() : it->second;
}

const HostTable::Host* HostTable::find(const std::string& host) const {
  const auto it = positions_.find(host);
  return it == positions_.end() ? nullptr : &hosts_[it->second];
}

void HostTable::restore(std::vector<Host> hosts) {
  hosts_ = std::move(hosts);
  index();
}

HostTable::Host* HostTable::get(const std::string& host) { return const_cast<Host*>(find(host)); }

void HostTable::index() {
  positions_.clear();
  for (size_t i = 0; i < hosts_.size(); ++i) positions_[hosts_[i].name] = i;
}

// splitmix64: the same numbers on every machine.
double HostTable::uniform() {
  random_ += 0x9e3779b97f4a7c15U;
  uint64_t z = random_;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  z ^= z >> 31U;
  return static_cast<double>(z >> 11U) * 0x1.0p-53;
}

}  // namespace rueda::launcher::membership
