// A lasting connection and a controller that lets it in and says nothing more.
#include "launcher/agent/lasting_connection.h"

#include <poll.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/host/event_fd.h"
#include "launcher/controller/certificates.h"
#include "launcher/controller/control_server.h"

namespace rueda::launcher {
namespace {

// The first one, which has ended.
class Ended : public ControlConnection {
 public:
  const std::string& address() const override { return address_; }
  int fd() const override { return wake_.get(); }
  void put_back(std::vector<control::ControllerMessage>) override {}
  std::vector<control::ControllerMessage> take() override { return {}; }
  bool gone() const override { return true; }
  std::string why_gone() const override { return "it has ended"; }
  void send(control::AgentMessage) override {}
  bool idle() const override { return true; }
  void open_output(int) override {}
  void output(MemberId, int, std::string_view) override {}
  size_t output_waiting() const override { return 0; }
  void finish_output() override {}
  bool output_done() const override { return true; }
  bool close(std::chrono::milliseconds) override { return true; }

 private:
  const std::string address_;
  const UniqueFd wake_ = host::make_event_fd().value();
};

}  // namespace

TEST_CASE("who is let in and hears nothing tries again, and gives up in time", "[hosts]") {
  const auto certificates = make_certificates("job", 1, false).value();
  ControlServer::Setup setup;
  setup.certificates = certificates;
  setup.token = make_token().value();
  setup.version = "1";
  setup.hosts = {"one"};
  setup.addresses = {"127.0.0.1"};
  setup.takes_over = true;
  Ticket ticket;
  ticket.token = setup.token;
  ticket.authority = certificates.authority;
  ticket.certificate = certificates.agents.front().certificate;
  ticket.private_key = certificates.agents.front().private_key;
  const auto server = ControlServer::start(std::move(setup)).value();
  control::AgentMessage registration;
  registration.mutable_register_()->set_version("1");
  control::Assign assign;
  assign.set_host_name("one");
  for (const std::string& address : server->addresses()) assign.add_door_addresses(address);
  const auto lasting =
      LastingConnection::make(std::make_unique<Ended>(),
                              {ticket, registration, assign, std::chrono::seconds(5)})
          .value();
  int registered = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!lasting->gone() && std::chrono::steady_clock::now() < end) {
    CHECK(lasting->take().empty());
    for (const AgentEvent& event : server->take())
      registered += event.kind == AgentEvent::Kind::kRegistered ? 1 : 0;
    pollfd fds[] = {{lasting->fd(), POLLIN, 0}, {server->fd(), POLLIN, 0}};
    poll(fds, 2, 20);
  }
  CHECK(lasting->gone());
  CHECK(lasting->why_gone() ==
        "the job's controller is gone, and no other has come within 5 s (--driver-timeout)");
  CHECK(registered >= 2);
  CHECK(lasting->close(std::chrono::seconds(10)));
  server->stop();
}

}  // namespace rueda::launcher
