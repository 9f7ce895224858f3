// Steps that are not like the others, while a step plan is in force in shared memory: results stay
// right on all ranks, and the counters tell what became of the plan.
#include <catch2/catch.hpp>

#include <barrier>
#include <set>
#include <thread>

#include "tests/runtime/persistent_calls.h"

namespace rueda::testing {
namespace {

constexpr size_t kTensors = 12;
constexpr int kSettled = 30;  // steps after which a plan is in force
constexpr Rank kSize = 3;

// What the ranks of the test at hand talk through: memory, sockets, both.
Kind medium = Kind::kShm;
Kind any_medium() { return medium = GENERATE(Kind::kShm, Kind::kTcp, Kind::kPairs); }

Config patient() {
  Config config;
  config.plan_patience_seconds = 100;
  config.fusion_hold_seconds = 100;
  return config;
}

// One rank of a training program. Every result is checked as it comes.
class Trainer {
 public:
  explicit Trainer(engine::Runtime* r, unsigned seed = 0)
      : r_(r), random_(seed * 64 + static_cast<unsigned>(r->membership().rank)) {
    for (size_t t = 0; t < kTensors; ++t)
      sums_.emplace_back(*r, "t" + std::to_string(t), 1 + t * 100);
  }
  Rank rank() const { return r_->membership().rank; }
  Rank size() const { return r_->membership().size; }
  std::mt19937& random() { return random_; }

