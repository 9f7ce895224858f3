// Which hosts may be used, and which have failed too often: order, slots, blacklist, cooldowns.
// Pure.
//
//   listed ──fails──> blacklisted ──its cooldown has passed──> listed (without cooldown: never)
//     │  drained ──> not used before it has been off the list; also one that was not there yet
//     └─ no longer found ──> off the list; its failures are remembered
//
// Hosts keep the order in which they were first found; who was off the list comes back at its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/hostfile.h"

namespace rueda::launcher::membership {

using Time = std::chrono::steady_clock::time_point;
using Seconds = std::chrono::duration<double>;

class HostTable {
 public:
  struct Host {
    std::string name;
    int slots = 0;
    int failures = 0;
    bool listed = false;
    bool drained = false;
    bool blacklisted = false;
    std::optional<Time> back;  // of a blacklisted one; nothing: for ever
    bool usable() const { return listed && !drained && !blacklisted; }
  };

  // `cooldown`: the least and the longest, in seconds. `seed`: of their random part.
  HostTable(std::optional<std::pair<double, double>> cooldown, uint64_t seed)
      : cooldown_(cooldown), random_(seed) {}

  // This list replaces the one before. A name that comes twice adds its slots. `named`: hosts that
  // are on the user's list, these or others: who is drained stays so.
  void found(const std::vector<HostSlots>& hosts, const std::set<std::string>& named = {});
  void drain(const std::string& host);
  // clip(min * 2^k + U(0,1) * min, min, max) from now on, k its failures so far with this one.
  void blacklist(const std::string& host, Time now);
  // Blacklisted hosts whose time has come are as the others; whether there was one.
  bool expire(Time now);
  std::optional<Time> next_back() const;

  bool usable(const std::string& host, int slot) const;
  int usable_hosts() const;
  int usable_slots() const;
  // There is a host on the list, and each of them is blacklisted.
  bool all_blacklisted() const;
  // Its place in the order; one that was never found comes last.
  size_t position(const std::string& host) const;
  const Host* find(const std::string& host) const;
  const std::vector<Host>& hosts() const { return hosts_; }

  // From a record: as it was.
  void restore(std::vector<Host> hosts);
  void shift(Time::duration by) {
    for (Host& host : hosts_) {
      if (host.back) *host.back += by;
    }
  }

 private:
  Host* get(const std::string& host);
  void index();
  double uniform();

  std::optional<std::pair<double, double>> cooldown_;
  uint64_t random_;
  std::vector<Host> hosts_;  // in order
  std::map<std::string, size_t> positions_;
};

}  // namespace rueda::launcher::membership
