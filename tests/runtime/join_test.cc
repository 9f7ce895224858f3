// join(): ranks that have no more data take part with what changes nothing.
#include <catch2/catch.hpp>

#include <cstring>
#include <limits>
#include <map>

#include "runtime/engine/neutral.h"
#include "tests/runtime/persistent_calls.h"
#include "tests/support/patterns.h"

namespace rueda::testing {
namespace {

using K = CollectiveKind;

engine::Operation join_of(uint32_t set = 0) {
  engine::Operation op;
  op.kind = K::kJoin;
  op.process_set = set;
  return op;
}
int64_t join(engine::Runtime& r, uint32_t set = 0) {
  const RequestPtr work = start(r, join_of(set));
  must(end_of(work));
  return work->result();
}

// What a collective gives while `joined` of the ranks 0 .. size - 1 have.
struct Expected {
  Rank size;
  Rank joined;
  float sum() const {  // of rank + 1
    float total = 0;
    for (Rank rank = 0; rank < size; ++rank)
      if (rank != joined) total += static_cast<float>(rank + 1);
    return total;
  }
};

// "" if all kinds are right on a rank that has not joined.
std::string trouble(engine::Runtime& r, const Expected& e, const std::string& tag) {
  const Rank rank = r.membership().rank;
  const auto mine = static_cast<float>(rank + 1);
  for (const size_t count : {3, 5000, is_short() ? 70000 : 300000}) {
    const std::string name = tag + std::to_string(count);
    for (const ReduceOp op : kElementwiseOps) {
      Floats data(count, mine);
      auto operation = sum_of(name + name_of(op), &data);
      operation.reduce_op = op;
      must(call(r, operation));
      float expected = op == ReduceOp::kMin ? 1e9f : op == ReduceOp::kProduct ? 1 : 0;
      for (Rank other = 0; other < e.size; ++other) {
        const auto theirs = static_cast<float>(other + 1);
        if (other == e.joined) continue;
        if (op == ReduceOp::kMin) expected = std::min(expected, theirs);
        if (op == ReduceOp::kMax) expected = std::max(expected, theirs);
        if (op == ReduceOp::kProduct) expected *= theirs;
        if (op == ReduceOp::kSum || op == ReduceOp::kAverage) expected += theirs;
      }
      if (op == ReduceOp::kAverage) expected *= 1.0f / static_cast<float>(e.size);
      if (data != Floats(count, expected)) return "allreduce " + name + name_of(op);
    }
    const Rank root = e.joined == 0 ? e.size - 1 : 0;
    Floats data(count, mine);
    auto cast = operation(K::kBroadcast, name, data, &data);
    cast.root = root;
    must(call(r, cast));
    if (data != Floats(count, static_cast<float>(root + 1))) return "broadcast";
  }
  Floats gathered;
  for (Rank other = 0; other < e.size; ++other) {
    if (other == e.joined) continue;
    gathered.insert(gathered.end(), static_cast<size_t>(other + 1), static_cast<float>(other + 1));
  }
  const Floats rows(static_cast<size_t>(rank + 1), mine);
  if (result_of(start(r, operation(K::kAllgather, tag, rows, nullptr))) != gathered)
    return "allgather";
  const Floats blocks(static_cast<size_t>(e.size), mine);
  const RequestPtr exchange = start(r, operation(K::kAlltoall, tag, blocks, nullptr));
  Floats exchanged;
  for (Rank other = 0; other < e.size; ++other)
    if (other != e.joined) exchanged.push_back(static_cast<float>(other + 1));
  if (result_of(exchange) != exchanged) return "alltoall";
  const Floats whole(static_cast<size_t>(2 * e.size), mine);
  if (result_of(start(r, operation(K::kReducescatter, tag, whole, nullptr))) != Floats(2, e.sum()))
    return "reducescatter";
  Floats one(4, mine);
  Floats two(70000, mine);
  const auto group = must(r.start({sum_of(tag + "1", &one), sum_of(tag + "2", &two)}, true));
  for (const RequestPtr& work : group) must(end_of(work));
  if (one != Floats(4, e.sum()) || two != Floats(70000, e.sum())) return "group";
  must(call(r, operation(K::kBarrier, "", {}, nullptr)));
  return "";
}

TEST_CASE("every collective works while a rank has joined, again and again", "[join]") {
  const Rank size = 3;
  for (const Kind kind : kTestedKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, size);
    for (Rank joined = 0; joined < size; ++joined) {
      const auto ends = world.run([&](Rank rank, engine::Runtime& r) {
        std::string error;
        for (int round = 0; round < (is_short() ? 1 : 2) && rank != joined && error.empty();
             ++round)
          error = trouble(r, {size, joined}, "x");
        const int64_t last = join(r);
        return std::pair(error, last);
      });
      for (const auto& [error, last] : ends) {
        CHECK(error == "");
        CHECK(last != joined);
        CHECK(last == ends[0].second);
      }
      const auto after =
          world.run([](Rank, engine::Runtime& r) { return trouble_with_sum(r, "after"); });
      for (const auto& error : after) CHECK(error == "");
    }
  }
}

TEST_CASE("integers, halves and bools stay exact while a rank has joined", "[join]") {
  using Results = std::map<std::string, std::vector<std::byte>>;
  // The same for one rank that is joined and one that is not, and for a world of one.
  const auto run = [&](Rank size) {
    RuntimeWorld world(Kind::kShm, size);
    return world.run([&](Rank rank, engine::Runtime& r) {
      Results results;
      for (const DType dtype : kHostReducedDTypes) {
        for (const ReduceOp op : ops_of(dtype)) {
          std::vector<std::byte> data(64 * size_of(dtype));
          engine::fill_neutral(dtype, ReduceOp::kProduct, 1, 64, data.data());  // ones
          if (rank == 0) {
            engine::Operation o;
            o.name = std::string(name_of(dtype)) + " " + name_of(op);
            o.dtype = dtype;
            o.reduce_op = op == ReduceOp::kAverage ? ReduceOp::kSum : op;
            o.shape = {64};
            o.input = data.data();
            o.output = data.data();
            must(call(r, o));
            results[o.name] = data;
          }
        }
      }
      join(r);
      return results;
    })[0];
  };
  const Results joined = run(2);
  const Results alone = run(1);
  CHECK(joined.size() > 60);
  for (const auto& [name, data] : alone) {
    INFO(name);
    CHECK(joined.at(name) == data);
  }
}

TEST_CASE("neutral elements survive their scaling", "[join]") {
  float value = 1;
  const auto neutral = [&](ReduceOp op, double prescale) {
    engine::fill_neutral(DType::kFloat32, op, prescale, 1, reinterpret_cast<std::byte*>(&value));
    return value * static_cast<float>(prescale);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(neutral(ReduceOp::kMin, 2) == infinity);
  CHECK(neutral(ReduceOp::kMin, -2) == infinity);
  CHECK(neutral(ReduceOp::kMax, -2) == -infinity);
  CHECK(neutral(ReduceOp::kMax, 0) == 0);
  CHECK(neutral(ReduceOp::kSum, 3) == 0);
}

TEST_CASE("what a joined rank cannot do is an error on all others, which names it", "[join]") {
  RuntimeWorld world(Kind::kShm, 3);
  const auto ends = world.run([](Rank rank, engine::Runtime& r) {
    std::vector<Status> statuses;
    if (rank != 1) {
      Floats data(4, 1);
      auto cast = operation(K::kBroadcast, "x", data, &data);
      cast.root = 1;
      statuses.push_back(call(r, cast));
      auto product = sum_of("x", &data);
      product.reduce_op = ReduceOp::kProduct;
      product.prescale = 2;
      statuses.push_back(call(r, product));
      must(call(r, sum_of("fine", &data)));
    }
    join(r);
    return statuses;
  });
  for (const Rank rank : {0, 2}) {
    for (const Status& status : ends[static_cast<size_t>(rank)]) {
      CHECK(status.code() == Code::kFailedPrecondition);
      CHECK_THAT(status.message(), Catch::Contains("rank 1 ") && Catch::Contains("has joined"));
    }
    CHECK_THAT(ends[static_cast<size_t>(rank)][0].message(), Catch::Contains("its root, rank 1"));
  }
}

TEST_CASE("uneven steps of persistent requests end cleanly, out of a step plan and back",
          "[join]") {
  const Rank size = 3;
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, size);
    const auto planned = world.run([&](Rank rank, engine::Runtime& r) {
      Sum a(r, "a", 10);
      Sum b(r, "b", 30000);
      for (int epoch = 0; epoch < 4; ++epoch) {
        const int steps = 60 + 7 * ((rank + epoch) % size);
        for (int step = 0; step < steps; ++step) {
          float total = 0;
          for (Rank other = 0; other < size; ++other)
            if (step < 60 + 7 * ((other + epoch) % size)) total += static_cast<float>(other + 1);
          a.start(static_cast<float>(rank + 1));
          b.start(static_cast<float>(rank + 1));
          if (!a.ends_with(total) || !b.ends_with(total)) throw Failure("wrong sum");
        }
        const int64_t last = join(r);
        if (last != (2 + size - epoch % size) % size) throw Failure("wrong last rank");
      }
      return r.counter("planned_batches");
    });
    if (kind == Kind::kShm) CHECK(planned[0] > 0);
  }
}

