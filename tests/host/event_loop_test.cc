#include "collectives/host/event_loop.h"

#include <poll.h>

#include <catch2/catch.hpp>

#include <thread>

#include "collectives/host/event_fd.h"

namespace rueda::host {
namespace {

using namespace std::chrono_literals;

struct Counting : host::FdHandler {
  void on_ready(bool readable, bool) override { seen += readable ? 1 : 0; }
  int seen = 0;
};

TEST_CASE("one thread may wait while another one sleeps, and both find what is ready",
          "[event_loop]") {
  auto loop = host::EventLoop::create();
  REQUIRE(loop.ok());
  const UniqueFd event = host::make_event_fd().value();
  Counting counting;
  REQUIRE(loop->add(event.get(), &counting).ok());
  std::thread sleeper([&] { loop->sleep(20s); });
  host::ring_event_fd(event.get());
  for (int round = 0; round < 100; ++round) CHECK(loop->wait(20s));
  CHECK(counting.seen == 100);
  sleeper.join();
  CHECK(loop->dispatch());
  CHECK(counting.seen == 101);
  CHECK_FALSE(loop->dispatch());
  loop->remove(event.get());
}

TEST_CASE("an eventfd counts its rings until it is cleared, and never blocks", "[event_fd]") {
  const UniqueFd event = make_event_fd().value();
  pollfd readable = {event.get(), POLLIN, 0};
  CHECK(poll(&readable, 1, 0) == 0);
  CHECK(clear_event_fd(event.get()) == 0);
  ring_event_fd(event.get());
  ring_event_fd(event.get());
  CHECK(poll(&readable, 1, 0) == 1);
  CHECK(clear_event_fd(event.get()) == 2);
  CHECK(poll(&readable, 1, 0) == 0);
  ring_event_fd(-1);  // closed: nobody waits
}

}  // namespace
}  // namespace rueda::host
