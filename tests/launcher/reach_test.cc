// Which addresses are tried and which are taken, and what hostile peers get.
#include "launcher/hosts/reach.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <proto/control.grpc.pb.h>
#include <sys/socket.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "launcher/agent/control_connection.h"
#include "launcher/controller/control_server.h"
#include "launcher/hosts/clocks.h"
#include "launcher/hosts/host_environment.h"
#include "launcher/hosts/limits.h"

using namespace rueda::launcher;
using Names = std::vector<std::string>;

namespace {

const std::vector<InterfaceAddress> kInterfaces = {
    {"lo", "127.0.0.1", true, true},       {"docker0", "172.17.0.1", false, true},
    {"eth1", "10.1.0.1", false, false},    {"eth0", "10.0.0.1", false, true},
    {"eth0", "fd00::1", false, true},      {"ib0", "10.9.0.1", false, true},
    {"veth12ab", "10.88.0.1", false, true}};

Names order(const std::string& selection) {
  auto found = order_addresses(kInterfaces, selection);
  return found.ok() ? found.value() : Names{"! " + found.status().message()};
}

}  // namespace

TEST_CASE("real networks come before bridges of containers, loopback is last", "[addresses]") {
  CHECK(order("") ==
        Names{"10.0.0.1", "fd00::1", "10.9.0.1", "172.17.0.1", "10.88.0.1", "127.0.0.1"});
  CHECK(order("eth0") == Names{"10.0.0.1", "fd00::1"});
  CHECK(order("ib,eth") == Names{"10.0.0.1", "fd00::1", "10.9.0.1"});
  CHECK(order("=eth") == Names{});
  CHECK(order("^docker,^veth,^lo") == Names{"10.0.0.1", "fd00::1", "10.9.0.1"});
  CHECK(order("10.0.0.0/8") == Names{"10.0.0.1", "10.9.0.1", "10.88.0.1"});
  CHECK(order("fd00::/16") == Names{"fd00::1"});
  CHECK(order("10.0.0.0/40") == Names{"! --network-interfaces: '10.0.0.0/40' is no network"});
  CHECK(order("a,,b") == Names{"! --network-interfaces 'a,,b': an empty part"});
}

TEST_CASE("an address is taken when every other host has reached it", "[reach]") {
  const std::vector<ReachHost> hosts = {{"h0", "A", {"172.17.0.1", "10.0.0.1"}},
                                        {"h1", "B", {"172.17.0.1", "10.0.0.2"}},
                                        {"h2", "C", {"127.0.0.1", "10.0.0.3"}}};
  std::vector<ReachTry> tries;
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      if (from == to) continue;
      for (const std::string& address : hosts[static_cast<size_t>(to)].addresses) {
        const bool real = address.starts_with("10.");
        tries.push_back({from, to, address, real ? "" : "somebody else answers there"});
      }
    }
  }
  const auto chosen = choose_addresses(hosts, tries);
  REQUIRE(chosen.ok());
  CHECK(chosen.value() == Names{"10.0.0.1", "10.0.0.2", "10.0.0.3"});

  for (ReachTry& one : tries) {
    if (one.from == 2 && one.to == 1) one.error = "no answer in 3000 ms";
  }
  const std::string refusal = choose_addresses(hosts, tries).status().message();
  CHECK_THAT(refusal, Catch::StartsWith("no address of host h1 can be reached by all other hosts"));
  CHECK_THAT(refusal, Catch::Contains("h0 -> 172.17.0.1  somebody else answers there"));
  CHECK_THAT(refusal, Catch::Contains("h0 -> 10.0.0.2  reached"));
  CHECK_THAT(refusal, Catch::Contains("h2 -> 10.0.0.2  no answer in 3000 ms"));
}

