#include "launcher/job/host_plan.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

namespace rueda::launcher {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text;
}

// "127.0.0.2": any address of 127.0.0.0/8 is the loopback's.
bool is_of_loopback(const std::string& name) {
  in_addr address{};
  return inet_pton(AF_INET, name.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

// How many ranks each host takes, full hosts first.
std::vector<HostPlan> fill(int num_proc, const std::vector<HostPlan>& hosts) {
  std::vector<HostPlan> used;
  Rank next = 0;
  for (const HostPlan& host : hosts) {
    const Rank local_size = std::min(num_proc - next, host.host.slots);
    if (local_size <= 0) continue;
    used.push_back(host);
    for (Rank local = 0; local < local_size; ++local)
      used.back().places.push_back({next++, num_proc, local, local_size, 0, 0});
  }
  return used;
}

}  // namespace

bool is_ours(const std::string& host, const std::vector<std::string>& own_names) {
  const std::string name = lower(host);
  return std::any_of(own_names.begin(), own_names.end(), [&](const std::string& own) {
    return lower(own) == name || (is_of_loopback(own) && is_of_loopback(name));
  });
}

Result<std::vector<HostPlan>> plan_hosts(int num_proc, const std::vector<HostSlots>& hosts,
                                         const std::vector<std::string>& own_names,
                                         const std::string& source) {
  std::vector<HostPlan> merged;
  size_t own = hosts.size();  // this machine's place in merged; until then none
  int64_t slots = 0;
  for (const HostSlots& host : hosts) {
    slots += host.slots;
    const bool ours = is_ours(host.host, own_names);
    if (ours && own < merged.size()) {
      merged[own].host.slots += host.slots;
      continue;
    }
    if (ours) own = merged.size();
    merged.push_back({host, ours, {}});
  }
  if (hosts.empty()) {
    merged.push_back({{"localhost", num_proc, "", 0}, true, {}});
  } else if (slots < num_proc) {
    return invalid_argument("-np " + std::to_string(num_proc) + " needs " +
                            std::to_string(num_proc) + " slots, " + source + " has " +
                            std::to_string(slots));
  }
  std::vector<HostPlan> plan = fill(num_proc, merged);
  for (size_t host = 0; host < plan.size(); ++host) {
    for (RankPlace& place : plan[host].places) {
      for (size_t other = 0; other < plan.size(); ++other) {
        if (plan[other].places.size() <= static_cast<size_t>(place.local_rank)) continue;
        ++place.cross_size;
        if (other < host) ++place.cross_rank;
      }
    }
  }
  return plan;
}

}  // namespace rueda::launcher
