#include "collectives/host/event_loop.h"

#include <sys/eventfd.h>

#include <catch2/catch.hpp>

#include <thread>

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
  const UniqueFd event(eventfd(0, EFD_NONBLOCK));
  Counting counting;
  REQUIRE(loop->add(event.get(), &counting).ok());
  std::thread sleeper([&] { loop->sleep(20s); });
  REQUIRE(eventfd_write(event.get(), 1) == 0);
  for (int round = 0; round < 100; ++round) CHECK(loop->wait(20s));
  CHECK(counting.seen == 100);
  sleeper.join();
  CHECK(loop->dispatch());
  CHECK(counting.seen == 101);
  CHECK_FALSE(loop->dispatch());
  loop->remove(event.get());
}

}  // namespace
}  // namespace rueda::host
