// The thread that asks how GPUs stand: it hears of everything, and is woken for little.
#include "collectives/nccl/watcher.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>

namespace rueda::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// Needs nothing; counts.
class Counted : public Watched {
 public:
  Need look() override {
    ++looks_;
    looks_.notify_all();
    return Need::kNothing;
  }
  int looks() const { return looks_; }
  void await(int looks) {
    for (int now = looks_; now < looks; now = looks_) looks_.wait(now);
  }

 private:
  std::atomic<int> looks_{0};
};

// Whoever waits in it for a look that does not come hangs, and is told by the test's limit.
TEST_CASE("what is given to a GPU is looked at, after a long rest too", "[watcher]") {
  Watcher watcher;
  const auto watched = std::make_shared<Counted>();
  watcher.add(watched);
  for (int i = 1; i <= 2; ++i) {
    watched->await(51 * i);  // in vain all of them: it sleeps now, or is about to
    if (i == 1)
      watcher.expect();
    else
      watcher.stir();
    watched->await(51 * i + 1);
  }
}

TEST_CASE("what is given to a GPU that works wakes no thread", "[watcher]") {
  Watcher watcher;
  const auto watched = std::make_shared<Counted>();
  watcher.add(watched);
  watched->await(1);
  const auto begun = Clock::now();
  const int before = watched->looks();
  while (watched->looks() < before + 5) watcher.expect();
  CHECK(Clock::now() - begun >= std::chrono::milliseconds(4 * 20));
}

}  // namespace
}  // namespace rueda::nccl