TEST_CASE("a job that can do without some hosts leaves out who spoils it for others", "[reach]") {
  std::vector<ReachHost> hosts;
  std::vector<ReachTry> tries;
  const int bad = GENERATE(0, 1, 3);
  for (int to = 0; to < 4; ++to) {
    hosts.push_back({"h" + std::to_string(to),
                     "machine " + std::to_string(to),
                     {"10.0.0." + std::to_string(to)}});
    for (int from = 0; from < 4; ++from) {
      if (from == to) continue;
      const bool cut = from == bad || to == bad;
      tries.push_back({from, to, hosts.back().addresses[0], cut ? "no answer in 3000 ms" : ""});
    }
  }
  const auto chosen = choose_reachable(hosts, tries, {0, 1, 2, 3});
  REQUIRE(chosen.ok());
  CHECK(chosen.value().left_out.size() == 1);
  CHECK_THAT(chosen.value().left_out.at(bad), Catch::Contains("no answer in 3000 ms"));
  CHECK(chosen.value().addresses.size() == 3);
  for (const auto& [host, address] : chosen.value().addresses)
    CHECK(address == "10.0.0." + std::to_string(host));

  CHECK_FALSE(choose_reachable(hosts, tries, {}).ok());
  // Who cannot be spared was there before: nobody joins it.
  const int other = bad == 3 ? 2 : 3;
  const auto nobody = choose_reachable(hosts, tries, {other});
  REQUIRE(nobody.ok());
  CHECK(nobody.value().addresses.empty());
  CHECK(nobody.value().left_out.contains(other));
}

TEST_CASE("a choice of interfaces that leaves no address is told with what there is", "[reach]") {
  const std::string none = rueda::launcher::none_allowed(kInterfaces, "=eth");
  CHECK_THAT(none, Catch::StartsWith("--network-interfaces =eth allows none of its addresses (") &&
                       Catch::Contains("eth0 10.0.0.1"));
  CHECK(rueda::launcher::none_allowed(kInterfaces, "eth").empty());
  CHECK(rueda::launcher::none_allowed(kInterfaces, "").empty());
  const auto refused = choose_addresses({{"h0", "A", {"10.0.0.1"}}, {"h1", "B", {}, none}}, {});
  CHECK_FALSE(refused.ok());
  const auto other = choose_addresses({{"h1", "B", {}, none}, {"h0", "A", {"10.0.0.1"}}}, {});
  CHECK_THAT(other.status().message(), Catch::Contains("of host h1 can be reached") &&
                                           Catch::Contains("tried: none, " + none));
}

TEST_CASE("whoever answers at an address must be who is meant", "[reach]") {
  const auto key = rueda::rendezvous::JobKey::make_random().value();
  const auto listener = ReachListener::start();
  REQUIRE(listener.ok());
  listener.value()->answer_as(1, 3, "job", key);
  const int port = listener.value()->port();
  const auto other_key = rueda::rendezvous::JobKey::make_random().value();
  CHECK(try_to_reach(0, 3, "job", key, {{1, {"127.0.0.1"}, port}}).front().error.empty());
  CHECK_FALSE(try_to_reach(0, 3, "job", key, {{2, {"127.0.0.1"}, port}}).front().error.empty());
  CHECK_FALSE(
      try_to_reach(0, 3, "job", other_key, {{1, {"127.0.0.1"}, port}}).front().error.empty());
  CHECK_FALSE(try_to_reach(0, 3, "other", key, {{1, {"127.0.0.1"}, port}}).front().error.empty());
}

TEST_CASE("secrets and what belongs to a host stay at home", "[environment]") {
  const Names ours = {"PATH=/bin",    "HOME=/root",    "SSH_AUTH_SOCK=/x",
                      "MY_API_KEY=1", "GH_TOKEN=2",    "RUEDA_LOG_LEVEL=debug",
                      "LANG=C",       "DB_PASSWORD=3", "HOROVOD_CYCLE_TIME=1"};
  CHECK(environment_for_hosts(ours, {"GH_TOKEN"}) == Names{"PATH=/bin", "GH_TOKEN=2",
                                                           "RUEDA_LOG_LEVEL=debug", "LANG=C",
                                                           "HOROVOD_CYCLE_TIME=1"});
  CHECK(environment_for_hosts({"K_MPI_JOB_ROLE=launcher", "NVIDIA_VISIBLE_DEVICES=", "A=1"}, {}) ==
        Names{"A=1"});  // of a launcher's pod
}

