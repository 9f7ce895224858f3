// Steps of all kinds along the step plan: allgather and alltoall with rows of their own on each
// rank, reducescatter, broadcast and allreduce, into the caller's memory or the request's.
#include <catch2/catch.hpp>

#include <memory>

#include "tests/runtime/steady_cost.h"

namespace rueda::testing {
namespace {

// Rows that a rank gives to another; an allgather's go to all alike.
int64_t rows_between(Rank from, Rank to) { return (from + 2 * to) % 3; }
int64_t rows_of(Rank from) { return 1 + 2 * from; }

// One step's operations with their memory. What a rank sends is all one value.
class KindsStep {
 public:
  KindsStep(engine::Runtime& r, Rank rank, Rank size) : runtime_(r), rank_(rank), size_(size) {
    add(shape_of(CollectiveKind::kAllreduce, "sum", DType::kFloat32, 40), 40);
    engine::Operation gather =
        shape_of(CollectiveKind::kAllgather, "gather", DType::kFloat32, rows_of(rank));
    for (Rank from = 0; from < size; ++from) {
      gather.output_rows = std::max<int64_t>(gather.output_rows, 0) + rows_of(from);
      gathered_.insert(gathered_.end(), static_cast<size_t>(rows_of(from)), from);
    }
    add(gather, gathered_.size());
    engine::Operation exchange =
        shape_of(CollectiveKind::kAlltoall, "exchange", DType::kFloat32, 0);
    exchange.output_rows = 0;
    for (Rank peer = 0; peer < size; ++peer) {
      exchange.splits.push_back(rows_between(rank, peer));
      exchange.shape[0] += exchange.splits.back();
      exchange.output_rows += rows_between(peer, rank);
      exchanged_.insert(exchanged_.end(), static_cast<size_t>(rows_between(peer, rank)), peer);
    }
    add(exchange, exchanged_.size());
    add(shape_of(CollectiveKind::kReducescatter, "scatter", DType::kFloat32, 4 * size), 4);
    add(shape_of(CollectiveKind::kBroadcast, "from 0", DType::kFloat32, 9), 9);
  }

  void make_all() {
    for (Part& part : parts_) part.request = make(runtime_, part.operation);
  }
  // As persistent requests; or one by one, in any memory.
  bool run_again(float value) {
    fill(value);
    for (Part& part : parts_) must(part.request->start(in_of(part.in), out_of(&part.out)));
    for (Part& part : parts_) must(end_of(part.request));
    return right(value);
  }
  bool run(float value, bool into_memory) {
    fill(value);
    for (Part& part : parts_) {
      engine::Operation operation = part.operation;
      operation.input = in_of(part.in);
      const bool has_own = into_memory || operation.kind == CollectiveKind::kAllreduce ||
                           operation.kind == CollectiveKind::kBroadcast;
      if (has_own) operation.output = out_of(&part.out);
      if (!has_own) operation.output_rows = -1;
      const RequestPtr request = start(runtime_, operation);
      must(end_of(request));
      if (has_own) continue;
      const Floats values = result_of(request);
      if (values.size() != part.out.size()) return false;
      part.out = values;
    }
    return right(value);
  }

 private:
  struct Part {
    engine::Operation operation;
    Floats in, out;
    RequestPtr request;
  };
  void add(engine::Operation operation, size_t out) {
    const auto in = static_cast<size_t>(element_count(operation.shape));
    // Memory even where there are no rows.
    Part part{std::move(operation), Floats(in), Floats(out), nullptr};
    part.in.reserve(1);
    part.out.reserve(1);
    parts_.push_back(std::move(part));
  }
  void fill(float value) {
    for (Part& part : parts_) {
      std::fill(part.in.begin(), part.in.end(), value + static_cast<float>(rank_));
      std::fill(part.out.begin(), part.out.end(), -1.0F);
      if (part.operation.kind == CollectiveKind::kBroadcast && rank_ == 0) part.out = part.in;
    }
  }
  bool right(float value) const {
    const auto is = [](const Floats& all, float one) {
      return std::all_of(all.begin(), all.end(), [&](float x) { return x == one; });
    };
    const auto from = [&](const Floats& all, const std::vector<Rank>& senders) {
      for (size_t row = 0; row < all.size(); ++row)
        if (all[row] != value + static_cast<float>(senders[row])) return false;
      return true;
    };
    const float sum = sum_of_ranks(size_, value);
    return is(parts_[0].out, sum) && from(parts_[1].out, gathered_) &&
           from(parts_[2].out, exchanged_) && is(parts_[3].out, sum) && is(parts_[4].out, value);
  }

