// Programs in random legal orders, against the oracle and against the executor.
#include <catch2/catch.hpp>

#include "tests/attention/program_world.h"

namespace rueda::testing {
using namespace attention;
namespace {

void check_orders(const AttentionSpec& spec, uint64_t seed, int orders) {
  const Problem problem = make_problem(spec, seed);
  AttentionWorld world(spec.ranks);
  const Answer executed = world.solve(problem);
  for (int order = 0; order < orders; ++order) {
    const Answer answer = interpret(problem, seed * 100 + static_cast<uint64_t>(order));
    INFO("seed " << seed << ", order " << order << ", ranks " << spec.ranks << ", ulysses "
                 << spec.ulysses);
    // Whatever the order, the same bits as the executor's.
    CHECK(answer.out == executed.out);
    CHECK(answer.lse == executed.lse);
    CHECK(answer.dq == executed.dq);
    CHECK(answer.dk == executed.dk);
    CHECK(answer.dv == executed.dv);
    const Errors errors = errors_of(problem, answer);
    const bool wide = spec.dtype == DType::kFloat32 && spec.kv_wire == DType::kFloat32;
    CHECK(errors.out <= (wide ? 1e-6 : 2e-2));
    CHECK(errors.lse <= (wide ? 2e-6 : 2e-2));
    CHECK(errors.gradients() <= (wide ? 2e-6 : 3e-2));
  }
}

AttentionSpec spec_of(int64_t n, Rank ranks, Rank ulysses, int64_t heads, int64_t kv_heads) {
  AttentionSpec spec;
  spec.length = n;
  spec.ranks = ranks;
  spec.ulysses = ulysses;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.head_dim = 16;
  spec.layout = Layout::kZigzag;
  spec.chunk_tokens = 4;
  return spec;
}

}  // namespace

TEST_CASE("programs of random specs give the executor's bits in any order", "[attention]") {
  for (int trial = 0; trial < (is_short() ? 12 : 80); ++trial) {
    SpecMaker maker(static_cast<uint64_t>(trial) + 500);
    AttentionSpec spec = maker.spec(60, 6);
    if (trial % 3 == 0) maker.change_scores(&spec);
    check_orders(spec, static_cast<uint64_t>(trial) + 500, 2);
  }
}

TEST_CASE("each kind of mask, grouped heads and unequal lengths, both rotations", "[attention]") {
  for (const Rank ulysses : {1, 2, 4}) {
    for (const Rotate rotate : {Rotate::kKeysAndValues, Rotate::kQueries}) {
      for (const int kind : {0, 1, 2, 3, 4}) {
        AttentionSpec spec = spec_of(53, 4, ulysses, 6, kind == 3 ? 2 : 3);
        spec.rotate_forward = spec.rotate_backward = rotate;
        spec.mask.causal = kind != 2;
        if (kind == 1) spec.mask.left = 7;
        if (kind == 2) spec.mask.cu_seqlens = {0, 5, 30, 31, 53};
        if (kind == 3) {
          spec.mask.segment_lengths = {8, 32};
          spec.mask.dilation_rates = {1, 3};
        }
        if (kind == 4) spec.key_length = 71;
        check_orders(spec, static_cast<uint64_t>(kind * 10 + ulysses), 2);
      }
    }
  }
}

TEST_CASE("16 bits and compressed keys and values go through the same programs", "[attention]") {
  for (const auto& [dtype, wire] : {std::pair{DType::kBFloat16, DType::kBFloat16},
                                    {DType::kFloat32, DType::kInt8},
                                    {DType::kFloat16, DType::kInt8}}) {
    for (const Rank ulysses : {1, 4}) {
      AttentionSpec spec = spec_of(61, 4, ulysses, 4, 2);
      spec.dtype = dtype;
      spec.kv_wire = wire;
      spec.rotate_forward = spec.rotate_backward = Rotate::kKeysAndValues;
      check_orders(spec, 3, 2);
    }
  }
}

}  // namespace rueda::testing
