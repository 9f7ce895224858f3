// A thread that runs what it waits for itself looks at its deadline meanwhile.
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// It yields between looks and never leaves the rest to the background thread.
host::WaitPolicy tireless() {
  host::WaitPolicy policy;
  policy.yield = 1h;
  return policy;
}

// The ways to wait for a sum of all ranks for so long: how the wait ended, and the request.
struct Wait {
  Status ended;
  RequestPtr request;
};
using Way = std::function<Wait(engine::Runtime&, Floats*, std::chrono::nanoseconds)>;

Wait start_and_wait(engine::Runtime& r, Floats* data, std::chrono::nanoseconds timeout) {
  const RequestPtr request = start(r, sum_of("started", data));
  return {request->wait(timeout), request};
}

Wait run(engine::Runtime& r, Floats* data, std::chrono::nanoseconds timeout) {
  RequestPtr request;
  const Status ended = r.run(sum_of("run", data), timeout, &request);
  return {ended, request};
}

Wait run_again(engine::Runtime& r, Floats* data, std::chrono::nanoseconds timeout) {
  const RequestPtr request = make(r, sum_of("run again", data));
  auto* const memory = reinterpret_cast<std::byte*>(data->data());
  return {request->run(memory, memory, nullptr, timeout), request};
}

const Way kWays[] = {start_and_wait, run, run_again};

}  // namespace

TEST_CASE("a deadline ends the wait of a thread that looks for news without end", "[waits]") {
  for (const Way& way : kWays) {
    RuntimeWorld world(Kind::kShm, 2, {}, {}, tireless());
    std::atomic<bool> returned{false};
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      Floats data(10, 1);
      if (rank == 1) {
        // It begins when the other has given up, else in the end.
        const auto end = Clock::now() + 20s;
        while (!returned && Clock::now() < end) std::this_thread::yield();
        const bool in_time = returned;
        must(way(r, &data, kGenerous).ended);
        return in_time ? "" : "the other rank did not look at its deadline";
      }
      const Wait wait = way(r, &data, 10ms);
      returned = true;
      if (wait.ended.code() != Code::kDeadlineExceeded) return "ended: " + wait.ended.to_string();
      must(end_of(wait.request));  // it goes on
      return data == Floats(10, 2) ? "" : "wrong sum";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a deadline ends the wait of a thread that has been at work all the time", "[waits]") {
  // Some milliseconds at least, with the fastest memory.
  const size_t count = is_short() ? 4 << 20 : 16 << 20;
  for (const Way& way : kWays) {
    RuntimeWorld world(Kind::kShm, 2, {}, {}, tireless());
    const auto errors = world.run([&](Rank, engine::Runtime& r) -> std::string {
      Floats data(count, 1);
      must(call(r, sum_of("both are here", nullptr)));
      const Wait wait = way(r, &data, 500us);
      if (wait.ended.code() != Code::kDeadlineExceeded) return "ended: " + wait.ended.to_string();
      must(end_of(wait.request));
      return data == Floats(count, 2) ? "" : "wrong sum";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

}  // namespace rueda::testing
