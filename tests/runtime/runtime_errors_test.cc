// Errors that leave the runtime working: wrong arguments, ranks that disagree, tensors that never
// come.
#include <catch2/catch.hpp>

#include <functional>

#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {
namespace {

using K = CollectiveKind;

TEST_CASE("a name in flight is refused on that rank alone", "[runtime]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
    Floats data(4, 1);
    if (rank == 0) {
      // Rank 1 submits only after the barrier, so the first is certainly in flight.
      const RequestPtr first = start(r, sum_of("x", &data));
      Floats other(4, 1);
      const auto second = r.start({sum_of("x", &other)}, false);
      if (second.ok() || second.status().code() != Code::kAlreadyExists) return "not refused";
      if (!has(second.status().message(), "with the same name as another tensor"))
        return second.status().message();
      // All or none: the others of the call are not in flight afterwards.
      const auto several = r.start({sum_of("y", &other), sum_of("x", &other)}, false);
      if (several.ok()) return "not refused";
      must(call(r, operation(CollectiveKind::kBarrier, "go", {}, nullptr)));
      must(end_of(first));
    } else {
      must(call(r, operation(CollectiveKind::kBarrier, "go", {}, nullptr)));
      must(call(r, sum_of("x", &data)));
    }
    if (data != Floats(4, 2)) return "wrong sum";
    return trouble_with_sum(r, "y");
  });
  for (const auto& error : errors) CHECK(error == "");
}

struct Mismatch {
  const char* fragment;
  CollectiveKind kind;
  std::function<void(engine::Operation*)> change;
};

TEST_CASE("whatever ranks disagree about, each gets the same error and the runtime goes on",
          "[runtime]") {
  const std::vector<Mismatch> mismatches = {
      {"Mismatched data types", K::kAllreduce, [](auto* o) { o->dtype = DType::kInt32; }},
      {"Mismatched operations", K::kAllreduce, [](auto* o) { o->kind = K::kBroadcast; }},
      {"Mismatched ALLREDUCE tensor shapes", K::kAllreduce, [](auto* o) { o->shape = {2, 4}; }},
      {"Mismatched ALLGATHER tensor shapes", K::kAllgather, [](auto* o) { o->shape = {2, 4}; }},
      {"Mismatched REDUCESCATTER tensor shapes", K::kReducescatter,
       [](auto* o) { o->shape = {7}; }},
      {"prescale and/or postscale factors", K::kAllreduce, [](auto* o) { o->postscale = 2; }},
      {"Mismatched reduction operation", K::kAllreduce,
       [](auto* o) { o->reduce_op = ReduceOp::kMax; }},
      {"Mismatched BROADCAST root ranks", K::kBroadcast, [](auto* o) { o->root = 1; }},
  };
  for (const Kind kind : kTestedKinds) {
    const Rank size = 3;
    RuntimeWorld world(kind, size);
    for (int round = 0; round < 2; ++round) {  // the second with names that are known
      for (const Mismatch& mismatch : mismatches) {
        INFO(name_of(kind) << " " << mismatch.fragment << " round " << round);
        const auto ends = world.run([&](Rank rank, engine::Runtime& r) {
          Floats data(8, 1);
          engine::Operation op = operation(mismatch.kind, "w.x", data, nullptr);
          if (rank == 1) mismatch.change(&op);
          const Status status = call(r, op);
          return std::pair(status, trouble_with_sum(r, "after"));
        });
        for (const auto& [status, after] : ends) {
          CHECK(status.code() == Code::kFailedPrecondition);
          CHECK(has(status.message(), mismatch.fragment));
          CHECK(has(status.message(), "w.x"));
          CHECK(has(status.message(), "ranks 0, 2 sent"));
          CHECK(has(status.message(), "rank 1 sent"));
          CHECK(status.message() == ends[0].first.message());
          CHECK(after == "");
        }
      }
    }
  }
}

TEST_CASE("a tensor without a dimension is refused on all ranks where rows are needed",
          "[runtime]") {
  for (const Rank size : {1, 2}) {
    RuntimeWorld world(Kind::kShm, size);
    for (const auto kind :
         {CollectiveKind::kAllgather, CollectiveKind::kAlltoall, CollectiveKind::kReducescatter}) {
      const auto ends = world.run([&](Rank, engine::Runtime& r) {
        const Floats data(1, 1);
        engine::Operation op = operation(kind, "x", data, nullptr);
        op.shape = {};
        return call(r, op);
      });
      for (const Status& status : ends) CHECK(has(status.message(), "rank-zero tensor"));
    }
  }
}