TEST_CASE("what is withheld as a secret is told by name, and a URL's password is one",
          "[environment]") {
  const Names secret = {"MYSQL_PWD=1",   "PGPASS=2",         "GITHUB_PAT=3",
                        "OPENAI_KEY=4",  "PASSPHRASE=5",     "SIGNING_KEY=6",
                        "db_password=7", "DB=pg://u:p@h/db", "MY_CREDENTIALS=8"};
  const Names open = {"PWD=/x", "KEYS=1", "URL=http://h/a:b@c", "PROXY=http://u@h", "SSH_KEY", "X"};
  Names all = secret, withheld;
  all.insert(all.end(), open.begin(), open.end());
  CHECK(environment_for_hosts(all, {}, &withheld) ==
        Names{"PWD=/x", "KEYS=1", "URL=http://h/a:b@c", "PROXY=http://u@h", "X"});
  CHECK(withheld == Names{"MYSQL_PWD", "PGPASS", "GITHUB_PAT", "OPENAI_KEY", "PASSPHRASE",
                          "SIGNING_KEY", "db_password", "DB", "MY_CREDENTIALS"});
}

namespace {

// A controller that waits for two agents, and the tickets to it, by host.
struct Door {
  std::unique_ptr<ControlServer> server;
  std::vector<Ticket> tickets;
};

Door open_door(bool shared = false) {
  Door door;
  ControlServer::Setup setup;
  setup.certificates = make_certificates("0123456789abcdef", 2, shared).value();
  setup.token = make_token().value();
  setup.version.assign(1, '1');
  setup.hosts = {"h0", "h1"};
  setup.addresses = {"127.0.0.1"};
  const Certificates certificates = setup.certificates;
  const std::string token = setup.token;
  door.server = ControlServer::start(std::move(setup)).value();
  for (const KeyPair& agent : certificates.agents) {
    door.tickets.push_back({"0123456789abcdef", token, door.server->addresses(),
                            certificates.authority, agent.certificate, agent.private_key});
  }
  return door;
}

constexpr std::chrono::seconds kPatience{60};

// What an agent with this ticket hears: "" when it is taken, else why not.
std::string knock(const Ticket& ticket, int host, const std::string& version = "1") {
  const auto client = ControlConnection::connect(ticket, std::chrono::seconds(3));
  if (!client.ok()) return client.status().message();
  control::AgentMessage message;
  message.mutable_register_()->set_host_index(host);
  message.mutable_register_()->set_version(version);
  client.value()->send(std::move(message));
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!client.value()->gone() && std::chrono::steady_clock::now() < until) {
    if (!client.value()->take().empty()) return "";
    pollfd fd = {client.value()->fd(), POLLIN, 0};
    poll(&fd, 1, 100);
  }
  return client.value()->why_gone();
}

// Says yes to whoever has registered, and collects what is written, until its end.
class Welcome {
 public:
  explicit Welcome(ControlServer* server) : server_(server), controller_([this] { run(); }) {}
  ~Welcome() {
    over_ = true;
    controller_.join();
  }
  std::string output() const {
    const std::lock_guard lock(mutex_);
    return output_;
  }

 private:
  void run() {
    while (!over_) {
      pollfd fd = {server_->fd(), POLLIN, 0};
      poll(&fd, 1, 50);
      for (const AgentEvent& event : server_->take()) {
        if (event.kind == AgentEvent::Kind::kOutput) {
          const std::lock_guard lock(mutex_);
          output_ += event.output.data();
        }
        if (event.kind != AgentEvent::Kind::kRegistered) continue;
        control::ControllerMessage welcome;
        welcome.mutable_heartbeat();
        server_->send(event.host, std::move(welcome));
      }
    }
  }

  ControlServer* const server_;
  mutable std::mutex mutex_;
  std::string output_;
  std::atomic<bool> over_{false};
  std::thread controller_;
};

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

size_t resident_bytes() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

}  // namespace

