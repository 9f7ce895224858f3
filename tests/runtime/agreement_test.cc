#include "runtime/negotiation/agreement.h"

#include <catch2/catch.hpp>

#include <functional>

#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

using negotiation::check_agreement;
using negotiation::RequestPtr;
using Change = std::function<void(wire::Request*)>;

// Three ranks, of which the middle one sends something else.
Status disagree(wire::Request base, const Change& change) {
  wire::Request other = base;
  change(&other);
  return check_agreement({share(base), share(other), share(base)});
}

struct Mismatch {
  const char* fragment;
  wire::Request base;
  Change change;
  std::vector<std::string> values;
};

std::vector<Mismatch> mismatches() {
  using K = CollectiveKind;
  return {
      {"Mismatched data types",
       request("x"),
       [](auto* r) { r->dtype = DType::kFloat64; },
       {"float32[4]", "float64[4]"}},
      {"Mismatched data types",
       request("x"),
       [](auto* r) { r->dtype = DType::kUInt32; },
       {"float32[4]", "uint32[4]"}},
      {"Mismatched operations",
       request("x"),
       [](auto* r) { r->kind = K::kBroadcast; },
       {"sent allreduce", "sent broadcast"}},
      {"Mismatched ALLREDUCE tensor shapes",
       request("x"),
       [](auto* r) { r->shape = {2, 2}; },
       {"float32[4]", "float32[2,2]"}},
      {"Mismatched ALLREDUCE tensor shapes",
       request("x"),
       [](auto* r) { r->layout = "1,0"; },
       {"float32[4]", "layout 1,0"}},
      {"Mismatched BROADCAST tensor shapes",
       request("x", 4, K::kBroadcast),
       [](auto* r) { r->shape = {5}; },
       {"float32[4]", "float32[5]"}},
      {"Mismatched REDUCESCATTER tensor shapes",
       request("x", 4, K::kReducescatter),
       [](auto* r) { r->shape = {5}; },
       {"float32[4]", "float32[5]"}},
      {"Mismatched ALLGATHER tensor shapes",
       request("x", 4, K::kAllgather),
       [](auto* r) { r->shape = {4, 2}; },
       {"float32[4]", "float32[4,2]"}},
      {"Mismatched ALLTOALL tensor shapes",
       request("x", 4, K::kAlltoall),
       [](auto* r) { r->shape = {4, 2}; },
       {"float32[4]", "float32[4,2]"}},
      {"Mismatched prescale and/or postscale factors",
       request("x"),
       [](auto* r) { r->prescale = 0.5; },
       {"prescale_factor=1", "prescale_factor=0.5"}},
      {"Mismatched prescale and/or postscale factors",
       request("x"),
       [](auto* r) { r->postscale = 0.1; },
       {"postscale_factor=1", "postscale_factor=0.1"}},
      {"Mismatched reduction operation",
       request("x"),
       [](auto* r) { r->reduce_op = ReduceOp::kMax; },
       {"sum", "max"}},
      {"Mismatched BROADCAST root ranks",
       request("x", 4, K::kBroadcast),
       [](auto* r) { r->root = 2; },
       {"root rank 0", "root rank 2"}},
      {"CPU/GPU device selection",
       request("x"),
       [](auto* r) { r->device = 1; },
       {"a CPU tensor", "a GPU tensor"}},
      {"Mismatched groups",
       request("x"),
       [](auto* r) {
         r->group = "g";
         r->group_size = 2;
       },
       {"outside a group", "'g' of 2"}},
  };
}

TEST_CASE("every disagreement names tensor, ranks and both values", "[agreement]") {
  for (const Mismatch& m : mismatches()) {
    const Status status = disagree(m.base, m.change);
    INFO(status.to_string());
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(contains(status.message(), m.fragment));
    CHECK(contains(status.message(), "'x'"));
    CHECK(contains(status.message(), "ranks 0, 2 sent"));
    CHECK(contains(status.message(), "rank 1 sent"));
    for (const std::string& value : m.values) CHECK(contains(status.message(), value));
  }
}