TEST_CASE("wrong arguments are refused at once on that rank, and nothing is submitted",
          "[runtime]") {
  RuntimeWorld world(Kind::kShm, 2);
  engine::Runtime& r = world[0];
  Floats data(5, 1);
  const auto refused = [&](engine::Operation op, const std::string& fragment) {
    const auto result = r.start({sum_of("companion", &data), std::move(op)}, false);
    if (result.ok()) return std::string("accepted");
    if (result.status().code() != Code::kInvalidArgument) return result.status().to_string();
    return has(result.status().message(), fragment) ? std::string() : result.status().message();
  };
  const auto changed = [&](K kind, const std::function<void(engine::Operation*)>& change) {
    engine::Operation op = operation(kind, "x", data, kind == K::kRecv ? &data : nullptr);
    change(&op);
    return op;
  };
  CHECK(refused(changed(K::kBroadcast, [](auto* o) { o->root = 2; }), "invalid root rank 2") == "");
  CHECK(refused(changed(K::kBroadcast, [](auto* o) { o->root = -1; }), "invalid root rank") == "");
  CHECK(refused(changed(K::kAlltoall, [](auto*) {}), "not divisible") == "");
  CHECK(refused(changed(K::kAlltoall, [](auto* o) { o->splits = {1, 2, 2}; }), "splits") == "");
  CHECK(refused(changed(K::kAlltoall, [](auto* o) { o->splits = {-1, 2}; }), "negative") == "");
  CHECK(refused(changed(K::kAlltoall, [](auto* o) { o->splits = {5, 1}; }), "sum of splits") == "");
  CHECK(refused(changed(K::kReducescatter, [](auto* o) { o->reduce_op = ReduceOp::kAdasum; }),
                "has no ADASUM") == "");
  CHECK(refused(changed(K::kAllreduce, [](auto* o) { o->reduce_op = ReduceOp::kBitwiseOr; }),
                "bitwise or of float32 tensors is not defined") == "");
  CHECK(refused(changed(K::kAllreduce,
                        [](auto* o) {
                          o->reduce_op = ReduceOp::kBitwiseXor;
                          o->dtype = DType::kInt32;
                          o->postscale = 2;
                        }),
                "cannot be scaled") == "");
  CHECK(refused(changed(K::kAllreduce, [](auto* o) { o->shape = {-1}; }), "negative") == "");
  CHECK(refused(changed(K::kAllreduce, [](auto* o) { o->shape = {int64_t{1} << 62, 8}; }),
                "too many") == "");
  CHECK(refused(changed(K::kAllreduce, [](auto* o) { o->shape.assign(65, 1); }), "dimensions") ==
        "");
  CHECK(refused(changed(K::kAllreduce, [](auto* o) { o->input = nullptr; }), "no input") == "");
  CHECK(refused(changed(K::kRecv, [](auto* o) { o->output = nullptr; }), "no output") == "");
  CHECK(refused(changed(K::kSend, [](auto* o) { o->peer = 2; }), "no rank 2") == "");
  CHECK(refused(changed(K::kAllreduce, [](auto* o) { o->name.assign(600, 'x'); }), "at most") ==
        "");
  CHECK(refused(changed(K::kAllreduce, [](auto* o) { o->name = "caf\xe9"; }), "UTF-8") == "");
  const auto after =
      world.run([](Rank, engine::Runtime& each) { return trouble_with_sum(each, "companion"); });
  for (const auto& error : after) CHECK(error == "");
}

TEST_CASE(
    "a tensor that one rank never submits: the wait ends, then the rank's shutdown ends the work",
    "[runtime]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    for (const Rank absent : {0, 1}) {
      INFO(name_of(kind) << ", absent: rank " << absent);
      RuntimeWorld world(kind, 3);
      Floats data[3] = {Floats(4, 1), Floats(4, 1), Floats(4, 1)};
      std::vector<RequestPtr> works;
      for (Rank rank = 0; rank < 3; ++rank) {
        if (rank != absent) works.push_back(start(world[rank], sum_of("lonely", &data[rank])));
      }
      const std::string missing = "not yet submitted by rank " + std::to_string(absent);
      for (const RequestPtr& work : works) {
        // The ranks are told after about a second; how long it takes on a busy machine is not the
        // point.
        Status status;
        const auto deadline = std::chrono::steady_clock::now() + kGenerous;
        do {
          status = work->wait(std::chrono::milliseconds(200));
          REQUIRE(status.code() == Code::kDeadlineExceeded);
        } while (!has(status.message(), missing) && std::chrono::steady_clock::now() < deadline);
        CHECK(has(status.message(), missing));
        CHECK(has(status.message(), "lonely"));
        CHECK_FALSE(work->done());
      }
      world[absent].shutdown();
      for (const RequestPtr& work : works) {
        const Status status = end_of(work);
        CHECK(status.code() == Code::kCancelled);
        CHECK(has(status.message(), "rank " + std::to_string(absent)));
        CHECK(has(status.message(), "has been shut down"));
      }
    }
  }
}

