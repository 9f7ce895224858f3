// Persistent requests: what each start promises, on every transport.
#include <catch2/catch.hpp>

#include <cstring>

#include "tests/runtime/persistent_calls.h"
#include "tests/support/patterns.h"

namespace rueda::testing {
namespace {

constexpr Kind kKinds[] = {Kind::kShm, Kind::kInproc, Kind::kTcp};

struct Shape1 {
  DType dtype;
  int64_t bytes;
};

// Rounds of one operation, all three kinds; "" or what was wrong.
std::string rounds(engine::Runtime& r, const Shape1& shape, int count) {
  const Rank size = r.membership().size;
  const Rank rank = r.membership().rank;
  const auto width = static_cast<int64_t>(size_of(shape.dtype));
  const int64_t elements = shape.bytes / width;
  const std::string name = std::string(rueda::name_of(shape.dtype)) + std::to_string(shape.bytes);
  const Rank root = size - 1;
  const auto sum =
      make(r, shape_of(CollectiveKind::kAllreduce, "sum" + name, shape.dtype, elements));
  const auto news = make(r, shape_of(CollectiveKind::kBroadcast, "news" + name, shape.dtype,
                                     elements, ReduceOp::kSum, root));
  const auto part =
      make(r, shape_of(CollectiveKind::kReducescatter, "part" + name, shape.dtype, elements));
  // Rank r's input in round n is the ramp of rank r + n: different each time, exact always.
  const auto ramp_of = [&](Rank of) {
    return to_bytes(shape.dtype, ramp_values(of, elements, ReduceOp::kSum));
  };
  const auto wanted_in = [&](int round) {
    std::vector<double> values(static_cast<size_t>(elements), 0.0);
    for (Rank from = 0; from < size; ++from) {
      for (int64_t i = 0; i < elements; ++i)
        values[static_cast<size_t>(i)] += ramp(from + round, i, ReduceOp::kSum);
    }
    return to_bytes(shape.dtype, values);
  };
  constexpr int kDifferent = 3;
  std::vector<Bytes> mine, wanted, root_has;
  for (int i = 0; i < kDifferent; ++i) {
    mine.push_back(ramp_of(rank + i));
    wanted.push_back(wanted_in(i));
    root_has.push_back(ramp_of(root + i));
  }
  const auto first = static_cast<size_t>(split_begin(elements, rank, size) * width);
  const auto bytes = static_cast<size_t>(split_rows(elements, rank, size) * width);
  Bytes out(static_cast<size_t>(shape.bytes));
  Bytes told(out.size());
  Bytes rows(out.size());
  // memcmp is what ThreadSanitizer does not slow down.
  const Bytes untouched(out.size(), std::byte{0x5a});
  for (int round = 0; round < count; ++round) {
    const auto i = static_cast<size_t>(round % kDifferent);
    const Bytes in = mine[i];
    std::fill(out.begin(), out.end(), std::byte{0x5a});
    told = in;
    std::fill(rows.begin(), rows.end(), std::byte{0x5a});
    if (round % 2 == 0) {
      must(sum->run(in.data(), out.data()));
      must(news->run(told.data(), told.data()));
      must(part->run(in.data(), rows.data()));
    } else {
      must(part->start(in.data(), rows.data()));
      must(sum->start(in.data(), out.data()));
      must(news->start(told.data(), told.data()));
      must(end_of(news));
      must(end_of(sum));
      must(end_of(part));
    }
    if (std::memcmp(out.data(), wanted[i].data(), out.size()) != 0)
      return "sum of " + name + " in round " + std::to_string(round);
    if (std::memcmp(told.data(), root_has[i].data(), told.size()) != 0)
      return "news of " + name + " in round " + std::to_string(round);
    if (std::memcmp(rows.data(), wanted[i].data() + first, bytes) != 0)
      return "part of " + name + " in round " + std::to_string(round);
    if (std::memcmp(rows.data() + bytes, untouched.data(), rows.size() - bytes) != 0)
      return "behind the part of " + name + " in round " + std::to_string(round);
    if (std::memcmp(in.data(), mine[i].data(), in.size()) != 0)
      return "input of " + name + " in round " + std::to_string(round);
  }
  return "";
}

TEST_CASE("each start of a persistent request gives its exact result", "[persistent]") {
  const int count = is_short() ? 12 : 30;
  const Shape1 shapes[] = {{DType::kFloat32, 4},
                           {DType::kInt64, 1024},
                           {DType::kFloat16, 1024},
                           {DType::kFloat32, 100 << 10},
                           {DType::kBFloat16, 100 << 10},
                           {DType::kInt8, 1024},
                           {DType::kFloat64, is_short() ? 512 << 10 : 3 << 20}};
  for (const Kind kind : kKinds) {
    for (const Rank size : is_short() ? std::vector<Rank>{1, 3} : std::vector<Rank>{1, 2, 3, 5}) {
      INFO(name_of(kind) << " x " << size);
      RuntimeWorld world(kind, size);
      const auto errors = world.run([&](Rank, engine::Runtime& r) -> std::string {
        for (const Shape1& shape : shapes) {
          const bool large = shape.bytes >= 512 << 10;
          const std::string error = rounds(r, shape, large ? (is_short() ? 3 : 6) : count);
          if (error != "") return error;
        }
        return "";
      });
      for (const auto& error : errors) REQUIRE(error == "");
    }
  }
}

TEST_CASE("scales and averages are those that it was made with", "[persistent]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto results = world.run([](Rank rank, engine::Runtime& r) {
    engine::Operation op =
        shape_of(CollectiveKind::kAllreduce, "x", DType::kFloat32, 3, ReduceOp::kAverage);
    op.prescale = 4;
    op.postscale = 0.5;
    const RequestPtr request = make(r, op);
    Floats all;
    for (int round = 0; round < 12; ++round) {
      Floats data(3, static_cast<float>(rank + round));
      must(request->run(in_of(data), out_of(&data)));
      all.push_back(data[2]);
    }
    return all;
  });
  for (const Floats& all : results) {
    for (size_t round = 0; round < all.size(); ++round)
      CHECK(all[round] == 1.0f + 2 * static_cast<float>(round));
  }
}

