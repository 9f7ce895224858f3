#include "launcher/hosts/reach.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "launcher/hosts/proof_door.h"
#include "runtime/rendezvous/handshake.h"

namespace rueda::launcher {
namespace {

using std::chrono::steady_clock;

constexpr int kConnectMilliseconds = 3000;
constexpr size_t kMostAtOnce = 32;

rendezvous::HandshakeTerms terms_of(rendezvous::HandshakeRole role, int me, int hosts,
                                    const std::string& job_id) {
  rendezvous::HandshakeTerms terms;
  terms.role = role;
  terms.my_rank = me;
  terms.size = hosts;
  terms.job_id = "reach/" + job_id;
  return terms;
}

class Listener : public ReachListener {
 public:
  explicit Listener(ProofDoor door) : door_(std::move(door)) {}
  int port() const override { return door_.port(); }
  void answer_as(int host, int hosts, const std::string& job_id,
                 const rendezvous::JobKey& key) override {
    door_.answer(terms_of(rendezvous::HandshakeRole::kAccepting, host, hosts, job_id), key);
  }

 private:
  ProofDoor door_;
};

std::string try_one(int me, int hosts, const std::string& job_id, const rendezvous::JobKey& key,
                    const ReachTarget& target, const std::string& address) {
  const auto connection = connect_to(address, target.port, kConnectMilliseconds);
  if (!connection.ok()) return connection.status().message();
  auto terms = terms_of(rendezvous::HandshakeRole::kConnecting, me, hosts, job_id);
  terms.peer = target.host;
  const auto met = rendezvous::shake_hands(connection.value().get(), terms, key,
                                           steady_clock::now() + kProofLimit);
  return met.ok() ? "" : "somebody else answers there: " + met.status().message();
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

const ReachTry* find_try(const std::vector<ReachTry>& tries, int from, int to,
                         const std::string& address) {
  const auto found = std::find_if(tries.begin(), tries.end(), [&](const ReachTry& one) {
    return one.from == from && one.to == to && one.address == address;
  });
  return found == tries.end() ? nullptr : &*found;
}

std::string table_of(const std::vector<ReachHost>& hosts, const std::vector<ReachTry>& tries,
                     int to) {
  std::string table;
  for (const ReachTry& one : tries) {
    if (one.to != to) continue;
    table += "\n  " + hosts[static_cast<size_t>(one.from)].name + " -> " + one.address + "  " +
             (one.error.empty() ? "reached" : one.error);
  }
  return table;
}

}  // namespace

Result<std::unique_ptr<ReachListener>> ReachListener::start() {
  RUEDA_ASSIGN_OR_RETURN(ProofDoor door, ProofDoor::open(0));
  return std::unique_ptr<ReachListener>(std::make_unique<Listener>(std::move(door)));
}

std::vector<ReachTry> try_to_reach(int host, int hosts, const std::string& job_id,
                                   const rendezvous::JobKey& key,
                                   const std::vector<ReachTarget>& targets) {
  struct Task {
    const ReachTarget* target;
    ReachTry result;
  };
  std::vector<Task> tasks;
  for (const ReachTarget& target : targets) {
    for (const std::string& address : target.addresses)
      tasks.push_back({&target, {host, target.host, address, ""}});
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < tasks.size(); i = next++) {
      Task& task = tasks[i];
      task.result.error = try_one(host, hosts, job_id, key, *task.target, task.result.address);
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(kMostAtOnce, tasks.size()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  std::vector<ReachTry> results;
  for (Task& task : tasks) results.push_back(std::move(task.result));
  return results;
}

Result<std::vector<std::string>> choose_addresses(const std::vector<ReachHost>& hosts,
                                                  const std::vector<ReachTry>& tries) {
  const bool one_machine = std::all_of(hosts.begin(), hosts.end(), [&](const ReachHost& host) {
    return host.identity == hosts.front().identity;
  });
  std::vector<std::string> chosen;
  for (int to = 0; to < static_cast<int>(hosts.size()); ++to) {
    const ReachHost& host = hosts[static_cast<size_t>(to)];
    std::optional<std::string> good;
    for (const std::string& address : host.addresses) {
      if (is_loopback(address) && !one_machine) continue;
      bool all = true;
      for (int from = 0; from < static_cast<int>(hosts.size()) && all; ++from) {
        const ReachTry* one = from == to ? nullptr : find_try(tries, from, to, address);
        all = from == to || (one != nullptr && one->error.empty());
      }
      if (all) good = address;
      if (good) break;
    }
    if (!good) {
      const std::string table = table_of(hosts, tries, to);
      return unavailable("no address of host " + host.name +
                         " can be reached by all other hosts; tried:" +
                         (!host.none_allowed.empty() ? " none, " + host.none_allowed
                          : table.empty()            ? " none, it has only loopback addresses"
                                                     : table) +
                         "\n(open the network between the hosts, or choose with "
                         "--network-interfaces)");
    }
    chosen.push_back(*good);
  }
  return chosen;
}

namespace {

// The place of each host among those that are not left out.
std::map<int, int> places_without(size_t hosts, const std::map<int, std::string>& left_out) {
  std::map<int, int> places;
  for (int host = 0; host < static_cast<int>(hosts); ++host) {
    if (!left_out.contains(host)) places.emplace(host, static_cast<int>(places.size()));
  }
  return places;
}

using Reached = std::set<std::pair<int, int>>;  // who has reached whom, under some address

// How many hosts have not reached it, or were not reached by it.
int misses(int host, const std::map<int, int>& places, const Reached& reached) {
  return static_cast<int>(std::count_if(places.begin(), places.end(), [&](const auto& entry) {
    const int other = entry.first;
    return other != host && !(reached.contains({host, other}) && reached.contains({other, host}));
  }));
}

}  // namespace

Result<Reachable> choose_reachable(const std::vector<ReachHost>& hosts,
                                   const std::vector<ReachTry>& tries, std::set<int> may_leave) {
  Reachable result;
  Reached reached;
  for (const ReachTry& one : tries) {
    if (one.error.empty()) reached.emplace(one.from, one.to);
  }
  for (;;) {
    const std::map<int, int> places = places_without(hosts.size(), result.left_out);
    std::vector<ReachHost> those;
    for (const auto& [host, place] : places) those.push_back(hosts[static_cast<size_t>(host)]);
    std::vector<ReachTry> theirs;
    for (const ReachTry& one : tries) {
      if (places.contains(one.from) && places.contains(one.to))
        theirs.push_back({places.at(one.from), places.at(one.to), one.address, one.error});
    }
    const auto chosen = choose_addresses(those, theirs);
    if (chosen.ok()) {
      for (const auto& [host, place] : places)
        result.addresses[host] = chosen.value()[static_cast<size_t>(place)];
      return result;
    }
    if (may_leave.empty() && result.left_out.empty()) return chosen.status();
    if (may_leave.empty()) return result;
    const int out = *std::max_element(may_leave.rbegin(), may_leave.rend(), [&](int a, int b) {
      return misses(a, places, reached) < misses(b, places, reached);
    });
    may_leave.erase(out);
    result.left_out[out] = chosen.status().message();
  }
}

}  // namespace rueda::launcher
