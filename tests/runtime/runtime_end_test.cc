// How it ends: in order, in any order, in the middle, by a rank that is lost; and that nothing is
// left behind.
#include <catch2/catch.hpp>

#include <dirent.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {
namespace {

TEST_CASE("shutdown ends what is pending, is idempotent, and refuses what comes after",
          "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    for (const Rank size : {1, 2, 3}) {
      INFO(name_of(kind) << " x " << size);
      RuntimeWorld world(kind, size);
      const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
        Floats data(4, 1);
        const RequestPtr pending =
            size == 1 ? nullptr : start(r, sum_of("only" + std::to_string(rank), &data));
        r.shutdown();
        r.shutdown();
        if (pending != nullptr) {
          if (!pending->done()) return "not ended";
          if (pending->status().code() != Code::kCancelled) return pending->status().to_string();
        }
        const auto late = r.start({sum_of("late", &data)}, false);
        return !late.ok() && has(late.status().message(), "has been shut down") ? "" : "accepted";
      });
      for (const auto& error : errors) CHECK(error == "");
    }
  }
}

TEST_CASE("whoever leaves first, rank 0 too, the others are told and can leave", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    for (const Rank first : {0, 2}) {
      INFO(name_of(kind) << ", rank " << first << " leaves first");
      RuntimeWorld world(kind, 3);
      for (const auto& error :
           world.run([](Rank, engine::Runtime& r) { return trouble_with_sum(r, "x"); }))
        CHECK(error == "");
      world[first].shutdown();
      Floats data(4, 1);
      for (Rank rank = 0; rank < 3; ++rank) {
        if (rank == first) continue;
        const Status status = call(world[rank], sum_of("x", &data));
        CHECK(status.code() == Code::kCancelled);
        CHECK(has(status.message(), "rank " + std::to_string(first)));
        CHECK(has(status.message(), "has been shut down"));
      }
    }
  }
}

TEST_CASE("when rank 0 leaves because somebody else did, that one is named", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    for (const auto& error :
         world.run([](Rank, engine::Runtime& r) { return trouble_with_sum(r, "x"); }))
      CHECK(error == "");
    Floats data(4, 1);
    world[1].shutdown();
    CHECK(has(call(world[0], sum_of("x", &data)).message(), "rank 1"));
    world[0].shutdown();
    const Status status = call(world[2], sum_of("y", &data));
    CHECK(status.code() == Code::kCancelled);
    CHECK(has(status.message(), "rank 1"));
    CHECK(has(status.message(), "has been shut down, and then rank 0"));
  }
}

TEST_CASE("leaving in the middle of collectives ends every work on every rank", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    for (const Rank size : world_sizes()) {
      INFO(name_of(kind) << " x " << size);
      RuntimeWorld world(kind, size);
      const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
        std::vector<Floats> data(30, Floats(5000, 1));
        std::vector<RequestPtr> works;
        for (size_t i = 0; i < data.size(); ++i) {
          // Not all ranks come to the end.
          if (i == data.size() - static_cast<size_t>(rank)) r.shutdown();
          auto submitted = r.start({sum_of("t" + std::to_string(i), &data[i])}, false);
          if (submitted.ok()) works.push_back(submitted->front());
        }
        r.shutdown();
        for (size_t i = 0; i < works.size(); ++i) {
          if (!works[i]->done()) return "not ended";
          const Status& status = works[i]->status();
          if (status.ok() && data[i] != Floats(5000, static_cast<float>(size))) return "wrong sum";
          if (!status.ok() && status.code() != Code::kCancelled) return status.to_string();
        }
        return "";
      });
      for (const auto& error : errors) CHECK(error == "");
    }
  }
}

TEST_CASE("a receive that nobody answers ends with the shutdown of either side", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    for (const Rank leaver : {0, 1}) {
      RuntimeWorld world(kind, 2);
      Floats data(100000, -1);
      engine::Operation op = operation(CollectiveKind::kRecv, "", data, &data);
      op.peer = 1;
      const RequestPtr work = start(world[0], op);
      world[leaver].shutdown();
      CHECK(end_of(work).code() == Code::kCancelled);
      CHECK(data == Floats(100000, -1));
    }
  }
}