  void start(size_t t) { sums_[t].start(static_cast<float>(rank()) + value(t)); }
  void wait(size_t t) { expect(sums_[t].ends_with(sum_of_ranks(size(), value(t))), t); }
  Status end(size_t t) { return end_of(sums_[t].request); }
  // A whole step, in order.
  void step() {
    for (size_t t = 0; t < kTensors; ++t) start(t);
    for (size_t t = 0; t < kTensors; ++t) wait(t);
    ++number_;
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  // The same in orders of this rank's own, with breaks of random length.
  void restless_step() {
    for (const size_t t : shuffled(kTensors, &random_)) {
      start(t);
      rest();
    }
    for (const size_t t : shuffled(kTensors, &random_)) {
      wait(t);
      rest();
    }
    ++number_;
  }
  void rest() {
    switch (random_() % 8) {
      case 0: std::this_thread::yield(); break;
      case 1:
        for (volatile unsigned i = random_() % 20000; i > 0;) i = i - 1;
        break;
      default: break;
    }
  }
  // An operation beside the network.
  void metric(const std::string& name, size_t count = 1) {
    Floats data(count, static_cast<float>(rank() + number_));
    must(call(*r_, sum_of(name, &data)));
    expect(data == Floats(count, sum_of_ranks(size(), static_cast<float>(number_))), 1000);
  }
  int number() const { return number_; }
  int64_t counter(const char* name) { return r_->counter(name); }
  // Tensor t is another from here on: same name, another size.
  void replace(size_t t, size_t count) { sums_[t] = Sum(*r_, "t" + std::to_string(t), count); }
  uint64_t hash() const { return hash_; }

 private:
  float value(size_t t) const {
    return static_cast<float>((number_ * 7 + static_cast<int>(t)) % 50);
  }
  void expect(bool right, size_t t) {
    if (!right) {
      throw Failure("wrong sum of tensor " + std::to_string(t) + " in step " +
                    std::to_string(number_));
    }
    if (t >= kTensors) return;
    // Independent of the order in which the tensors of a step are waited for.
    uint64_t hash = static_cast<uint64_t>(number_) * kTensors + t;
    for (const float x : sums_[t].data) hash = hash * 1099511628211u + static_cast<uint64_t>(x);
    hash_ += hash;
  }

  engine::Runtime* r_;
  std::mt19937 random_;
  std::vector<Sum> sums_;
  int number_ = 0;
  uint64_t hash_ = 0;
};

struct Deeds {
  int64_t planned = 0;
  int64_t plans = 0;
  int64_t revocations = 0;
};
Deeds deeds_of(Trainer& trainer) {
  return {trainer.counter("planned_batches"), trainer.counter("plans"),
          trainer.counter("revocations")};
}

// Where the ranks of a test meet without rueda.
std::barrier<>* meeting = nullptr;
void meet() { meeting->arrive_and_wait(); }

// Settles, deviates, goes on; what the plans did meanwhile on each rank.
template <typename Function>
std::vector<Deeds> after(Function deviate, int more = 10, Config config = patient()) {
  RuntimeWorld world(medium, kSize, config);
  std::barrier<> point(kSize);
  meeting = &point;
  return world.run([&](Rank, engine::Runtime& r) {
    Trainer trainer(&r);
    trainer.steps(kSettled);
    const Deeds before = deeds_of(trainer);
    meet();
    if (before.plans == 0 || before.planned == 0) throw Failure("no plan in force");
    deviate(trainer);
    trainer.steps(more);
    Deeds deeds = deeds_of(trainer);
    deeds.planned -= before.planned;
    deeds.plans -= before.plans;
    deeds.revocations -= before.revocations;
    return deeds;
  });
}

TEST_CASE("a new tensor beside the plan is reduced, and the plan goes on", "[plan]") {
  INFO(name_of(any_medium()));
  for (const Deeds& deeds : after([](Trainer& t) { t.metric("new"); })) {
    CHECK(deeds.revocations == 0);
    CHECK(deeds.planned >= 10);
  }
}

TEST_CASE("a metric every ten steps does not cost the plan", "[plan]") {
  INFO(name_of(any_medium()));
  const auto all = after([](Trainer& t) {
    for (int i = 0; i < 100; ++i) {
      t.step();
      if (i % 10 == 9) t.metric("loss", 3);
    }
  });
  for (const Deeds& deeds : all) {
    CHECK(deeds.revocations == 0);
    CHECK(deeds.planned >= 110);
  }
}

TEST_CASE("a step in which all ranks leave a tensor out is right", "[plan]") {
  INFO(name_of(any_medium()));
  const auto all = after([](Trainer& t) {
    for (int i = 0; i < 3; ++i) {
      for (size_t k = 0; k < kTensors; ++k) {
        if (k != 5) t.start(k);
      }
      for (size_t k = 0; k < kTensors; ++k) {
        if (k != 5) t.wait(k);
      }
    }
  });
  for (const Deeds& deeds : all) CHECK(deeds.revocations >= 1);
}

TEST_CASE("a rank that leaves a tensor out is named to the others", "[plan]") {
  INFO(name_of(any_medium()));
  Config config = patient();
  config.plan_patience_seconds = 0.2;
  config.stall_check_seconds = 0.1;
  config.stall_shutdown_seconds = 0.5;
  const auto all = after(
      [](Trainer& t) {
        for (size_t k = 0; k < kTensors; ++k) {
          if (k != 5 || t.rank() != 1) t.start(k);
        }
        for (size_t k = 0; k < kTensors; ++k) {
          if (k == 5 && t.rank() == 1) continue;
          if (k != 5) {
            t.wait(k);
            continue;
          }
          const Status status = t.end(k);
          if (status.ok() || !has(status.message(), "allreduce 't5'") ||
              !has(status.message(), "rank 1"))
            throw Failure("t5: " + status.to_string());
        }
        meet();  // or rank 1's next step would bring it
      },
      10, config);
  for (const Deeds& deeds : all) CHECK(deeds.revocations >= 1);
}

TEST_CASE("another shape on all ranks is reduced, and later planned again", "[plan]") {
  INFO(name_of(any_medium()));
  for (const bool back : {true, false}) {
    INFO((back ? "for one step" : "for ever"));
    const auto all = after(
        [&](Trainer& t) {
          t.replace(5, 77);
          t.step();
          if (back) t.replace(5, 501);
        },
        60);
    for (const Deeds& deeds : all) {
      CHECK(deeds.revocations >= 1);
      CHECK(deeds.plans >= 1);
      CHECK(deeds.planned >= 10);
    }
  }
}

TEST_CASE("another shape on one rank alone is an error on all, and no more", "[plan]") {
  INFO(name_of(any_medium()));
  const auto all = after([](Trainer& t) {
    if (t.rank() == 2) t.replace(5, 77);
    for (size_t k = 0; k < kTensors; ++k) t.start(k);
    for (size_t k = 0; k < kTensors; ++k) {
      if (k != 5) {
        t.wait(k);
        continue;
      }
      const Status status = t.end(k);
      if (status.code() != Code::kFailedPrecondition || !has(status.message(), "allreduce 't5'") ||
          !has(status.message(), "rank 2"))
        throw Failure("t5: " + status.to_string());
    }
    if (t.rank() == 2) t.replace(5, 501);
  });
  for (const Deeds& deeds : all) CHECK(deeds.revocations >= 1);
}

TEST_CASE("phases of evaluation come and go between the steps", "[plan]") {
  INFO(name_of(any_medium()));
  const auto all = after([](Trainer& t) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int i = 0; i < 40; ++i) {
        t.metric("accuracy", 2);
        t.metric("loss");
      }
      t.steps(40);
    }
  });
  for (const Deeds& deeds : all) CHECK(deeds.planned >= 40);
}