TEST_CASE("what is under way when a rank joins ends with that rank's own data", "[join]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
    for (int round = 0; round < 20; ++round) {
      std::vector<Floats> data(30, Floats(5, static_cast<float>(rank + 1)));
      std::vector<RequestPtr> works;
      // Unnamed: more than may be under way at once, so the last ones still wait for their number.
      if (rank == 0) {
        for (Floats& each : data) works.push_back(start(r, sum_of("", &each)));
        works.push_back(start(r, join_of()));
        for (const RequestPtr& work : works) must(end_of(work));
      } else {
        for (Floats& each : data) must(call(r, sum_of("", &each)));
        join(r);
      }
      for (const Floats& each : data)
        if (each != Floats(5, 3)) return "wrong sum";
    }
    return "";
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("joins in process sets are each set's own", "[join]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    RuntimeWorld world(kind, 3);
    const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
      const RequestPtr added = must(r.add_process_set({1, 2}));
      must(end_of(added));
      const auto set = static_cast<uint32_t>(added->result());
      if (rank == 0) return trouble_with_sum(r, "everybody");
      RequestPtr joined;
      if (rank == 1) joined = start(r, join_of(set));
      Floats data(4, static_cast<float>(rank));
      if (rank == 2) {
        auto op = sum_of("x", &data);
        op.process_set = set;
        must(call(r, op));
        if (data != Floats(4, 2)) return "wrong sum in the set";
      }
      const std::string trouble = trouble_with_sum(r, "everybody");  // nobody has joined there
      if (rank == 2) joined = start(r, join_of(set));
      must(end_of(joined));
      return joined->result() == 2 ? trouble : "last was " + std::to_string(joined->result());
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a rank that leaves instead of joining ends the others' join with its name", "[join]") {
  for (const Rank leaver : {0, 1}) {
    RuntimeWorld world(Kind::kShm, 3);
    const auto ends = world.run([&](Rank rank, engine::Runtime& r) -> Status {
      if (rank == leaver) {
        r.shutdown();
        return {};
      }
      const auto joined = r.start({join_of()}, false);
      return joined.ok() ? end_of(joined.value().front()) : joined.status();
    });
    for (const Rank rank : {0, 1, 2}) {
      if (rank == leaver) continue;
      CHECK(ends[static_cast<size_t>(rank)].code() == Code::kCancelled);
      CHECK_THAT(ends[static_cast<size_t>(rank)].message(),
                 Catch::Contains("rank " + std::to_string(leaver)));
    }
  }
}

TEST_CASE("a second join on one rank is refused, and a world of one joins itself", "[join]") {
  RuntimeWorld two(Kind::kInproc, 2);
  const auto errors = two.run([](Rank rank, engine::Runtime& r) -> std::string {
    // Rank 1 joins when rank 0 has tried twice.
    Floats token(1, 0);
    auto pass = operation(rank == 0 ? K::kSend : K::kRecv, "", token, &token);
    pass.peer = 1 - rank;
    if (rank == 1) {
      must(call(r, pass));
      join(r);
      return "";
    }
    const RequestPtr first = start(r, join_of());
    const auto second = r.start({join_of()}, false);
    must(call(r, pass));
    must(end_of(first));
    return second.ok() || second.status().code() != Code::kAlreadyExists ? "not refused" : "";
  });
  for (const auto& error : errors) CHECK(error == "");
  RuntimeWorld one(Kind::kInproc, 1);
  CHECK(join(one[0]) == 0);
  CHECK(join(one[0]) == 0);
}

}  // namespace
}  // namespace rueda::testing