TEST_CASE("call sites stand beside what was sent, ranks where one side has several",
          "[agreement]") {
  const auto text = [](const std::vector<std::string>& sites) {
    return check_agreement({share(request("x")), share(request("x", 5)), share(request("x"))},
                           {4, 5, 6}, sites)
        .message();
  };
  const std::string title = "Mismatched ALLREDUCE tensor shapes: allreduce 'x': ";
  const std::string end = "; make all ranks submit the same";
  CHECK(text({"a.py:1 in f", "a.py:2 in f", "a.py:1 in f"}) ==
        title + "ranks 4, 6 sent float32[4] at a.py:1 in f; rank 5 sent float32[5] at a.py:2 in f" +
            end);
  CHECK(text({"a.py:1 in f", "", "a.py:3 in f"}) ==
        title +
            "ranks 4, 6 sent float32[4] at a.py:1 in f (rank 4), at a.py:3 in f (rank 6); rank 5 "
            "sent float32[5]" +
            end);
  CHECK(text({"", "", "a.py:3 in f"}) ==
        title + "ranks 4, 6 sent float32[4] at a.py:3 in f (rank 6); rank 5 sent float32[5]" + end);
  CHECK(text({}) == title + "ranks 4, 6 sent float32[4]; rank 5 sent float32[5]" + end);
}

TEST_CASE("the first disagreement in the fixed order is the one reported", "[agreement]") {
  wire::Request other = request("x");
  other.device = 0;
  const auto fragment = [&] {
    return check_agreement({share(request("x")), share(other)}).message();
  };
  CHECK(contains(fragment(), "CPU/GPU device selection"));
  other.root = 1;
  CHECK(contains(fragment(), "BROADCAST root ranks"));
  other.reduce_op = ReduceOp::kMin;
  CHECK(contains(fragment(), "reduction operation"));
  other.prescale = 2;
  CHECK(contains(fragment(), "prescale and/or postscale"));
  other.shape = {9};
  CHECK(contains(fragment(), "tensor shapes"));
  other.kind = CollectiveKind::kBroadcast;
  CHECK(contains(fragment(), "Mismatched operations"));
  other.dtype = DType::kInt8;
  CHECK(contains(fragment(), "Mismatched data types"));
}

TEST_CASE("tensors without a dimension cannot be gathered, exchanged or scattered", "[agreement]") {
  for (const auto kind :
       {CollectiveKind::kAllgather, CollectiveKind::kAlltoall, CollectiveKind::kReducescatter}) {
    wire::Request r = request("x", 4, kind);
    r.shape = {};
    const RequestPtr one = share(r);
    CHECK(contains(check_agreement({one, one}).message(), "rank-zero tensor"));
    CHECK(contains(check_agreement({one}).message(), "rank-zero tensor"));
    CHECK(contains(check_agreement({one, share(r)}).message(), "rank-zero tensor"));
  }
  wire::Request scalar = request("x");
  scalar.shape = {};
  CHECK(check_agreement({share(scalar), share(scalar)}).ok());
}

TEST_CASE("first dimensions may differ where rows are gathered or exchanged", "[agreement]") {
  for (const auto kind : {CollectiveKind::kAllgather, CollectiveKind::kAlltoall}) {
    wire::Request few = request("x", 0, kind);
    wire::Request many = request("x", 9, kind);
    few.splits = {0, 0};
    many.splits = {4, 5};
    CHECK(check_agreement({share(few), share(many)}).ok());
  }
}

TEST_CASE("a title says kind and name, dots in names stay", "[agreement]") {
  CHECK(negotiation::title_of("allreduce.fc1.weight") == "allreduce 'fc1.weight'");
  CHECK(negotiation::title_of("odd") == "'odd'");
  CHECK(negotiation::name_ranks({3}) == "rank 3");
  CHECK(negotiation::name_ranks({0, 2}) == "ranks 0, 2");
}

}  // namespace
}  // namespace rueda::testing