TEST_CASE("only who has the job's certificate and token becomes an agent", "[control]") {
  Door door = open_door();
  const Welcome welcome(door.server.get());
  const Ticket& first = door.tickets[0];
  const Ticket& second = door.tickets[1];
  Ticket other = first;
  other.token[0] = other.token[0] == 'a' ? 'b' : 'a';
  CHECK(knock(other, 0) == "the token is wrong");
  CHECK(knock(first, 0, "2") == "rueda 2 is installed there, 1 here; install one version");
  CHECK(knock(first, 7) == "the job has no place for another host");
  // A certificate of another job, with the right token.
  const auto foreign = make_certificates("0123456789abcdef", 2, false).value();
  other = first;
  other.certificate = foreign.agents[0].certificate;
  other.private_key = foreign.agents[0].private_key;
  CHECK_FALSE(knock(other, 0).empty());
  // A controller that is not the job's.
  other = first;
  other.authority = foreign.authority;
  CHECK_THAT(knock(other, 0), Catch::Contains("not as this job's controller"));
  // The agent of another host of this very job.
  CHECK(knock(second, 0) == "its certificate is not that of host h0");
  CHECK(knock(first, 1) == "its certificate is not that of host h1");
  CHECK(knock(first, 0).empty());
  CHECK(knock(first, 0) == "host h0 of this job has joined already");  // the ticket replayed
  CHECK(knock(second, 1).empty());
  door.server->stop_listening();
  CHECK_THAT(knock(second, 1), Catch::Contains("Connection refused"));
}

TEST_CASE("a host that is invited later has a certificate of its own, and finds an open port",
          "[control]") {
  std::unique_ptr<Issuer> issuer;
  ControlServer::Setup setup;
  setup.certificates = make_certificates("0123456789abcdef", 1, false, &issuer).value();
  setup.token = make_token().value();
  setup.version.assign(1, '1');
  setup.hosts = {"h0"};
  setup.addresses = {"127.0.0.1"};
  Ticket ticket{"0123456789abcdef",
                setup.token,
                {},
                setup.certificates.authority,
                setup.certificates.agents[0].certificate,
                setup.certificates.agents[0].private_key};
  const auto server = ControlServer::start(std::move(setup)).value();
  const Welcome welcome(server.get());
  ticket.addresses = server->addresses();
  CHECK(knock(ticket, 0).empty());
  server->stop_listening();
  const KeyPair pair = issuer->issue(agent_name(1)).value();
  ticket.certificate = pair.certificate;
  ticket.private_key = pair.private_key;
  CHECK_THAT(knock(ticket, 1), Catch::Contains("Connection refused"));
  REQUIRE(server->listen().ok());
  ticket.addresses = server->addresses();
  CHECK(knock(ticket, 1) == "the job has no place for another host");
  server->add_host("h1");
  CHECK(knock(ticket, 0) == "its certificate is not that of host h0");
  CHECK(knock(ticket, 1).empty());
  CHECK(knock(ticket, 1) == "host h1 of this job has joined already");
  server->stop_listening();
  CHECK_THAT(knock(ticket, 1), Catch::Contains("Connection refused"));
}

TEST_CASE("a shared certificate is good for any free place", "[control]") {
  Door door = open_door(true);
  const Welcome welcome(door.server.get());
  REQUIRE(door.tickets.size() == 1);
  CHECK(knock(door.tickets[0], 1).empty());
  CHECK(knock(door.tickets[0], 1) == "host h1 of this job has joined already");
  CHECK(knock(door.tickets[0], 0).empty());
}

TEST_CASE("output is taken over the connection of its own host only", "[control]") {
  Door door = open_door(true);  // the same certificate on both sides
  const Welcome welcome(door.server.get());
  const auto join = [&](int host) {
    auto client = ControlConnection::connect(door.tickets[0], std::chrono::seconds(3)).value();
    control::AgentMessage message;
    message.mutable_register_()->set_host_index(host);
    message.mutable_register_()->set_version("1");
    client->send(std::move(message));
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (client->take().empty() && std::chrono::steady_clock::now() < until) {
      pollfd fd = {client->fd(), POLLIN, 0};
      poll(&fd, 1, 100);
    }
    return client;
  };
  const auto first = join(0);
  const auto second = join(1);
  // Says that it is host 0.
  second->open_output(0);
  second->output(0, 1, "forged\n");
  second->finish_output();
  first->open_output(0);
  first->output(0, 1, "real\n");
  first->finish_output();
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!first->output_done() && std::chrono::steady_clock::now() < until) {
    pollfd fds[2] = {{first->fd(), POLLIN, 0}, {second->fd(), POLLIN, 0}};
    poll(fds, 2, 100);
    first->take();
    second->take();
  }
  CHECK(first->output_done());
  CHECK_FALSE(second->output_done());  // refused
  while (welcome.output().empty() && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();  // it has arrived; the controller's loop takes it in its next round
  CHECK(welcome.output() == "real\n");
}