TEST_CASE("a rank that leaves in the middle of a plan ends what the others wait for", "[plan]") {
  INFO(name_of(any_medium()));
  for (const Rank leaver : {0, 2}) {
    INFO("rank " << leaver << " leaves");
    RuntimeWorld world(medium, kSize, patient());
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      Trainer trainer(&r);
      trainer.steps(kSettled);
      if (r.counter("planned_batches") == 0) return "no plan in force";
      if (rank == leaver) {
        for (size_t t = 0; t < kTensors / 2; ++t) trainer.start(t);
        r.shutdown();
        for (size_t t = 0; t < kTensors; ++t) {
          const Status status = trainer.end(t);
          if (!status.ok() && status.code() != Code::kCancelled) return status.to_string();
        }
        return "";
      }
      for (size_t t = 0; t < kTensors; ++t) trainer.start(t);
      int failed = 0;
      for (size_t t = 0; t < kTensors; ++t) {
        const Status status = trainer.end(t);
        if (status.ok()) continue;
        ++failed;
        if (status.code() != Code::kCancelled ||
            !has(status.message(), "rank " + std::to_string(leaver)))
          return status.to_string();
      }
      return failed >= static_cast<int>(kTensors / 2) ? "" : "ended without the leaver";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("restless runs give the same results", "[plan]") {
  constexpr Kind kKinds[] = {Kind::kShm, Kind::kTcp, Kind::kShm, Kind::kLatePairs};
  const int runs = is_short() ? 8 : 40;  // each place with and without patience
  std::set<uint64_t> hashes;
  int64_t planned = 0;
  for (int run = 0; run < runs; ++run) {
    INFO("seed " << run);
    Config config;
    if (run % 2 == 0) config.plan_patience_seconds = 0.0005;  // plans given up at any moment
    medium = kKinds[run / 2 % 4];
    INFO(name_of(medium));
    RuntimeWorld world(medium, kSize, config);
    const auto results = world.run([&](Rank, engine::Runtime& r) {
      Trainer trainer(&r, static_cast<unsigned>(run));
      for (int i = 0; i < 40; ++i) {
        if (i < 15) {
          trainer.step();
        } else {
          trainer.restless_step();
        }
        if (i % 10 == 9) trainer.metric("loss");
      }
      return std::pair(trainer.hash(), r.counter("planned_batches"));
    });
    for (const auto& [hash, batches] : results) {
      hashes.insert(hash);
      planned += batches;
    }
    REQUIRE(hashes.size() == 1);
  }
  CHECK(planned > 0);
}

}  // namespace
}  // namespace rueda::testing
