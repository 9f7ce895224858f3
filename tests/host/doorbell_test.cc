#include "collectives/host/doorbell.h"

#include <poll.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace rueda::host {
namespace {

bool readable(int fd, int milliseconds) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, milliseconds) == 1;
}

TEST_CASE("a ring reaches only an owner who sleeps", "[doorbell]") {
  host::SleepWord word;
  auto bell = host::Doorbell::create(&word);
  REQUIRE(bell.ok());
  bell->ringer().ring();
  CHECK_FALSE(readable(bell->fd(), 0));
  bell->arm();
  bell->ringer().ring();
  bell->ringer().ring();
  CHECK(readable(bell->fd(), 0));
  bell->disarm();
  CHECK_FALSE(readable(bell->fd(), 0));
  bell->ringer().ring();
  CHECK_FALSE(readable(bell->fd(), 0));
}

TEST_CASE("a late ring from an earlier nap does not stay in the bell", "[doorbell]") {
  host::SleepWord word;
  auto bell = host::Doorbell::create(&word);
  REQUIRE(bell.ok());
  bell->arm();
  word.asleep.store(0);  // a poster has taken the word and not written yet
  bell->disarm();
  word.asleep.store(1);
  bell->ringer().ring();  // its write comes now
  bell->arm();
  CHECK(readable(bell->fd(), 0));  // one nap that ends at once
  bell->disarm();
  bell->arm();
  CHECK_FALSE(readable(bell->fd(), 0));  // and no second one
}

TEST_CASE("the sleeper misses none of a million posts", "[doorbell]") {
  // A million, or, where others take the processor between two posts, what half a minute allows.
  const uint64_t few = 50'000;
  std::atomic<uint64_t> posts = std::getenv("RUEDA_TEST_SHORT") != nullptr ? few : 1'000'000;
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  host::SleepWord word;
  auto bell = host::Doorbell::create(&word);
  REQUIRE(bell.ok());
  std::atomic<uint64_t> news{0};
  std::atomic<uint64_t> seen{0};
  std::atomic<bool> stop{false};
  std::thread poster([&, ringer = bell->ringer()] {
    for (uint64_t i = 1; i <= posts && !stop; ++i) {
      if (i > few && i % 1024 == 0 && std::chrono::steady_clock::now() > late) posts = i;
      news.store(i, std::memory_order_release);
      ringer.ring();
      // Every other time waits until it was seen, so that the owner really goes to sleep between
      // posts.
      while (i % 2 == 0 && seen.load(std::memory_order_acquire) < i && !stop)
        std::this_thread::yield();
    }
  });
  bool missed = false;
  uint64_t last = 0;
  while (last < posts && !missed) {
    bell->arm();
    if (news.load(std::memory_order_acquire) == last) missed = !readable(bell->fd(), 60'000);
    bell->disarm();
    last = news.load(std::memory_order_acquire);
    seen.store(last, std::memory_order_release);
  }
  stop = true;
  poster.join();
  CHECK_FALSE(missed);
}

}  // namespace
}  // namespace rueda::host