TEST_CASE("what is under way cannot be started again, nor its name be used", "[persistent]") {
  for (const Kind kind : kKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 2);
    const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
      Sum sum(r, "x", 100);
      Sum gate(r, "gate", 1);
      Sum same(r, "x", 100);  // a second handle of the same name
      for (int round = 0; round < 8; ++round) {
        // Rank 1 starts only after rank 0 has seen that it cannot start twice.
        if (rank == 0) {
          sum.start(1);
          Floats other(100);
          const Status again = sum.request->start(in_of(other), out_of(&other));
          if (again.code() != Code::kAlreadyExists || !has(again.message(), "allreduce 'x'"))
            return "started twice: " + again.to_string();
          if (same.request->run(in_of(other), out_of(&other)).code() != Code::kAlreadyExists)
            return "another handle started";
          if (r.start({sum_of("x", &other)}, false).status().code() != Code::kAlreadyExists)
            return "submitted with the name of a start under way";
        }
        must(gate.run(0));
        if (rank == 1) sum.start(2);
        if (!sum.ends_with(3)) return "wrong sum";
        // A single operation in between, and the other handle.
        Floats single(100, 5);
        must(call(r, sum_of("x", &single)));
        if (single != Floats(100, 10)) return "wrong single sum";
        must(same.run(7));
        if (!same.ends_with(14)) return "wrong sum of the second handle";
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a start waits for nobody, and a wait may end before it", "[persistent]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
    Sum sum(r, "x", 10);
    must(sum.request->wait(kGenerous));  // never started: nothing to wait for
    Sum gate(r, "gate", 1);
    for (int round = 0; round < 6; ++round) {
      if (rank == 0) {
        sum.start(1);
        const Status early = sum.request->wait(std::chrono::milliseconds(1));
        if (early.code() != Code::kDeadlineExceeded) return "ended early: " + early.to_string();
      }
      must(gate.run(0));
      if (rank == 1) sum.start(2);
      if (!sum.ends_with(3)) return "wrong sum";
    }
    return "";
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("a handle may be given up while its operation is under way", "[persistent]") {
  for (const Kind kind : kKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const auto errors = world.run([](Rank rank, engine::Runtime& r) -> std::string {
      for (int round = 0; round < 20; ++round) {
        std::vector<Floats> data(5, Floats(50, static_cast<float>(rank)));
        for (size_t i = 0; i < data.size(); ++i) {
          Sum sum(r, "x" + std::to_string(i), 50);
          must(sum.request->start(in_of(data[i]), out_of(&data[i])));
        }
        // All have ended when a second use of each name has.
        for (size_t i = 0; i < data.size(); ++i) {
          Sum sum(r, "x" + std::to_string(i), 50);
          Floats other(50, 1);
          Status status;
          const auto deadline = std::chrono::steady_clock::now() + kGenerous;
          do {
            status = sum.request->start(in_of(other), out_of(&other));
            std::this_thread::yield();
          } while (status.code() == Code::kAlreadyExists &&
                   std::chrono::steady_clock::now() < deadline);
          must(status);
          must(end_of(sum.request));
          if (data[i] != Floats(50, 3) || other != Floats(50, 3)) return "wrong sum";
        }
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("after the shutdown starts fail and nothing hangs", "[persistent]") {
  for (const Kind kind : kKinds) {
    for (const int rounds : {0, 10}) {
      INFO(name_of(kind) << ", " << rounds << " rounds before");
      RuntimeWorld world(kind, 2);
      const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
        Sum sum(r, "x", 10);
        Sum never(r, "never", 10);
        for (int round = 0; round < rounds; ++round) must(sum.run(1));
        if (rank == 0) never.start(1);  // its peer does not
        r.shutdown();
        const Status ended = end_of(never.request);
        if (rank == 0 && ended.code() != Code::kCancelled) return "never: " + ended.to_string();
        for (int i = 0; i < 2; ++i) {
          const Status ran = sum.run(1);
          if (ran.code() != Code::kCancelled || !has(ran.message(), "allreduce 'x'"))
            return "ran: " + ran.to_string();
          const Status started = sum.request->start(in_of(sum.data), out_of(&sum.data));
          if (started.ok() && end_of(sum.request).code() != Code::kCancelled) return "started";
        }
        if (r.make({shape_of(CollectiveKind::kAllreduce, "y", DType::kFloat32, 1)}).ok())
          return "request";
        return "";
      });
      for (const auto& error : errors) CHECK(error == "");
    }
  }
}

TEST_CASE("one thread shuts down while others start and run", "[persistent]") {
  const int worlds = is_short() ? 5 : 30;
  for (int i = 0; i < worlds; ++i) {
    RuntimeWorld world(i % 3 == 2 ? Kind::kTcp : Kind::kShm, 2);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      std::atomic<int> rounds{0};
      const auto results = on_ranks(3, [&](Rank thread) -> std::string {
        if (thread == 2) {
          while (rounds.load() < 20 + i && rank == i % 2) std::this_thread::yield();
          if (rank == i % 2) r.shutdown();
          return "";
        }
        // Until it ends with an error: of this rank's or its peer's leaving.
        auto made = r.make({shape_of(CollectiveKind::kAllreduce, "x" + std::to_string(thread),
                                     DType::kFloat32, 10)});
        if (!made.ok()) return "";
        const RequestPtr sum = made.value().front();
        Floats data(10);
        while (true) {
          const Status status = sum->run(in_of(data), out_of(&data));
          if (!status.ok()) return status.code() == Code::kCancelled ? "" : status.to_string();
          ++rounds;
        }
      });
      return *std::max_element(results.begin(), results.end());
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("threads of one rank have persistent requests of their own", "[persistent]") {
  for (const Kind kind : kKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 2);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const auto results = on_ranks(4, [&](Rank thread) -> std::string {
        Sum sum(r, "thread" + std::to_string(thread), 100);
        for (int i = 0; i < (is_short() ? 50 : 300); ++i) {
          must(sum.run(static_cast<float>(rank + i)));
          if (!sum.ends_with(sum_of_ranks(2, static_cast<float>(i))))
            return "wrong sum in thread " + std::to_string(thread);
        }
        return "";
      });
      return *std::max_element(results.begin(), results.end());
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("many are started and waited for, by each rank in another order", "[persistent]") {
  constexpr size_t kMembers = 161;
  for (const Kind kind : kKinds) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      std::vector<Sum> sums;
      for (size_t t = 0; t < kMembers; ++t)
        sums.emplace_back(r, "t" + std::to_string(t), 1 + t * 7);
      std::mt19937 random(static_cast<unsigned>(rank) + 3);
      for (int step = 0; step < (is_short() ? 6 : 12); ++step) {
        for (const size_t t : shuffled(kMembers, &random))
          sums[t].start(static_cast<float>(rank + step) + static_cast<float>(t));
        for (const size_t t : shuffled(kMembers, &random)) {
          if (!sums[t].ends_with(sum_of_ranks(3, static_cast<float>(step) + static_cast<float>(t))))
            return "tensor " + std::to_string(t) + " in step " + std::to_string(step);
        }
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

}  // namespace
}  // namespace rueda::testing
