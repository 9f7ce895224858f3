#include "launcher/hosts/reach.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "collectives/host/event_fd.h"
#include "runtime/rendezvous/handshake.h"

namespace rueda::launcher {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kConnectMilliseconds = 3000;
constexpr seconds kProofLimit{3};
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
  Status open() {
    auto socket = listen_on("::", 0);
    if (!socket.ok()) socket = listen_on("0.0.0.0", 0);
    if (!socket.ok()) return socket.status();
    socket_ = std::move(socket).value();
    RUEDA_ASSIGN_OR_RETURN(wake_, host::make_event_fd());
    return {};
  }
  ~Listener() override {
    host::ring_event_fd(wake_.get());
    if (thread_.joinable()) thread_.join();
  }
  int port() const override { return socket_.port; }
  void answer_as(int host, int hosts, const std::string& job_id,
                 const rendezvous::JobKey& key) override {
    thread_ = std::thread([this, host, hosts, job_id, key] { run(host, hosts, job_id, key); });
  }

 private:
  // One after the other: a stranger who says nothing costs the others kProofLimit at most, so a few
  // are answered at once.
  void run(int host, int hosts, const std::string& job_id, const rendezvous::JobKey& key) {
    std::vector<std::thread> answering;
    std::atomic<size_t> busy{0};
    for (;;) {
      pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {socket_.fd.get(), POLLIN, 0}};
      if (busy >= kMostAtOnce) fds[1].fd = -1;
      poll(fds, 2, busy >= kMostAtOnce ? 50 : -1);
      if (fds[0].revents != 0) break;
      if (fds[1].revents == 0) continue;
      UniqueFd fd(accept4(socket_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) continue;
      ++busy;
      answering.emplace_back([&, connection = std::move(fd)] {
        const auto terms = terms_of(rendezvous::HandshakeRole::kAccepting, host, hosts, job_id);
        static_cast<void>(rendezvous::shake_hands(connection.get(), terms, key,
                                                  steady_clock::now() + kProofLimit));
        --busy;
      });
    }
    for (std::thread& thread : answering) thread.join();
  }

  ListeningSocket socket_;
  UniqueFd wake_;
  std::thread thread_;
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
  auto listener = std::make_unique<Listener>();
  RUEDA_RETURN_IF_ERROR(listener->open());
  return std::unique_ptr<ReachListener>(std::move(listener));
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

}  // namespace rueda::launcher
