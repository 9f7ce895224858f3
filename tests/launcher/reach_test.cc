// Which addresses are tried and which are taken, and what hostile peers get.
#include "launcher/hosts/reach.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <proto/control.grpc.pb.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <atomic>
#include <fstream>
#include <thread>

#include "launcher/hosts/control_client.h"
#include "launcher/hosts/control_server.h"
#include "launcher/hosts/head_hosts.h"
#include "launcher/hosts/limits.h"

using namespace rueda::launcher;
using Names = std::vector<std::string>;

namespace {

const std::vector<InterfaceAddress> kInterfaces = {
    {"lo", "127.0.0.1", true, true},      {"docker0", "172.17.0.1", false, true},
    {"eth1", "10.1.0.1", false, false},   {"eth0", "10.0.0.1", false, true},
    {"eth0", "fd00::1", false, true},     {"ib0", "10.9.0.1", false, true},
    {"veth12ab", "10.88.0.1", false, true}};

Names order(const std::string& selection) {
  auto found = order_addresses(kInterfaces, selection);
  return found.ok() ? found.value() : Names{"! " + found.status().message()};
}

}  // namespace

TEST_CASE("real networks come before bridges of containers, loopback is last", "[addresses]") {
  CHECK(order("") == Names{"10.0.0.1", "fd00::1", "10.9.0.1", "172.17.0.1", "10.88.0.1",
                           "127.0.0.1"});
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

TEST_CASE("whoever answers at an address must be who is meant", "[reach]") {
  const auto key = rueda::rendezvous::JobKey::make_random().value();
  const auto listener = ReachListener::start();
  REQUIRE(listener.ok());
  listener.value()->answer_as(1, 3, "job", key);
  const int port = listener.value()->port();
  const auto other_key = rueda::rendezvous::JobKey::make_random().value();
  CHECK(try_to_reach(0, 3, "job", key, {{1, {"127.0.0.1"}, port}}).front().error.empty());
  CHECK_FALSE(try_to_reach(0, 3, "job", key, {{2, {"127.0.0.1"}, port}}).front().error.empty());
  CHECK_FALSE(try_to_reach(0, 3, "job", other_key, {{1, {"127.0.0.1"}, port}}).front().error.empty());
  CHECK_FALSE(try_to_reach(0, 3, "other", key, {{1, {"127.0.0.1"}, port}}).front().error.empty());
}

TEST_CASE("secrets and what belongs to a host stay at home", "[environment]") {
  const Names ours = {"PATH=/bin", "HOME=/root", "SSH_AUTH_SOCK=/x", "MY_API_KEY=1", "GH_TOKEN=2",
                      "RUEDA_LOG_LEVEL=debug", "LANG=C", "DB_PASSWORD=3", "HOROVOD_CYCLE_TIME=1"};
  CHECK(environment_for_hosts(ours, {"GH_TOKEN"}) ==
        Names{"PATH=/bin", "GH_TOKEN=2", "RUEDA_LOG_LEVEL=debug", "LANG=C",
              "HOROVOD_CYCLE_TIME=1"});
}

namespace {

// A driver that waits for two agents, and the ticket to it.
struct Door {
  std::unique_ptr<ControlServer> server;
  Ticket ticket;
};

Door open_door() {
  Door door;
  ControlServer::Setup setup;
  setup.certificates = make_certificates("0123456789abcdef").value();
  setup.token = make_token().value();
  setup.version = "1";
  setup.hosts = {"h0", "h1"};
  setup.addresses = {"127.0.0.1"};
  door.ticket = {"0123456789abcdef",
                 setup.token,
                 {},
                 setup.certificates.authority,
                 setup.certificates.agent.certificate,
                 setup.certificates.agent.private_key};
  door.server = ControlServer::start(setup).value();
  door.ticket.addresses = door.server->addresses();
  return door;
}

constexpr std::chrono::seconds kPatience{60};

// What an agent with this ticket hears: "" when it is taken, else why not.
std::string knock(const Ticket& ticket, int host, const std::string& version = "1") {
  const auto client = ControlClient::connect(ticket, std::chrono::seconds(3));
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

size_t resident_bytes() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

}  // namespace

TEST_CASE("only who has the job's certificate and token becomes an agent", "[control]") {
  Door door = open_door();
  // Says yes to whoever has registered.
  std::atomic<bool> over{false};
  std::thread driver([&] {
    while (!over) {
      pollfd fd = {door.server->fd(), POLLIN, 0};
      poll(&fd, 1, 50);
      for (const AgentEvent& event : door.server->take()) {
        if (event.kind != AgentEvent::Kind::kRegistered) continue;
        control::DriverMessage welcome;
        welcome.mutable_heartbeat();
        door.server->send(event.host, std::move(welcome));
      }
    }
  });
  Ticket other = door.ticket;
  other.token[0] = other.token[0] == 'a' ? 'b' : 'a';
  CHECK(knock(other, 0) == "the token is wrong");
  CHECK(knock(door.ticket, 0, "2") == "rueda 2 is installed there, 1 here; install one version");
  CHECK(knock(door.ticket, 7) == "the job has no place for another host");
  // A certificate of another job, with the right token.
  const auto foreign = make_certificates("0123456789abcdef").value();
  other = door.ticket;
  other.certificate = foreign.agent.certificate;
  other.private_key = foreign.agent.private_key;
  CHECK_FALSE(knock(other, 0).empty());
  // A driver that is not the job's.
  other = door.ticket;
  other.authority = foreign.authority;
  CHECK_THAT(knock(other, 0), Catch::Contains("not as this job's driver"));
  CHECK(knock(door.ticket, 0).empty());
  CHECK(knock(door.ticket, 0) == "host h0 of this job has joined already");  // the ticket replayed
  CHECK(knock(door.ticket, 1).empty());
  over = true;
  driver.join();
  door.server->stop_listening();
  CHECK_THAT(knock(door.ticket, 1), Catch::Contains("Connection refused"));
}

TEST_CASE("connections that say nothing are bounded, and a driver survives them", "[control]") {
  Door door = open_door();
  std::string address;
  int port = 0;
  REQUIRE(split_port(door.ticket.addresses.front(), &address, &port));
  const size_t before = resident_bytes();
  std::vector<rueda::UniqueFd> silent;
  for (int i = 0; i < 400; ++i) {
    auto connection = connect_to(address, port, 200);
    if (!connection.ok()) break;  // the kernel's queue is full: they wait outside
    silent.push_back(std::move(connection).value());
  }
  CHECK(silent.size() >= kMaxStrangers);
  // Garbage instead of a greeting.
  for (rueda::UniqueFd& fd : silent)
    CHECK(send(fd.get(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL | MSG_DONTWAIT) != 0);
  CHECK(resident_bytes() < before + (16 << 20));
  silent.clear();
  CHECK(door.server->take().empty());
}