  engine::Runtime& runtime_;
  const Rank rank_;
  const Rank size_;
  std::vector<Rank> gathered_, exchanged_;  // who sent each row
  std::vector<Part> parts_;
};

enum class How { kPersistent, kIntoMemory, kOwned };

std::vector<SteadyCost> costs_of_kinds(Kind way, Rank size, How how, int warm_up, int steps) {
  return steady_costs(way, size, warm_up, steps, [=](Rank rank, engine::Runtime& r) {
    auto step = std::make_shared<KindsStep>(r, rank, size);
    if (how == How::kPersistent) step->make_all();
    return [=](int number) {
      const auto value = static_cast<float>(number % 32);
      return how == How::kPersistent ? step->run_again(value)
                                     : step->run(value, how == How::kIntoMemory);
    };
  });
}

TEST_CASE("a steady step of all five kinds sends no message", "[plan]") {
  const Kind way = GENERATE(Kind::kShm, Kind::kPairs, Kind::kTcp);
  const Rank size = GENERATE(2, 3);
  const How how = GENERATE(How::kPersistent, How::kIntoMemory, How::kOwned);
  constexpr int kSteps = 50;
  INFO(name_of(way) << ", " << size << " ranks, " << static_cast<int>(how));
  for (const SteadyCost& cost : costs_of_kinds(way, size, how, 40, kSteps)) {
    CHECK(cost.right);
    CHECK(cost.messages == 0);
    CHECK(cost.planned == 5 * kSteps);
    if (how != How::kPersistent) continue;
    INFO("allocations:\n" << cost.stacks);
    CHECK(cost.allocations == 0);
  }
}

TEST_CASE("one rank's rows change in the midst of a plan", "[plan]") {
  const Rank size = GENERATE(2, 3);
  RuntimeWorld world(Kind::kShm, size, very_patient());
  const auto wrong = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
    for (int number = 0; number < 60; ++number) {
      // Rank 1 has others for some steps, and now and then for one.
      const bool odd = (number >= 20 && number < 40) || number % 13 == 12;
      const auto rows = static_cast<size_t>(rank == 1 && odd ? 7 : 2 + rank);
      const Floats in(rows, static_cast<float>(100 * rank + number));
      const Floats got =
          result_of(start(r, operation(CollectiveKind::kAllgather, "rows", in, nullptr)));
      Floats expected;
      for (Rank from = 0; from < size; ++from) {
        expected.insert(expected.end(), static_cast<size_t>(from == 1 && odd ? 7 : 2 + from),
                        static_cast<float>(100 * from + number));
      }
      if (got != expected) return "step " + std::to_string(number);
    }
    return r.counter("plans") > 0 ? "" : "no plan";
  });
  for (const std::string& what : wrong) CHECK(what == "");
}

TEST_CASE("an output of other rows than arrive is refused before anything is written", "[plan]") {
  RuntimeWorld world(Kind::kShm, 2, very_patient());
  const auto said = world.run([&](Rank rank, engine::Runtime& r) {
    const Floats in(3, 1.0F);
    Floats out(5, -1.0F);
    engine::Operation op = operation(CollectiveKind::kAllgather, "rows", in, &out);
    op.output_rows = rank == 0 ? 5 : 6;
    if (rank == 1) op.output = nullptr, op.output_rows = -1;
    const Status status = call(r, op);
    return std::make_pair(status.message(), out == Floats(5, -1.0F));
  });
  for (const auto& [message, untouched] : said) {
    CHECK(has(message, "rank 0 has room for 5 rows"));
    CHECK(has(message, "6 arrive"));
    CHECK(untouched);
  }
}

TEST_CASE("what cannot be an output of an allgather or alltoall is refused at once", "[plan]") {
  RuntimeWorld world(Kind::kShm, 1, very_patient());
  engine::Runtime& r = world[0];
  const Floats in(3, 1.0F);
  Floats out(3, -1.0F);
  const auto refused = [&](engine::Operation op) {
    return r.start({std::move(op)}).status().message();
  };
  engine::Operation op = operation(CollectiveKind::kAllgather, "rows", in, &out);
  CHECK(has(refused(op), "an output needs output_rows"));
  op.output_rows = -2;
  CHECK(has(refused(op), "negative"));
  op.output_rows = 3;
  op.output = nullptr;
  CHECK(has(refused(op), "no output"));
  op = sum_of("sum", &out);
  op.output_rows = 3;
  CHECK(has(refused(op), "has no output_rows"));
}

}  // namespace
}  // namespace rueda::testing
