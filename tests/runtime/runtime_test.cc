// What the collectives promise through the runtime, on every transport.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <thread>

#include "tests/runtime/persistent_calls.h"
#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {
namespace {

// Inputs whose sums are not exact, so that another order of additions would show.
Floats rough(Rank rank, int tensor, int step) {
  Floats data(static_cast<size_t>(1 + tensor * 37 % 900));
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] =
        0.1f * static_cast<float>(i % 17) + 1.0f / static_cast<float>(3 + rank * 7 + tensor + step);
  }
  return data;
}

// Steps of `count` sums, submitted by each rank in its own random order, in small portions.
std::vector<Floats> train(engine::Runtime& runtime, int count, int steps) {
  const Rank rank = runtime.membership().rank;
  std::mt19937 random(static_cast<unsigned>(rank) * 977 + 5);
  std::vector<Floats> all;
  for (int step = 0; step < steps; ++step) {
    std::vector<Floats> data;
    for (int t = 0; t < count; ++t) data.push_back(rough(rank, t, step));
    std::vector<int> order(static_cast<size_t>(count));
    for (int t = 0; t < count; ++t) order[static_cast<size_t>(t)] = t;
    if (step > 1) std::shuffle(order.begin(), order.end(), random);
    std::vector<RequestPtr> works;
    for (const int t : order) {
      works.push_back(
          start(runtime, sum_of("t" + std::to_string(t), &data[static_cast<size_t>(t)])));
      if (random() % 16 == 0) std::this_thread::yield();
    }
    for (const RequestPtr& work : works) must(end_of(work));
    for (Floats& d : data) all.push_back(std::move(d));
  }
  return all;
}

TEST_CASE("sums have the same bits on all ranks, fused or not, in whatever order ranks submit",
          "[runtime]") {
  const int count = 50;
  const int steps = is_short() ? 4 : 8;
  for (const Kind kind : kTestedKinds) {
    for (const Rank size : world_sizes()) {
      INFO(name_of(kind) << " x " << size);
      std::vector<std::vector<Floats>> fused;
      {
        RuntimeWorld world(kind, size);
        fused = world.run([&](Rank, engine::Runtime& r) { return train(r, count, steps); });
        world.run([](Rank, engine::Runtime& r) {
          return r.shutdown(), true;
        });  // a request may end before it is counted
        for (Rank rank = 0; rank < size; ++rank) {
          CHECK(world[rank].counter("tensors") == count * steps);
          CHECK(world[rank].counter("batches") < count * steps);
          CHECK(world[rank].counter("fused_tensors") > 0);
          CHECK(world[rank].counter("batches") == world[0].counter("batches"));
        }
      }
      for (const auto& results : fused) REQUIRE(results == fused[0]);
      Config config;
      config.fusion_threshold_bytes = 0;
      RuntimeWorld world(kind, size, config);
      const auto single =
          world.run([&](Rank, engine::Runtime& r) { return train(r, count, steps); });
      CHECK(world[0].counter("fused_tensors") == 0);
      for (const auto& results : single) REQUIRE(results == fused[0]);
    }
  }
}

// (batch, tensor, bytes) of everything that a timeline shows as agreed on.
std::set<std::tuple<std::string, std::string, std::string>> agreed_in(const std::string& path) {
  std::set<std::tuple<std::string, std::string, std::string>> found;
  std::ifstream file(path);
  const std::regex tensor(
      R"re("name":"([^"]*)","cat":"negotiated","ph":"X".*"bytes":(\d+),"batch":"([^"]*)")re");
  for (std::string line; std::getline(file, line);) {
    std::smatch match;
    if (std::regex_search(line, match, tensor)) found.insert({match[3], match[1], match[2]});
  }
  return found;
}

TEST_CASE("same batches in the same order on all ranks", "[runtime]") {
  char folder[] = "runtime_test.XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string stem = std::string(folder) + "/";
  for (const Kind kind : {Kind::kShm, Kind::kHybrid}) {
    Config config = very_patient();  // or a slow machine cuts batches otherwise each time
    config.timeline = stem + "{rank}";
    constexpr int kSteps = 10;
    {
      RuntimeWorld world(kind, 3, config);
      world.run([&](Rank, engine::Runtime& r) { return train(r, 20, kSteps).size(); });
    }
    const auto first = agreed_in(stem + "0");
    CHECK(first.size() == 20 * kSteps);
    // Steps that a plan runs are shown too, by the plan's numbers.
    const auto planned = std::count_if(first.begin(), first.end(), [](const auto& tensor) {
      return std::get<0>(tensor)[0] == 'p';
    });
    CHECK(planned > 0);
    for (int rank = 1; rank < 3; ++rank) CHECK((agreed_in(stem + std::to_string(rank)) == first));
  }
  for (int rank = 0; rank < 3; ++rank) unlink((stem + std::to_string(rank)).c_str());
  rmdir(folder);
}

