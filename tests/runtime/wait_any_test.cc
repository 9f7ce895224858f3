// Waiting for any of several: each end once, whoever ends first, and none left in the end.
#include <catch2/catch.hpp>

#include <pthread.h>

#include <csignal>
#include <mutex>
#include <set>
#include <thread>

#include "tests/runtime/group_calls.h"

namespace rueda::testing {
namespace {

using engine::Completion;
using K = CollectiveKind;
using Place = std::optional<size_t>;

// What several threads wait for; each end is for one of them.
class Awaited {
 public:
  explicit Awaited(std::vector<RequestPtr> requests) : requests_(std::move(requests)) {}
  Result<Place> wait(std::chrono::nanoseconds timeout = kGenerous) {
    std::vector<Completion*> all;
    for (const RequestPtr& request : requests_) all.push_back(request.get());
    return Completion::wait_any(all, timeout, [this](size_t place) {
      const std::lock_guard<std::mutex> lock(mutex_);
      return told_.insert(place).second;
    });
  }

 private:
  std::vector<RequestPtr> requests_;
  std::mutex mutex_;
  std::set<size_t> told_;
};

engine::Operation message_in(uint32_t group, K kind, Rank peer, uint32_t tag, Floats* data) {
  auto op = call_of(group, kind, *data, data);
  op.peer = peer;
  op.tag = tag;
  if (kind == K::kRecv) op.input = nullptr;
  return op;
}

TEST_CASE("whoever waits for any hears of each end once, in the order of ends", "[wait_any]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const Ranks list = {2, 0, 1};
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const uint32_t group = must(r.open_group("g", list));
      const std::vector<uint32_t> order = {2, 0, 3, 1};
      if (rank == 0) {
        // Receives from anybody in a group, a call of the group and one of all ranks.
        std::vector<Floats> in(4, Floats(3));
        std::vector<RequestPtr> requests = {nullptr};
        for (uint32_t tag = 0; tag < 4; ++tag)
          requests.push_back(start(
              r, message_in(group, K::kRecv, engine::GroupMessages::kAnybody, tag, &in[tag])));
        Floats a(5, 1);
        Floats b(5, 1);
        requests.push_back(start(r, call_of(group, K::kAllreduce, a, &a)));
        requests.push_back(start(r, operation(K::kAllreduce, "b", b, &b)));
        Awaited awaited(requests);
        Floats go(1);
        for (const uint32_t tag : order) {
          must(call(r, message_in(group, K::kSend, 1, 9, &go)));  // the next one, please
          const auto place = must(awaited.wait());
          if (place != Place(tag + 1)) return "another came than was sent";
          if (in[tag] != Floats(3, static_cast<float>(tag))) return "received wrongly";
        }
        const auto none = awaited.wait(std::chrono::milliseconds(20));
        if (none.status().code() != Code::kDeadlineExceeded ||
            !has(none.status().message(), "none has ended after 0.02"))
          return "the deadline: " + none.status().to_string();
        must(call(r, message_in(group, K::kSend, 1, 9, &go)));
        if (must(awaited.wait()) != Place(5)) return "not the group's sum";
        must(call(r, message_in(group, K::kSend, 2, 9, &go)));
        must(call(r, message_in(group, K::kSend, 1, 9, &go)));
        if (must(awaited.wait()) != Place(6)) return "not the sum of all";
        if (a != Floats(5, 6) || b != Floats(5, 6)) return "wrong sums";
        return must(awaited.wait()) == std::nullopt ? "" : "something is left";
      }
      const auto mine = static_cast<float>(rank + 1);
      Floats a(5, mine);
      Floats b(5, mine);
      Floats go(1);
      if (rank == 2) {
        must(call(r, call_of(group, K::kAllreduce, a, &a)));
        must(call(r, message_in(group, K::kRecv, 0, 9, &go)));
        must(call(r, operation(K::kAllreduce, "b", b, &b)));
        return "";
      }
      for (const uint32_t tag : order) {
        must(call(r, message_in(group, K::kRecv, 0, 9, &go)));
        Floats data(3, static_cast<float>(tag));
        must(call(r, message_in(group, K::kSend, 0, tag, &data)));
      }
      must(call(r, message_in(group, K::kRecv, 0, 9, &go)));
      must(call(r, call_of(group, K::kAllreduce, a, &a)));
      must(call(r, message_in(group, K::kRecv, 0, 9, &go)));
      must(call(r, operation(K::kAllreduce, "b", b, &b)));
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("threads that wait for the same requests share their ends", "[wait_any]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
    for (int round = 0; round < 20; ++round) {
      constexpr size_t kCount = 12;
      std::vector<Floats> data(kCount, Floats(4, static_cast<float>(rank + 1)));
      std::vector<RequestPtr> requests;
      for (size_t i = 0; i < kCount; ++i) {
        requests.push_back(
            start(r, operation(K::kAllreduce, "t" + std::to_string(i), data[i], &data[i])));
      }
      Awaited awaited(requests);
      std::atomic<size_t> ends{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
          while (must(awaited.wait())) ++ends;
        });
      }
      for (std::thread& thread : threads) thread.join();
      if (ends != kCount) return std::to_string(ends) + " ends";
      for (const Floats& sum : data)
        if (sum != Floats(4, 3)) return "wrong sum";
    }
    return "";
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("a signal ends the wait for any, and nothing waits in a callback", "[wait_any]") {
  struct sigaction interrupts {};
  interrupts.sa_handler = [](int) {};  // no SA_RESTART
  struct sigaction before {};
  REQUIRE(sigaction(SIGUSR1, &interrupts, &before) == 0);
  RuntimeWorld world(Kind::kShm, 2);
  const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
    Floats a(1, 1);
    Floats b(1, 1);
    if (rank == 0) {
      Awaited awaited({start(r, operation(K::kAllreduce, "a", a, &a)),
                       start(r, operation(K::kAllreduce, "b", b, &b))});
      std::atomic<bool> ended{false};
      std::thread interrupter([&, waiter = pthread_self()] {
        while (!ended) {  // one of them comes while it sleeps
          pthread_kill(waiter, SIGUSR1);
          std::this_thread::yield();
        }
      });
      const Status status = awaited.wait().status();
      ended = true;
      interrupter.join();
      if (status.code() != Code::kAborted) return status.to_string();
      must(trouble_with_sum(r, "go").empty() ? Status() : cancelled("wrong sum"));
      if (!must(awaited.wait()) || !must(awaited.wait())) return "not both";
      // From inside a callback: refused.
      Floats c(1, 1);
      Floats d(1, 1);
      const RequestPtr first = start(r, operation(K::kAllreduce, "c", c, &c));
      const RequestPtr second = start(r, operation(K::kAllreduce, "d", d, &d));
      std::atomic<int> code{-1};
      first->on_end([&] {
        Completion* const all[] = {second.get()};
        code = static_cast<int>(
            Completion::wait_any(all, kGenerous, [](size_t) { return true; }).status().code());
      });
      must(trouble_with_sum(r, "more").empty() ? Status() : cancelled("wrong sum"));
      must(end_of(first));
      must(end_of(second));
      return code == static_cast<int>(Code::kFailedPrecondition) ? "" : "waited in a callback";
    }
    must(trouble_with_sum(r, "go").empty() ? Status() : cancelled("wrong sum"));
    must(call(r, operation(K::kAllreduce, "a", a, &a)));
    must(call(r, operation(K::kAllreduce, "b", b, &b)));
    must(trouble_with_sum(r, "more").empty() ? Status() : cancelled("wrong sum"));
    must(call(r, operation(K::kAllreduce, "c", a, &a)));
    must(call(r, operation(K::kAllreduce, "d", b, &b)));
    return "";
  });
  sigaction(SIGUSR1, &before, nullptr);
  for (const auto& error : errors) CHECK(error == "");
}

}  // namespace
}  // namespace rueda::testing
