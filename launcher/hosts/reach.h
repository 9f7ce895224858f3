// Which address of each host the others can really reach: every agent tries every address of every
// other, and whoever answers there must prove to be the agent that is meant. So a twin of an
// address (docker0 has 172.17.0.1 on every machine) passes for nobody.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/hosts/addresses.h"
#include "runtime/rendezvous/job_key.h"

namespace rueda::launcher {

struct ReachTarget {
  int host = 0;
  std::vector<std::string> addresses;
  int port = 0;
};

struct ReachTry {
  int from = 0, to = 0;
  std::string address;
  std::string error;  // empty: reached
};

// Answers those who try to reach this host, while it lives. One thread.
class ReachListener {
 public:
  // On all addresses, a port of the kernel's choice.
  static Result<std::unique_ptr<ReachListener>> start();
  virtual ~ReachListener() = default;
  virtual int port() const = 0;
  // Nobody is answered before.
  virtual void answer_as(int host, int hosts, const std::string& job_id,
                         const rendezvous::JobKey& key) = 0;
};

// Tries all addresses at once, a few seconds at most.
std::vector<ReachTry> try_to_reach(int host, int hosts, const std::string& job_id,
                                   const rendezvous::JobKey& key,
                                   const std::vector<ReachTarget>& targets);

// Pure. One address per host: the first in the host's own order that every other host has reached;
// loopback only when all hosts are one machine (equal identities). Unavailable, with the table of
// tries, when a host has none.
struct ReachHost {
  std::string name, identity;
  std::vector<std::string> addresses;
  std::string none_allowed = {};  // why there is none (addresses.h)
};
Result<std::vector<std::string>> choose_addresses(const std::vector<ReachHost>& hosts,
                                                  const std::vector<ReachTry>& tries);
// The same for a job that can do without some hosts: those of `may_leave` (places in `hosts`) are
// left out, one by one, until the others have addresses: who misses most of the others first.
struct Reachable {
  std::map<int, std::string> addresses;  // by place; empty when all that may leave are left out
  std::map<int, std::string> left_out;   // why, by place
};
Result<Reachable> choose_reachable(const std::vector<ReachHost>& hosts,
                                   const std::vector<ReachTry>& tries, std::set<int> may_leave);

}  // namespace rueda::launcher