TEST_CASE("a timeline may start and stop at any moment of a busy job", "[runtime]") {
  char folder[] = "runtime_test.XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string stem = std::string(folder) + "/";
  Config config;
  config.timeline_all_ranks = true;
  config.summary = true;
  {
    RuntimeWorld world(Kind::kShm, 2, config);
    const auto ended = world.run([&](Rank, engine::Runtime& r) {
      std::atomic<bool> over{false};
      std::thread switcher([&] {
        for (int i = 0; !over; ++i) {
          r.mark("span", static_cast<timeline::Mark>(i % 3));
          if (!r.start_timeline(stem + (i % 2 == 0 ? "a" : "b"), i % 3 == 0).ok()) return;
          if (i % 5 == 0) r.stop_timeline();
        }
      });
      const size_t done = train(r, 20, 30).size();
      over = true;
      switcher.join();
      const std::string trouble = trouble_with_sum(r, "after");
      const auto summary = r.summary();
      if (!summary || summary->batches == 0 || summary->busy_seconds <= 0)
        throw Failure("no summary");
      return done == 0 ? std::string("nothing done") : trouble;
    });
    for (const std::string& trouble : ended) CHECK(trouble.empty());
  }
  for (const char* name : {"a.rank0", "a.rank1", "b.rank0", "b.rank1"})
    unlink((stem + name).c_str());
  CHECK(rmdir(folder) == 0);
}

TEST_CASE("tensors seen before go by number, and a step costs few control messages", "[runtime]") {
  RuntimeWorld world(Kind::kShm, 3);
  world.run([&](Rank, engine::Runtime& r) { return train(r, 50, 3).size(); });
  std::vector<int64_t> cached;
  std::vector<int64_t> messages;
  for (Rank rank = 0; rank < 3; ++rank) {
    cached.push_back(world[rank].counter("cached_tensors"));
    messages.push_back(world[rank].counter("control_messages"));
  }
  world.run([&](Rank, engine::Runtime& r) { return train(r, 50, 4).size(); });
  for (Rank rank = 0; rank < 3; ++rank) {
    const auto i = static_cast<size_t>(rank);
    CHECK(world[rank].counter("cached_tensors") - cached[i] == 200);
    // At most one per submission and peer (and a want), however unlucky the schedule.
    CHECK(world[rank].counter("control_messages") - messages[i] <= 4 * (50 * 2 + 50 * 2));
  }
  CHECK(world[0].counter("no such counter") == -1);
}

TEST_CASE("every collective gives its result through the runtime", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    for (const Rank size : world_sizes()) {
      INFO(name_of(kind) << " x " << size);
      RuntimeWorld world(kind, size);
      const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
        // Two rounds: new and known names.
        for (int round = 0; round < 2; ++round) {
          const auto own = static_cast<float>(rank);
          // allgather: rank rows each, rank 0 has none
          const Floats rows(static_cast<size_t>(rank), own);
          const RequestPtr gather =
              start(r, operation(CollectiveKind::kAllgather, "g", rows, nullptr));
          // alltoall: rank i sends j + 1 rows to rank j
          Floats out_rows;
          std::vector<int64_t> splits;
          for (Rank to = 0; to < size; ++to) {
            splits.push_back(to + 1);
            out_rows.insert(out_rows.end(), static_cast<size_t>(to + 1),
                            own * 100 + static_cast<float>(to));
          }
          engine::Operation exchange = operation(CollectiveKind::kAlltoall, "a", out_rows, nullptr);
          exchange.splits = splits;
          const RequestPtr all = start(r, exchange);
          // reducescatter: one row more than divides evenly
          Floats ramp(static_cast<size_t>(2 * size + 1));
          for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<float>(i) + own;
          const RequestPtr scatter =
              start(r, operation(CollectiveKind::kReducescatter, "s", ramp, nullptr));
          Floats news(5, own);
          engine::Operation tell = operation(CollectiveKind::kBroadcast, "b", news, &news);
          tell.root = size - 1;
          const RequestPtr broadcast = start(r, tell);
          const RequestPtr barrier = start(r, operation(CollectiveKind::kBarrier, "", {}, nullptr));
          const RequestPtr empty =
              start(r, operation(CollectiveKind::kAllreduce, "e", {}, nullptr));

          Floats wanted;
          for (Rank from = 0; from < size; ++from)
            wanted.insert(wanted.end(), static_cast<size_t>(from), static_cast<float>(from));
          if (result_of(gather) != wanted) return "allgather";
          wanted.clear();
          for (Rank from = 0; from < size; ++from) {
            wanted.insert(wanted.end(), static_cast<size_t>(rank + 1),
                          static_cast<float>(from * 100 + rank));
          }
          if (result_of(all) != wanted) return "alltoall";
          if (all->received_rows() != std::vector<int64_t>(static_cast<size_t>(size), rank + 1))
            return "received rows";
          wanted.clear();
          const int64_t begin = split_begin(2 * size + 1, rank, size);
          for (int64_t i = 0; i < split_rows(2 * size + 1, rank, size); ++i) {
            wanted.push_back(static_cast<float>((begin + i) * size + size * (size - 1) / 2));
          }
          if (result_of(scatter) != wanted) return "reducescatter";
          must(end_of(broadcast));
          if (news != Floats(5, static_cast<float>(size - 1))) return "broadcast";
          must(end_of(barrier));
          if (!result_of(empty).empty()) return "zero elements";
        }
        return "";
      });
      for (const auto& error : errors) REQUIRE(error == "");
    }
  }
}

