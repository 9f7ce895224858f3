// Ordered groups: opened by their members alone, calls that belong together by their order.
#include <catch2/catch.hpp>

#include <thread>

#include "tests/runtime/group_kinds.h"

namespace rueda::testing {
namespace {

using K = CollectiveKind;

constexpr Kind kKinds[] = {Kind::kShm, Kind::kTcp, Kind::kHybrid, Kind::kPairs, Kind::kInproc};

TEST_CASE("every kind is right in groups of every size and order, on every transport",
          "[ordered_group]") {
  const Rank size = 4;
  const std::vector<Ranks> lists = {{3, 0, 2, 1}, {2, 0}, {1, 3, 0}, {2}};
  for (const Kind kind : kKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, size);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      for (const Ranks& list : lists) {
        if (!contains(list, rank)) continue;
        const uint32_t group = must(r.open_group("all kinds", list));
        const std::string trouble = trouble_in_group(r, group, list);
        if (!trouble.empty()) return "group of " + std::to_string(list.size()) + ": " + trouble;
        must(r.close_group(group));
      }
      return trouble_with_sum(r, "after");
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("overlapping groups in a circle are opened and used in different orders",
          "[ordered_group]") {
  const Rank size = 3;
  const std::vector<Ranks> lists = {{0, 1}, {1, 2}, {2, 0}};
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, size);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      for (int round = 0; round < 20; ++round) {
        std::vector<size_t> mine;
        for (size_t i = 0; i < lists.size(); ++i) {
          const size_t list = (i + static_cast<size_t>(rank)) % lists.size();
          if (contains(lists[list], rank)) mine.push_back(list);
        }
        std::vector<uint32_t> groups;
        std::vector<RequestPtr> requests;
        std::vector<Floats> data(mine.size(), Floats(5, static_cast<float>(rank + 1)));
        for (size_t i = 0; i < mine.size(); ++i) {
          groups.push_back(must(r.open_group("circle", lists[mine[i]])));
          requests.push_back(start(r, call_of(groups[i], K::kAllreduce, data[i], &data[i])));
        }
        // One waits for the first, another for the last.
        if (rank % 2 == 0) std::reverse(requests.begin(), requests.end());
        for (const RequestPtr& request : requests) must(end_of(request));
        for (size_t i = 0; i < mine.size(); ++i) {
          const float total = static_cast<float>(lists[mine[i]][0] + lists[mine[i]][1] + 2);
          if (data[i] != Floats(5, total)) return "wrong sum";
          must(r.close_group(groups[i]));
        }
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("calls of one group belong together by their order, many at once", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const Ranks list = {2, 1, 0};
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const uint32_t group = must(r.open_group("many", list));
      constexpr size_t kCalls = 200;
      std::vector<Floats> data;
      std::vector<RequestPtr> requests;
      data.reserve(kCalls);
      for (size_t i = 0; i < kCalls; ++i) {
        data.emplace_back(i % 3 == 0 ? 5000 : 1 + i % 40, static_cast<float>(rank + 1) + float(i));
        requests.push_back(start(r, call_of(group, K::kAllreduce, data[i], &data[i])));
        // Now and then one that waits, and finds its place behind those.
        if (i % 50 == 49) must(end_of(requests.back()));
      }
      for (size_t i = 0; i < kCalls; ++i) {
        must(end_of(requests[i]));
        if (data[i] != Floats(data[i].size(), 6 + 3 * static_cast<float>(i)))
          return "call " + std::to_string(i);
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a blocking call comes behind what its thread has started before", "[ordered_group]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto errors = world.run([&](Rank, engine::Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("order", {0, 1}));
    // Another thread drives now and then, so that starts find the progress lock taken.
    std::thread beside([&r] {
      const uint32_t other = must(r.open_group("beside", {0, 1}));
      for (int i = 0; i < 3000; ++i) (void)trouble_with_group(r, other, {0, 1});
    });
    for (int i = 0; i < 3000; ++i) {
      Floats one(1, 1);
      Floats two(2, 1);
      const RequestPtr first = start(r, call_of(group, K::kAllreduce, one, &one));
      RequestPtr second;
      must(r.run(call_of(group, K::kAllreduce, two, &two), kGenerous, &second));
      must(end_of(first));
    }
    beside.join();
    return "";
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("the tensors of one call in a group run as one", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 2);
    const Ranks list = {1, 0};
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const uint32_t group = must(r.open_group("coalesced", list));
      const auto mine = static_cast<float>(rank + 1);
      const auto run = [&](std::vector<engine::Operation> ops) {
        const auto requests = must(r.start(std::move(ops), true));
        for (const RequestPtr& request : requests) must(end_of(request));
        return requests;
      };
      for (int round = 0; round < 3; ++round) {
        Floats a(7, mine);
        Floats b(3000, 2 * mine);
        std::vector<double> c(5, mine);
        run({call_of(group, K::kAllreduce, a, &a),
             typed(group, K::kAllreduce, DType::kFloat64, {5}, c, &c),
             call_of(group, K::kAllreduce, b, &b)});
        if (a != Floats(7, 3) || b != Floats(3000, 6) || c != std::vector<double>(5, 3))
          return "allreduce";
        // Rows of two allgathers; reducescatters; alltoalls, one of them uneven.
        const Floats one(static_cast<size_t>(rank + 1), mine);
        const Floats two(2, mine);
        auto requests = run({call_of(group, K::kAllgather, one, nullptr),
                             call_of(group, K::kAllgather, two, nullptr)});
        if (result_of(requests[0]) != Floats{2, 2, 1} ||
            result_of(requests[1]) != Floats{2, 2, 1, 1})
          return "allgather";
        requests = run({call_of(group, K::kReducescatter, two, nullptr),
                        call_of(group, K::kReducescatter, two, nullptr)});
        if (result_of(requests[0]) != Floats{3} || result_of(requests[1]) != Floats{3})
          return "reducescatter";
        auto uneven = call_of(group, K::kAlltoall, two, nullptr);
        uneven.splits = {2, 0};
        requests = run({call_of(group, K::kAlltoall, two, nullptr), uneven});
        const Floats expected = rank == 1 ? Floats{2, 2, 1, 1} : Floats{};
        if (result_of(requests[0]) != Floats{2, 1} || result_of(requests[1]) != expected)
          return "alltoall";
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("reduce, gather and scatter give the root's result to whom it belongs",
          "[ordered_group]") {
  const std::vector<Ranks> lists = {{2}, {1, 0}, {2, 0, 1}};
  for (const Kind kind : kKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      for (const Ranks& list : lists) {
        if (!contains(list, rank)) continue;
        const uint32_t group = must(r.open_group("roots", list));
        const std::string trouble = trouble_with_roots(r, group, list);
        if (!trouble.empty()) return trouble;
        must(r.close_group(group));
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("persistent requests in groups take their number with each start", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 2);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const uint32_t group = must(r.open_group("again", {1, 0}));
      const auto persistent = [&](K k, int64_t count) {
        return make(r, in_group(group, shape_of(k, "", DType::kFloat32, count)));
      };
      const RequestPtr a = persistent(K::kAllreduce, 10);
      const RequestPtr b = persistent(K::kAllreduce, 5000);
      const RequestPtr shares = persistent(K::kReducescatter, 8);
      for (int round = 0; round < 50; ++round) {
        Floats x(10, static_cast<float>(rank + round));
        Floats y(5000, static_cast<float>(rank));
        Floats z(8, 1);
        // The order of starts, not that of their making.
        must(b->start(in_of(y), out_of(&y)));
        must(shares->start(in_of(z), nullptr));
        must(a->run(in_of(x), out_of(&x)));
        must(end_of(b));
        if (x != Floats(10, static_cast<float>(1 + 2 * round)) || y != Floats(5000, 1))
          return "wrong sum";
        if (result_of(shares) != Floats(4, 2)) return "reducescatter";
      }
      if (r.make({in_group(group, shape_of(K::kAllreduce, "", DType::kFloat32, 1)),
                  in_group(group, shape_of(K::kAllreduce, "", DType::kFloat32, 2))},
                 true)
              .ok())
        return "a persistent group";
      must(r.close_group(group));
      Floats x(10, 1);
      must(a->start(in_of(x), out_of(&x)));
      return has(end_of(a).message(), "has been closed on this rank") ? "" : "after the close";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("two threads use two groups of the same ranks", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 2);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      std::string trouble[2];
      std::vector<std::thread> threads;
      for (int which = 0; which < 2; ++which) {
        threads.emplace_back([&, which] {
          const Ranks list = which == 0 ? Ranks{0, 1} : Ranks{1, 0};
          // As many threads as there are ranks open in either order.
          const uint32_t group = must(r.open_group("thread " + std::to_string(which), list));
          for (int i = 0; i < 300 && trouble[which].empty(); ++i)
            trouble[which] = trouble_with_group(r, group, list, i % 7 == 0 ? 4000 : 3);
        });
        if (rank == 1) threads.back().join();
      }
      if (rank == 0) {
        for (std::thread& thread : threads) thread.join();
      }
      return trouble[0] + trouble[1];
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("what is wrong on one rank alone is refused there and does not count",
          "[ordered_group]") {
  RuntimeWorld world(Kind::kShm, 2);
  const Ranks list = {0, 1};
  const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::vector<std::string> {
    const uint32_t group = must(r.open_group("g", list));
    std::vector<std::string> refused;
    const auto try_it = [&](engine::Operation op) {
      const auto started = r.start({std::move(op)});
      refused.push_back(started.status().to_string());
    };
    Floats data(4, 1);
    if (rank == 0) {
      auto named = call_of(group, K::kAllreduce, data, &data);
      named.name = "x";
      try_it(named);
      auto cast = call_of(group, K::kBroadcast, data, &data);
      cast.root = 7;
      try_it(cast);
      auto scatter = call_of(group, K::kReducescatter, data, nullptr);
      scatter.output_splits = {1, 1};
      try_it(scatter);
      auto scalar = call_of(group, K::kAllgather, data, nullptr);
      scalar.shape = {};
      try_it(scalar);
      try_it(call_of(group + 1, K::kAllreduce, data, &data));
      refused.push_back(r.open_group("g", {1}).status().to_string());
      refused.push_back(r.open_group("g", {0, 0}).status().to_string());
      refused.push_back(r.open_group("g", {0, 2}).status().to_string());
      refused.push_back(r.open_group("", {0}).status().to_string());
    }
    refused.push_back(trouble_with_group(r, group, list));
    return refused;
  });
  REQUIRE(texts[1] == std::vector<std::string>{""});
  const std::vector<std::string> expected = {"operations in a group have no names: 'x'",
                                             "invalid root rank 7, group 'g' (ranks 0, 1)",
                                             "output_splits are 2 rows in all, the tensor has 4",
                                             "of a rank-zero tensor",
                                             "there is no group",
                                             "it is no member",
                                             "twice",
                                             "cannot have rank 2",
                                             "the key of a group"};
  REQUIRE(texts[0].size() == expected.size() + 1);
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO(texts[0][i]);
    CHECK(has(texts[0][i], expected[i]));
    CHECK(has(texts[0][i], "invalid argument"));
  }
  CHECK(texts[0].back() == "");
}

TEST_CASE(
    "a disagreement is an error on all members that names ranks and values, and the group "
    "works on",
    "[ordered_group]") {
  struct Sort {
    const char* name;
    std::function<void(Rank, engine::Operation*)> differ;
    std::vector<std::string> says;
  };
  const std::vector<Sort> sorts = {
      {"kind",
       [](Rank rank, engine::Operation* op) {
         if (rank == 1) op->kind = K::kBroadcast;
       },
       {"Mismatched operations", "ranks 2, 0 sent allreduce", "rank 1 sent broadcast"}},
      {"shape",
       [](Rank rank, engine::Operation* op) {
         if (rank == 2) op->shape = {2, 2};
       },
       {"Mismatched ALLREDUCE tensor shapes", "rank 2 sent float32[2,2]",
        "ranks 0, 1 sent float32[4]"}},
      {"dtype",
       [](Rank rank, engine::Operation* op) {
         if (rank == 0) op->dtype = DType::kInt32;
       },
       {"Mismatched data types", "rank 0 sent int32[4]", "ranks 2, 1 sent float32[4]"}},
      {"op",
       [](Rank rank, engine::Operation* op) {
         if (rank == 0) op->reduce_op = ReduceOp::kMax;
       },
       {"Mismatched reduction operation", "rank 0 sent max", "ranks 2, 1 sent sum"}},
      {"root",
       [](Rank rank, engine::Operation* op) {
         op->kind = K::kBroadcast;
         op->root = rank == 0 ? 0 : 1;
       },
       {"Mismatched BROADCAST root ranks", "rank 0 sent root rank 0",
        "ranks 2, 1 sent root rank 1"}},
      {"rows of a reducescatter",
       [](Rank rank, engine::Operation* op) {
         op->kind = K::kReducescatter;
         op->output = nullptr;
         if (rank == 1) op->output_splits = {4, 0, 0};
       },
       {"Mismatched REDUCESCATTER splits", "rank 1 sent splits [4,0,0]",
        "ranks 2, 0 sent no splits"}},
      {"room",
       [](Rank rank, engine::Operation* op) {
         op->kind = K::kAllgather;
         if (rank != 1) op->output = nullptr;
         if (rank == 1) op->output_rows = 5;
       },
       {"Mismatched ALLGATHER output rows", "rank 1 has room for 5 rows, 12 arrive"}},
      {"expected rows",
       [](Rank rank, engine::Operation* op) {
         op->kind = K::kAllgather;
         op->output = nullptr;
         if (rank == 1) op->output_splits = {4, 4, 3};
       },
       {"Mismatched output splits", "rank 1 expects 3 rows from rank 1, which sends 4"}},
      {"expected rows of an alltoall",
       [](Rank rank, engine::Operation* op) {
         op->kind = K::kAlltoall;
         op->output = nullptr;
         op->splits = {2, 1, 1};
         if (rank == 2) op->output_splits = {2, 2, 0};
       },
       {"Mismatched output splits", "rank 2 expects 0 rows from rank 1, which sends 2"}},
  };
  const Ranks list = {2, 0, 1};
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    for (const Sort& sort : sorts) {
      INFO(sort.name);
      const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
        const uint32_t group = must(r.open_group(sort.name, list));
        std::string trouble = trouble_with_group(r, group, list);
        if (!trouble.empty()) return trouble;
        Floats data(4, 7);
        auto op = call_of(group, K::kAllreduce, data, &data);
        sort.differ(rank, &op);
        // Under way at the same time: those before and behind are right.
        const RequestPtr wrong = start(r, op);
        trouble = trouble_with_group(r, group, list, 3000);
        if (!trouble.empty()) return trouble;
        const Status status = end_of(wrong);
        if (status.code() != Code::kFailedPrecondition) return "code: " + status.to_string();
        if (data != Floats(4, 7)) return "written";
        must(r.close_group(group));
        return status.message();
      });
      for (const std::string& text : texts) {
        CHECK(text == texts[0]);
        for (const std::string& part : sort.says) {
          INFO(text << " has " << part);
          CHECK(has(text, part));
        }
      }
    }
  }
}

TEST_CASE("members that have different tensors in one call all hear of it", "[ordered_group]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("g", {0, 1}));
    Floats a(4, 1);
    Floats b(5, 1);
    std::vector<engine::Operation> ops{call_of(group, K::kAllreduce, a, &a),
                                       call_of(group, K::kAllreduce, b, &b)};
    if (rank == 1) ops.pop_back();
    const auto requests = must(r.start(ops, true));
    std::string text;
    for (const RequestPtr& request : requests) text = end_of(request).message();
    const std::string trouble = trouble_with_group(r, group, {0, 1});
    return trouble.empty() ? text : trouble;
  });
  CHECK(texts[0] == texts[1]);
  CHECK(has(texts[0], "rank 0 sent 2 tensors; rank 1 sent 1 tensors"));
  CHECK(has(texts[0], "allreduce 'g#0"));
}

}  // namespace
}  // namespace rueda::testing