TEST_CASE("connections that say nothing are bounded, and a controller survives them", "[control]") {
  Door door = open_door();
  std::string address;
  int port = 0;
  REQUIRE(split_port(door.tickets[0].addresses.front(), &address, &port));
  const size_t before = resident_bytes(), descriptors = open_descriptors();
  std::vector<rueda::UniqueFd> silent;
  for (int i = 0; i < 400; ++i) {
    auto connection = connect_to(address, port, 200);
    if (!connection.ok()) break;  // the kernel's queue is full: they wait outside
    silent.push_back(std::move(connection).value());
  }
  CHECK(silent.size() >= kMaxStrangers);
  // Both ends are in this process. The rest stays in the kernel, also after a while.
  for (int look = 0; look < 50; ++look) {
    CHECK(open_descriptors() <= descriptors + silent.size() + kMaxStrangers + 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // Garbage instead of a greeting.
  for (rueda::UniqueFd& fd : silent)
    CHECK(send(fd.get(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL | MSG_DONTWAIT) != 0);
  CHECK(resident_bytes() < before + (16 << 20));
  silent.clear();
  CHECK(door.server->take().empty());
}

TEST_CASE("a connection that does not greet is closed after five seconds", "[control]") {
  Door door = open_door();
  std::string address;
  int port = 0;
  REQUIRE(split_port(door.tickets[0].addresses.front(), &address, &port));
  auto silent = connect_to(address, port, 2000);
  REQUIRE(silent.ok());
  pollfd fd = {silent.value().get(), POLLIN, 0};
  REQUIRE(poll(&fd, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 1);
  char byte = 0;
  CHECK(recv(silent.value().get(), &byte, 1, 0) <= 0);
}

TEST_CASE("an agent that sends more than a message may hold is cut off alone", "[control]") {
  Door door = open_door();
  const Welcome welcome(door.server.get());
  const auto join = [&](int host) {
    auto client =
        ControlConnection::connect(door.tickets[static_cast<size_t>(host)], std::chrono::seconds(3))
            .value();
    control::AgentMessage message;
    message.mutable_register_()->set_host_index(host);
    message.mutable_register_()->set_version("1");
    client->send(std::move(message));
    return client;
  };
  const auto sound = join(0);
  const auto loud = join(1);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  control::AgentMessage message;
  message.mutable_say()->set_text(std::string(kMaxControlBytes, 'x'));
  loud->send(std::move(message));
  while (!loud->gone() && std::chrono::steady_clock::now() < until) {
    pollfd fd = {loud->fd(), POLLIN, 0};
    poll(&fd, 1, 100);
    loud->take();
  }
  CHECK(loud->gone());
  CHECK_FALSE(sound->gone());
}

TEST_CASE("clocks of another year are told with both times, before TLS would only fail",
          "[control]") {
  const auto made = make_certificates("0123456789abcdef", 1, false).value();
  constexpr time_t kYear = 365 * 24 * 60 * 60;
  const time_t now = time(nullptr);
  CHECK(why_not_now(made.authority, now) == "");
  CHECK(why_not_now(made.authority, now - kYear / 500) == "");  // within the day
  const auto year_of = [](time_t at) {
    tm parts = {};
    gmtime_r(&at, &parts);
    return std::to_string(1900 + parts.tm_year);
  };
  for (const time_t other : {now - 6 * kYear, now + 2 * kYear}) {
    const std::string why = why_not_now(made.authority, other);
    CHECK_THAT(why, Catch::StartsWith("the clocks of the hosts differ: it is " + year_of(other)) &&
                        Catch::Contains(", and was " + year_of(now)));
  }
  CHECK(why_not_now("no certificate", now) == "");
}