TEST_CASE("after the stall shutdown time the tensor fails and the runtime goes on", "[runtime]") {
  Config config;
  config.stall_shutdown_seconds = 0.3;
  config.stall_check_seconds = 0.1;
  RuntimeWorld world(Kind::kShm, 2, config);
  Floats data(4, 1);
  const Status status = end_of(start(world[1], sum_of("lonely", &data)));
  CHECK(status.code() == Code::kDeadlineExceeded);
  CHECK(has(status.message(), "lonely"));
  CHECK(has(status.message(), "rank 0"));
  const auto after =
      world.run([](Rank, engine::Runtime& r) { return trouble_with_sum(r, "lonely"); });
  for (const auto& error : after) CHECK(error == "");
}

TEST_CASE(
    "more tensors than one message holds: submitted at once, waiting for one slow rank, and "
    "answered",
    "[runtime]") {
  const Rank slow = GENERATE(0, 2);
  {
    RuntimeWorld world(Kind::kShm, 3);
    const auto submit_many = [&](Rank rank, int count) {
      std::vector<engine::Operation> operations;
      for (int i = 0; i < count; ++i)
        operations.push_back(sum_of("a long name to fill messages " + std::to_string(i), nullptr));
      return must(world[rank].start(std::move(operations), false));
    };
    const int count = is_short() || slow == 2 ? 6000 : 70000;  // several messages; very many
    std::vector<std::vector<RequestPtr>> works(3);
    for (Rank rank = 0; rank < 3; ++rank) {
      if (rank != slow) works[static_cast<size_t>(rank)] = submit_many(rank, count);
    }
    // The stall report of all of them has arrived.
    const auto deadline = std::chrono::steady_clock::now() + kGenerous;
    for (const RequestPtr& work : {works[1].front(), works[1].back()}) {
      Status status;
      do {
        status = work->wait(std::chrono::milliseconds(100));
        REQUIRE(status.code() == Code::kDeadlineExceeded);
      } while (!has(status.message(), "not yet submitted by") &&
               std::chrono::steady_clock::now() < deadline);
      CHECK(has(status.message(), "rank " + std::to_string(slow)));
    }
    works[static_cast<size_t>(slow)] = submit_many(slow, count);
    for (const auto& of_rank : works) {
      for (const RequestPtr& work : of_rank) REQUIRE(end_of(work).ok());
    }
  }
}

TEST_CASE("a group with one disagreement fails whole; afterwards the same names work",
          "[runtime]") {
  RuntimeWorld world(Kind::kShm, 2);
  for (int round = 0; round < 2; ++round) {
    const auto texts = world.run([](Rank rank, engine::Runtime& r) {
      Floats data(8, 1);
      std::vector<engine::Operation> members = {
          operation(CollectiveKind::kAllreduce, "a", data, nullptr),
          operation(CollectiveKind::kAllreduce, "b", data, nullptr),
          operation(CollectiveKind::kAllreduce, "c", data, nullptr)};
      if (rank == 1) members.pop_back();
      std::string text;
      for (const RequestPtr& work : must(r.start(members, true)))
        text += end_of(work).message() + "\n";
      return text + trouble_with_sum(r, "a");
    });
    for (const auto& text : texts) CHECK(has(text, "Mismatched groups"));
    CHECK(has(texts[0], "of 3"));
    // Who disagrees is named by the error itself; the one that has to end with it says which it is.
    CHECK(has(texts[0], "allreduce 'c': Mismatched groups: allreduce '"));
    CHECK_FALSE(has(texts[0], "allreduce 'a': Mismatched groups"));
  }
}

TEST_CASE("a send and a receive of different size or type fail on both sides", "[runtime]") {
  for (const Kind kind : kTestedKinds) {
    for (const bool other_type : {false, true}) {
      RuntimeWorld world(kind, 2);
      const auto ends = world.run([&](Rank rank, engine::Runtime& r) {
        Floats data(4, 1);
        engine::Operation op =
            operation(rank == 0 ? CollectiveKind::kSend : CollectiveKind::kRecv, "", data, &data);
        op.peer = 1 - rank;
        if (rank == 1 && other_type) op.dtype = DType::kInt32;
        if (rank == 1 && !other_type) op.shape = {3};
        const Status status = call(r, op);
        return std::pair(status, trouble_with_sum(r, "after"));
      });
      for (const auto& [status, after] : ends) {
        INFO(name_of(kind) << ": " << status.to_string());
        CHECK(status.code() == Code::kFailedPrecondition);
        CHECK(after == "");
      }
    }
  }
}

}  // namespace
}  // namespace rueda::testing