TEST_CASE("who waits for the second that leaves is told who was the first", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 4);
    const auto receive_from = [&](Rank peer, Floats* data) {
      engine::Operation op = operation(CollectiveKind::kRecv, "", *data, data);
      op.peer = peer;
      return start(world[3], op);
    };
    Floats data[2] = {Floats(4), Floats(4)};
    const RequestPtr first = receive_from(1, &data[0]), second = receive_from(2, &data[1]);
    world[1].shutdown();
    const Status left = end_of(first);
    CHECK(left.code() == Code::kCancelled);
    CHECK(left.facts().rank == 1);
    CHECK_FALSE(has(left.message(), "the first to leave"));
    world[2].shutdown();
    const Status then = end_of(second);
    CHECK(then.facts().rank == 2);
    CHECK(has(then.message(), "(the first to leave was rank 1 "));
    CHECK_FALSE(has(end_of(receive_from(1, &data[0])).message(), "the first to leave"));
    // A collective: the root says who is missing.
    const Status never = end_of(start(world[3], sum_of("x", &data[0])));
    CHECK(never.code() == Code::kCancelled);
    CHECK(never.facts().rank == 1);
    CHECK(has(never.message(), "allreduce 'x' cannot complete: rank 1 "));
    CHECK_FALSE(has(never.message(), "the first to leave"));
  }
}

std::string own_host() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

TEST_CASE("a lost rank is named to everyone who waits and in everything after", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    for (const Rank victim : {0, 1, 2}) {
      INFO(name_of(kind) << ", victim: rank " << victim);
      auto worlds = make_worlds(kind, 3);
      std::vector<std::unique_ptr<engine::Runtime>> runtimes(3);
      std::vector<RequestPtr> works;
      Floats data[3] = {Floats(4, 1), Floats(4, 1), Floats(4, 1)};
      for (Rank rank = 0; rank < 3; ++rank) {
        if (rank == victim) continue;
        auto& runtime = runtimes[static_cast<size_t>(rank)];
        runtime =
            must(engine::Runtime::create({}, std::move(worlds[static_cast<size_t>(rank)]->joined)));
        works.push_back(start(*runtime, sum_of("x", &data[rank])));
      }
      // Blocked waiters are woken.
      std::vector<std::thread> waiters;
      std::vector<Status> ends(works.size());
      for (size_t i = 0; i < works.size(); ++i)
        waiters.emplace_back([&, i] { ends[i] = works[i]->wait(kGenerous); });
      worlds[static_cast<size_t>(victim)].reset();  // without a goodbye
      for (auto& waiter : waiters) waiter.join();
      for (const Status& status : ends) {
        CHECK(status.code() == Code::kUnavailable);
        CHECK(has(status.message(), "rank " + std::to_string(victim)));
        CHECK(status.facts().rank == victim);
      }
      for (auto& runtime : runtimes) {
        if (runtime == nullptr) continue;
        Floats other(4, 1);
        const auto again = runtime->start({sum_of("y", &other)}, false);
        CHECK_FALSE(again.ok());
        CHECK(again.status().code() == Code::kUnavailable);
        CHECK(has(again.status().message(), "rank " + std::to_string(victim)));
        const auto lost = runtime->lost();
        REQUIRE(lost.has_value());
        CHECK(lost->rank == victim);
        CHECK(lost->pid == getpid());
        CHECK(lost->host.str() == own_host());
      }
    }
  }
}

int64_t open_files() {
  int64_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

int64_t mappings_of_arenas() {
  int64_t count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) count += has(line, "memfd:");
  return count;
}

TEST_CASE("two hundred starts and ends leave no descriptor and no mapping behind", "[runtime]") {
  const auto round = [] {
    RuntimeWorld world(Kind::kShm, 2);
    return world.run([](Rank, engine::Runtime& r) { return trouble_with_sum(r, "x"); });
  };
  round();
  const int64_t files = open_files();
  const int64_t maps = mappings_of_arenas();
  for (int i = 0; i < (is_short() ? 20 : 200); ++i) {
    for (const auto& error : round()) REQUIRE(error == "");
  }
  CHECK(open_files() == files);
  CHECK(mappings_of_arenas() == maps);
}

}  // namespace
}  // namespace rueda::testing
