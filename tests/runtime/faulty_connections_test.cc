// A network that damages: right results or an error that names a rank, on every rank, and no hang.
#include <catch2/catch.hpp>

#include "tests/runtime/runtime_calls.h"
#include "tests/support/faulty_connection.h"

namespace rueda::testing {
namespace {

// Sums of changing sizes: entries, one message, several pieces. "" until the first error.
std::string sum_until_error(Rank rank, engine::Runtime& r) {
  constexpr int kMost = 2000;  // the damage comes long before
  for (int i = 0; i < kMost; ++i) {
    const size_t count = i % 3 == 0 ? 10 : i % 3 == 1 ? 3000 : 100'000;
    Floats data(count, static_cast<float>(rank + 1));
    const auto works = r.start({sum_of("sum " + std::to_string(count), &data)}, false);
    if (!works.ok()) return works.status().message();  // it came between two sums
    const Status status = end_of(works.value().front());
    if (!status.ok()) return status.message();
    const auto size = r.membership().size;
    if (data != Floats(count, static_cast<float>(size * (size + 1) / 2))) return "wrong sum";
  }
  return "no error";
}

TEST_CASE("a flipped, doubled, lost or cut frame is an error that names a rank, never a number",
          "[faulty]") {
  const uint64_t seed = fault_seed();
  Config config;
  config.dead_seconds = 2;  // beats of 125 ms: the number of the next frame shows what is missing
  const int rounds = is_short() ? 1 : 4;
  for (int round = 0; round < rounds; ++round) {
    for (const Damage damage : {Damage::kFlip, Damage::kDouble, Damage::kLose, Damage::kCut}) {
      for (const Kind kind : {Kind::kTcp, Kind::kPairs}) {
        std::mt19937_64 random(seed +
                               static_cast<uint64_t>(round * 100 + static_cast<int>(damage)));
        ConnectionFaults faults{random(), std::chrono::microseconds(200), damage, random() % 60};
        INFO("RUEDA_TEST_SEED=" << seed << " " << name_of(kind) << ", " << name_of(damage)
                                << " of frame " << faults.frame << " from rank 0 to rank 2");
        RuntimeWorld world(
            kind, 3, config,
            [&](Rank rank, Rank peer, std::unique_ptr<transport::Connection> connection,
                host::EventLoop* loop) -> std::unique_ptr<transport::Connection> {
              if (rank != 2 || peer != 0) return connection;
              return std::make_unique<FaultyConnection>(std::move(connection), loop, faults);
            });
        const auto ends = world.run(sum_until_error);
        for (Rank rank = 0; rank < 3; ++rank) {
          const std::string& text = ends[static_cast<size_t>(rank)];
          INFO("rank " << rank << ": " << text);
          CHECK(has(text, "was lost: "));
          if (damage == Damage::kCut) {
            // It is lost for both sides, and each names the other. A close with bytes unread is a
            // reset over there.
            CHECK((has(text, "rank 0 (") || has(text, "rank 2 (")));
            CHECK((has(text, "connection closed") || has(text, "Connection reset")));
          } else {
            CHECK(has(text, "rank 0 ("));
            CHECK(has(text, "damaged frame"));
          }
        }
      }
    }
  }
}

TEST_CASE("late frames make nobody dead and no sum wrong", "[faulty]") {
  Config config;
  config.dead_seconds = 0.5;  // beats of 30 ms, late by more than one of them
  const ConnectionFaults faults{fault_seed(), std::chrono::microseconds(60'000)};
  INFO("RUEDA_TEST_SEED=" << fault_seed());
  RuntimeWorld world(Kind::kTcp, 3, config,
                     [&](Rank, Rank, std::unique_ptr<transport::Connection> connection,
                         host::EventLoop* loop) -> std::unique_ptr<transport::Connection> {
                       return std::make_unique<FaultyConnection>(std::move(connection), loop,
                                                                 faults);
                     });
  const auto errors = world.run([](Rank, engine::Runtime& r) -> std::string {
    for (int i = 0; i < 8; ++i) {
      const std::string error = trouble_with_sum(r, "x");
      if (!error.empty()) return error;
    }
    return "";
  });
  for (const auto& error : errors) CHECK(error == "");
}

}  // namespace
}  // namespace rueda::testing
