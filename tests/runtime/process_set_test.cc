// Process sets: groups of ranks that run collectives among themselves, added and removed by all.
#include <catch2/catch.hpp>

#include <cstring>
#include <thread>

#include "tests/runtime/persistent_calls.h"

namespace rueda::testing {
namespace {

using K = CollectiveKind;
using Ranks = std::vector<int64_t>;

int64_t add(engine::Runtime& r, Ranks ranks) {
  const RequestPtr work = must(r.add_process_set(std::move(ranks)));
  must(end_of(work));
  return work->result();
}
void remove(engine::Runtime& r, int64_t id) {
  must(end_of(must(r.remove_process_set(static_cast<uint32_t>(id)))));
}
engine::Operation in_set(int64_t id, engine::Operation op) {
  op.process_set = static_cast<uint32_t>(id);
  return op;
}
bool contains(const Ranks& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// By memcmp, which ThreadSanitizer does not slow down.
bool all_are(const Floats& data, float value) {
  return data[0] == value &&
         std::memcmp(data.data(), data.data() + 1, (data.size() - 1) * sizeof(float)) == 0;
}

// "" if every kind of collective is right among these ranks.
std::string trouble_in_set(engine::Runtime& r, int64_t id, const Ranks& ranks,
                           const std::string& tag) {
  const Rank rank = r.membership().rank;
  const auto size = static_cast<Rank>(ranks.size());
  const auto place = static_cast<Rank>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const auto mine = static_cast<float>(rank + 1);
  float total = 0;
  for (const int64_t member : ranks) total += static_cast<float>(member + 1);
  for (const size_t count : {3, 5000, is_short() ? 70000 : 300000}) {
    Floats data(count, mine);
    must(call(r, in_set(id, sum_of(tag + "s" + std::to_string(count), &data))));
    if (!all_are(data, total)) return "allreduce of " + std::to_string(count);
    const auto root = static_cast<Rank>(ranks.back());
    data.assign(count, mine);
    auto cast = operation(K::kBroadcast, tag + "b" + std::to_string(count), data, &data);
    cast.root = root;
    must(call(r, in_set(id, cast)));
    if (!all_are(data, static_cast<float>(root + 1))) return "broadcast";
  }
  const Floats rows(static_cast<size_t>(place + 1), mine);
  Floats gathered;
  for (size_t i = 0; i < ranks.size(); ++i)
    gathered.insert(gathered.end(), i + 1, static_cast<float>(ranks[i] + 1));
  if (result_of(start(r, in_set(id, operation(K::kAllgather, tag + "g", rows, nullptr)))) !=
      gathered)
    return "allgather";
  const Floats whole(2 * ranks.size(), mine);
  if (result_of(start(r, in_set(id, operation(K::kReducescatter, tag + "r", whole, nullptr)))) !=
      Floats(2, total))
    return "reducescatter";
  const Floats blocks(ranks.size(), mine);
  Floats exchanged;
  for (const int64_t member : ranks) exchanged.push_back(static_cast<float>(member + 1));
  if (result_of(start(r, in_set(id, operation(K::kAlltoall, tag + "a", blocks, nullptr)))) !=
      exchanged)
    return "alltoall";
  Floats one(4, mine);
  Floats two(4, 2 * mine);
  const auto works = must(
      r.start({in_set(id, sum_of(tag + "m1", &one)), in_set(id, sum_of(tag + "m2", &two))}, true));
  for (const RequestPtr& work : works) must(end_of(work));
  if (one != Floats(4, total) || two != Floats(4, 2 * total)) return "group";
  auto average = sum_of(tag + "average", &one);
  average.reduce_op = ReduceOp::kAverage;
  must(call(r, in_set(id, average)));
  if (one != Floats(4, total * static_cast<float>(size) / static_cast<float>(size)))
    return "average";
  must(call(r, in_set(id, operation(K::kBarrier, "", {}, nullptr))));
  return "";
}

TEST_CASE("every collective works in every process set, on every transport", "[process_set]") {
  const Rank size = 4;
  const std::vector<Ranks> sets = {{0, 2}, {1, 3}, {1, 2, 3}, {3}, {0, 1}};
  for (const Kind kind : kTestedKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, size);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      std::vector<int64_t> ids;
      for (const Ranks& ranks : sets) ids.push_back(add(r, ranks));
      if (ids != std::vector<int64_t>{1, 2, 3, 4, 5}) return "ids";
      for (int round = 0; round < 2; ++round) {  // the same names in all sets, and again
        for (size_t i = 0; i < sets.size(); ++i) {
          if (!contains(sets[i], rank)) continue;
          const std::string trouble = trouble_in_set(r, ids[i], sets[i], "");
          if (!trouble.empty()) return "set " + std::to_string(ids[i]) + ": " + trouble;
        }
      }
      return trouble_with_sum(r, "after");
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("overlapping sets run at once from several threads, in any order", "[process_set]") {
  const Rank size = 3;
  const std::vector<Ranks> sets = {{0, 1}, {1, 2}, {0, 2}};
  for (const Kind kind : kTestedKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, size);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      std::vector<int64_t> ids;
      for (const Ranks& ranks : sets) ids.push_back(add(r, ranks));
      std::vector<std::string> troubles(sets.size());
      std::vector<std::thread> threads;
      for (size_t i = 0; i < sets.size(); ++i) {
        if (!contains(sets[i], rank)) continue;
        threads.emplace_back([&, i] {
          try {
            for (int round = 0; round < (is_short() ? 3 : 10) && troubles[i].empty(); ++round)
              troubles[i] = trouble_in_set(r, ids[i], sets[i], "");
          } catch (const std::exception& e) {
            troubles[i] = e.what();
          }
        });
      }
      std::string trouble = trouble_with_sum(r, "meanwhile");
      for (auto& thread : threads) thread.join();
      for (const std::string& each : troubles) trouble += each;
      return trouble;
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a set that waits holds nothing that another needs", "[process_set]") {
  RuntimeWorld world(Kind::kShm, 3);
  const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
    const int64_t left = add(r, {0, 1});
    const int64_t right = add(r, {1, 2});
    Floats big(400000, 1);
    RequestPtr waiting;
    if (rank == 0) waiting = start(r, in_set(left, sum_of("big", &big)));  // rank 1 comes last
    Floats other(400000, 1);
    if (rank > 0) must(call(r, in_set(right, sum_of("big", &other))));
    if (rank > 0 && other != Floats(400000, 2)) return "wrong sum";
    must(call(r, operation(K::kBarrier, "right has run", {}, nullptr)));
    if (rank == 0 && waiting->done()) return "ended without rank 1";
    must(call(r, operation(K::kBarrier, "rank 0 has looked", {}, nullptr)));
    if (rank == 1) waiting = start(r, in_set(left, sum_of("big", &big)));
    if (waiting) must(end_of(waiting));
    return rank == 2 || big == Floats(400000, 2) ? "" : "wrong sum";
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("persistent requests of a set follow a step plan of its own", "[process_set]") {
  RuntimeWorld world(Kind::kShm, 3);
  const auto plans = world.run([&](Rank rank, engine::Runtime& r) -> int64_t {
    const int64_t id = add(r, {0, 2});
    if (rank == 1) return 0;
    auto shape = shape_of(K::kAllreduce, "x", DType::kFloat32, 8);
    shape.process_set = static_cast<uint32_t>(id);
    const RequestPtr prepared = make(r, shape);
    Floats data(8);
    const int rounds = 200;
    for (int i = 0; i < rounds; ++i) {
      data.assign(8, static_cast<float>(rank + i));
      must(prepared->run(in_of(data), out_of(&data)));
      if (data != Floats(8, static_cast<float>(2 + 2 * i))) throw Failure("wrong sum");
    }
    return r.counter("planned_batches");
  });
  CHECK(plans[0] > 50);
  CHECK(plans[0] == plans[2]);
}

TEST_CASE("a wrong process set is the same error on every rank, and nothing changes",
          "[process_set]") {
  struct Wrong {
    Ranks ranks;
    const char* fragment;
  };
  const std::vector<Wrong> wrongs = {{{}, "at least one rank"},
                                     {{0, 7}, "cannot have rank 7: the job has ranks 0 to 2"},
                                     {{-1}, "cannot have rank -1"},
                                     {{1, 1}, "rank 1 twice"},
                                     {{2, 0, 1}, "exists already: process set 0"},
                                     {{2, 0}, "exists already: process set 1 (ranks 0, 2)"}};
  RuntimeWorld world(Kind::kShm, 3);
  world.run([](Rank, engine::Runtime& r) { return add(r, {2, 0}); });
  for (const Wrong& wrong : wrongs) {
    for (const Status& status : world.run([&](Rank, engine::Runtime& r) {
           return end_of(must(r.add_process_set(wrong.ranks)));
         })) {
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK_THAT(status.message(), Catch::Contains(wrong.fragment));
    }
  }
  for (const Status& status : world.run([&](Rank rank, engine::Runtime& r) {
         return end_of(must(rank == 1 ? r.add_process_set({0, 1}) : r.add_process_set({1, 2})));
       })) {
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK_THAT(status.message(),
               Catch::Contains("Mismatched process sets: ranks 0, 2 sent to add [1, 2]; rank 1 "
                               "sent to add [0, 1]"));
  }
  for (const Status& status : world.run([&](Rank rank, engine::Runtime& r) {
         return end_of(must(rank == 0 ? r.remove_process_set(1) : r.add_process_set({1, 2})));
       })) {
    CHECK_THAT(status.message(), Catch::Contains("rank 0 sent to remove process set 1"));
  }
  for (const uint32_t id : {0U, 9U}) {
    for (const Status& status : world.run(
             [&](Rank, engine::Runtime& r) { return end_of(must(r.remove_process_set(id))); })) {
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK_THAT(status.message(),
                 Catch::Contains(id == 0 ? "cannot be removed" : "does not exist"));
    }
  }
  const auto after = world.run([](Rank rank, engine::Runtime& r) {
    return rank == 1 ? std::string() : trouble_in_set(r, 1, {0, 2}, "");
  });
  for (const auto& error : after) CHECK(error == "");
}

TEST_CASE("who is no member, and a root that is none, are refused on that rank alone",
          "[process_set]") {
  RuntimeWorld world(Kind::kInproc, 3);
  const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
    const int64_t id = add(r, {0, 2});
    Floats data(4, 1);
    if (rank == 1) {
      const auto refused = r.start({in_set(id, sum_of("x", &data))}, false);
      if (refused.ok() || refused.status().code() != Code::kInvalidArgument) return "not refused";
      if (!has(refused.status().message(),
               "rank 1 is not a member of the provided process set: process set 1 (ranks 0, 2)"))
        return refused.status().message();
    } else {
      auto cast = operation(K::kBroadcast, "x", data, &data);
      cast.root = 1;
      const auto refused = r.start({in_set(id, cast)}, false);
      if (refused.ok() || !has(refused.status().message(), "invalid root rank 1"))
        return "root not refused";
    }
    const auto unknown = r.start({in_set(5, sum_of("x", &data))}, false);
    if (unknown.ok() || !has(unknown.status().message(), "does not exist")) return "unknown";
    return trouble_with_sum(r, "after");
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("members that disagree get an error that names their ranks in the job", "[process_set]") {
  RuntimeWorld world(Kind::kShm, 4);
  const auto ends = world.run([](Rank rank, engine::Runtime& r) -> Status {
    const int64_t id = add(r, {1, 3});
    if (rank % 2 == 0) return {};
    Floats data(rank == 1 ? 4 : 5, 1);
    const Status status = call(r, in_set(id, sum_of("x", &data)));
    Floats good(4, 1);
    must(call(r, in_set(id, sum_of("x", &good))));
    return status;
  });
  for (const Rank rank : {1, 3}) {
    CHECK_THAT(ends[static_cast<size_t>(rank)].message(),
               Catch::Contains("process set 1") &&
                   Catch::Contains("rank 1 sent float32[4]; rank 3 sent float32[5]"));
  }
}

TEST_CASE("a removed set ends what is pending in it, and its id and channels come back",
          "[process_set]") {
  for (const Kind kind : kTestedKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
      const int64_t first = add(r, {0, 1});
      const int64_t second = add(r, {1, 2});
      for (int round = 0; round < (is_short() ? 2 : 12); ++round) {
        const Ranks ranks = round % 2 == 0 ? Ranks{0, 1} : Ranks{0, 2};
        Floats never(4, 1);
        RequestPtr pending;
        if (rank == ranks[0]) pending = start(r, in_set(first, sum_of("never", &never)));
        remove(r, first);
        if (pending) {
          const Status status = end_of(pending);
          if (status.ok() || !has(status.message(), "remove"))
            return "pending: " + status.to_string();
        }
        if (r.start({in_set(first, sum_of("x", &never))}, false).ok()) return "still there";
        const Ranks next = round % 2 == 0 ? Ranks{0, 2} : Ranks{0, 1};
        if (add(r, next) != first) return "another id";
        if (contains(next, rank)) {
          const std::string trouble = trouble_in_set(r, first, next, "");
          if (!trouble.empty()) return trouble;
        }
        if (rank > 0) {
          const std::string trouble = trouble_in_set(r, second, {1, 2}, "");
          if (!trouble.empty()) return "second: " + trouble;
        }
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a persistent request of a removed set says so", "[process_set]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto ends = world.run([](Rank rank, engine::Runtime& r) -> Status {
    const int64_t id = add(r, {static_cast<int64_t>(0)});
    RequestPtr prepared;
    Floats data(4, 1);
    if (rank == 0) {
      auto shape = shape_of(K::kAllreduce, "x", DType::kFloat32, 4);
      shape.process_set = static_cast<uint32_t>(id);
      prepared = make(r, shape);
      must(prepared->run(in_of(data), out_of(&data)));
    }
    remove(r, id);
    return prepared ? prepared->run(in_of(data), out_of(&data)) : Status();
  });
  CHECK_THAT(ends[0].message(), Catch::Contains("process set 1 (rank 0) has been removed"));
}

TEST_CASE("more overlapping sets than there are channels work too", "[process_set]") {
  const Rank size = 4;
  std::vector<Ranks> sets;
  for (int64_t mask = 3; mask < 15; ++mask) {
    Ranks ranks;
    for (int64_t rank = 0; rank < size; ++rank) {
      if ((mask >> rank & 1) != 0) ranks.push_back(rank);
    }
    if (ranks.size() > 1) sets.push_back(ranks);
  }
  REQUIRE(sets.size() > host::kProcessSetChannels);
  RuntimeWorld world(Kind::kShm, size);
  const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
    std::vector<int64_t> ids;
    for (const Ranks& ranks : sets) ids.push_back(add(r, ranks));
    for (size_t i = 0; i < sets.size(); ++i) {
      if (!contains(sets[i], rank)) continue;
      const std::string trouble = trouble_in_set(r, ids[i], sets[i], "");
      if (!trouble.empty()) return "set " + std::to_string(ids[i]) + ": " + trouble;
    }
    return "";
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("a rank that leaves ends what its sets wait for, and shutdown takes open sets along",
          "[process_set]") {
  for (const Rank leaver : {0, 1, 2}) {
    for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
      INFO(name_of(kind) << " rank " << leaver << " leaves");
      RuntimeWorld world(kind, 3);
      const auto ends = world.run([&](Rank rank, engine::Runtime& r) -> Status {
        int64_t with_leaver = 0;
        for (const Ranks& ranks : {Ranks{0, 1}, Ranks{1, 2}, Ranks{0, 2}}) {
          const int64_t id = add(r, ranks);
          if (contains(ranks, rank) && contains(ranks, leaver)) with_leaver = id;
        }
        if (rank == leaver) {
          r.shutdown();
          return {};
        }
        Floats data(4, 1);
        const auto submitted = r.start({in_set(with_leaver, sum_of("x", &data))}, false);
        return submitted.ok() ? end_of(submitted.value().front()) : submitted.status();
      });
      for (Rank rank = 0; rank < 3; ++rank) {
        const Status& status = ends[static_cast<size_t>(rank)];
        if (rank == leaver) continue;
        CHECK(status.code() == Code::kCancelled);
        CHECK_THAT(status.message(), Catch::Contains("rank " + std::to_string(leaver)) &&
                                         Catch::Contains("has been shut down"));
      }
    }
  }
}

}  // namespace
}  // namespace rueda::testing