TEST_CASE("scale factors are applied before and after the reduction", "[runtime]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto results = world.run([](Rank rank, engine::Runtime& r) {
    Floats data(3, static_cast<float>(rank + 1));
    engine::Operation op = sum_of("x", &data);
    op.prescale = 0.5;
    op.postscale = 8;
    must(call(r, op));
    return data;
  });
  for (const auto& data : results) CHECK(data == Floats(3, 12));
}

TEST_CASE("a group is reduced as one, also when ranks name its members in different order",
          "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    RuntimeWorld world(kind, 3);
    const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
      for (int round = 0; round < 3; ++round) {
        std::vector<Floats> data(3, Floats(7, static_cast<float>(rank)));
        std::vector<engine::Operation> operations;
        for (int i = 0; i < 3; ++i)
          operations.push_back(sum_of("g" + std::to_string(i), &data[static_cast<size_t>(i)]));
        if (rank == 1) std::swap(operations[1], operations[2]);  // the first one names the group
        for (const RequestPtr& work : must(r.start(operations, true))) must(end_of(work));
        for (const Floats& d : data) {
          if (d != Floats(7, 3)) return "wrong sum";
        }
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
    CHECK(world[0].counter("batches") == 3);
    CHECK(world[0].counter("fused_tensors") == 9);
  }
}

TEST_CASE("asynchronous works end although nobody waits", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    RuntimeWorld world(kind, 2);
    const auto results = world.run([](Rank, engine::Runtime& r) {
      Floats data(1000, 1);
      const RequestPtr work = start(r, sum_of("x", &data));
      const auto deadline = std::chrono::steady_clock::now() + kGenerous;
      while (!work->done() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::yield();
      return work->done() && work->status().ok() && data == Floats(1000, 2);
    });
    for (const bool good : results) CHECK(good);
  }
}

TEST_CASE("one rank waits for the second tensor before it submits the first", "[runtime]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    RuntimeWorld world(kind, 2);
    const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
      for (int round = 0; round < 6; ++round) {
        Floats a(4, 1);
        Floats b(4, 2);
        if (rank == 0) {
          must(call(r, sum_of("b", &b)));
          must(call(r, sum_of("a", &a)));
        } else {
          const RequestPtr first = start(r, sum_of("a", &a));
          const RequestPtr second = start(r, sum_of("b", &b));
          must(end_of(first));
          must(end_of(second));
        }
        if (a != Floats(4, 2) || b != Floats(4, 4)) return "wrong sum";
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("sends meet receives by peer and tag, large and small, also with itself", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    for (const Rank size : {1, 2, 3}) {
      INFO(name_of(kind) << " x " << size);
      RuntimeWorld world(kind, size);
      const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
        for (const size_t count : {size_t{0}, size_t{1}, size_t{300000}}) {
          const Floats mine(count, static_cast<float>(rank));
          Floats theirs(count, -1);
          engine::Operation send = operation(CollectiveKind::kSend, "", mine, nullptr);
          engine::Operation recv = operation(CollectiveKind::kRecv, "", {}, &theirs);
          recv.shape = {static_cast<int64_t>(count)};
          send.peer = (rank + 1) % size;
          recv.peer = (rank + size - 1) % size;
          send.tag = recv.tag = 9;
          const RequestPtr sent = start(r, send);
          must(call(r, recv));
          must(end_of(sent));
          if (theirs != Floats(count, static_cast<float>(recv.peer))) return "wrong bytes";
        }
        return "";
      });
      for (const auto& error : errors) CHECK(error == "");
    }
  }
}

TEST_CASE("many threads of one rank submit and wait at once", "[runtime]") {
  RuntimeWorld world(Kind::kShm, 2);
  const int threads = 4;
  const auto errors = world.run([&](Rank, engine::Runtime& r) -> std::string {
    const auto results = on_ranks(threads, [&](Rank thread) -> std::string {
      for (int i = 0; i < (is_short() ? 20 : 100); ++i) {
        const std::string trouble = trouble_with_sum(r, "thread" + std::to_string(thread));
        if (trouble != "") return trouble;
      }
      return "";
    });
    return *std::max_element(results.begin(), results.end());
  });
  for (const auto& error : errors) CHECK(error == "");
}

}  // namespace
}  // namespace rueda::testing
