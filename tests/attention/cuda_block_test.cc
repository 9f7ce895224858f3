// The block kernel of GPUs on the host: its own source, threads in a loop, against the oracle.
#include <catch2/catch.hpp>
#include <limits>

#include "attention/plan.h"
#include "tests/attention/attention_world.h"
#include "tests/attention/host_block.h"

namespace rueda::testing {
using namespace attention;
namespace {

// One rank's tensors on the host, as a GPU would have them.
struct Memory {
  explicit Memory(const Problem& p)
      : spec(p.spec),
        q(narrowed(spec.dtype, p.q)),
        k(narrowed(spec.dtype, p.k)),
        v(narrowed(spec.dtype, p.v)),
        dout(narrowed(spec.dtype, p.dout)),
        acc(p.q.size()),
        m(p.dlse.size(), -std::numeric_limits<float>::infinity()),
        sums(p.dlse.size()),
        lse(p.dlse.size()),
        delta(p.dlse.size()),
        dq(p.q.size()),
        dk(p.k.size()),
        dv(p.k.size()),
        slopes(p.spec.alibi_slopes) {}

  // Of the query heads of one KV head. Numbers of a row lie as (batch, heads, rows).
  cuda::Call call(int64_t kv_head) {
    const int64_t d = spec.head_dim, group = spec.heads / spec.kv_heads;
    const auto size = static_cast<int64_t>(size_of(spec.dtype));
    const auto wide = [&](auto* data, int64_t rows, int64_t heads, int64_t first, int64_t element) {
      return cuda::Strided{reinterpret_cast<std::byte*>(data) + first * d * element,
                           rows * heads * d, heads * d, d};
    };
    const auto thin = [&](Floats& data) {
      return cuda::Strided{data.data() + kv_head * group * spec.length, spec.heads * spec.length, 1,
                           spec.length};
    };
    const auto queries = [&](auto& data, int64_t element) {
      return wide(data.data(), spec.length, spec.heads, kv_head * group, element);
    };
    const auto keys = [&](auto& data, int64_t element) {
      return wide(data.data(), spec.keys(), spec.kv_heads, kv_head, element);
    };
    cuda::Call call{};
    call.format = spec.dtype == DType::kFloat32   ? cuda::Format::kFloat32
                  : spec.dtype == DType::kFloat16 ? cuda::Format::kFloat16
                                                  : cuda::Format::kBFloat16;
    call.head_dim = static_cast<int32_t>(d);
    call.batches = spec.batch;
    call.heads = group;
    call.kv_heads = 1;
    call.scale = static_cast<float>(spec.softmax_scale());
    call.softcap = static_cast<float>(spec.softcap);
    if (!slopes.empty()) {
      const bool of_each = std::ssize(slopes) > spec.heads;  // entry of the batch
      call.slopes = {slopes.data() + kv_head * group, of_each ? spec.heads : 0, 0, 1};
    }
    call.q = queries(q, size);
    call.k = keys(k, size);
    call.v = keys(v, size);
    call.acc = queries(acc, 4);
    call.m = thin(m);
    call.sums = thin(sums);
    call.dout = queries(dout, size);
    call.lse = thin(lse);
    call.delta = thin(delta);
    call.dq = queries(dq, 4);
    call.dk = keys(dk, 4);
    call.dv = keys(dv, 4);
    return call;
  }

  AttentionSpec spec;
  std::vector<std::byte> q, k, v, dout;
  Floats acc, m, sums, lse, delta, dq, dk, dv, slopes;
};

// One side of a tile.
struct Side {
  cuda::RowRun rows;
  int64_t pos, step;
};

// Items of `own`, each against `other`, which is cut in two ranges.
struct Work {
  std::vector<cuda::Item> items;
  std::vector<cuda::Range> ranges;
};
Work work_of(const Side& own, const Side& other, const Band& band, int64_t most) {
  const auto part = [](const cuda::RowRun& of, int64_t begin, int64_t end) {
    return cuda::RowRun{of.row + begin * of.step, of.step, end - begin};
  };
  Work work;
  const auto range = [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    work.ranges.push_back({part(other.rows, begin, end), other.pos + begin * other.step, other.step,
                           own.pos, own.step, band.low, band.high});
  };
  range(0, other.rows.count / 3);
  range(other.rows.count / 3, other.rows.count);
  for (int64_t i = 0; i < own.rows.count; i += most) {
    work.items.push_back(
        {part(own.rows, i, std::min(own.rows.count, i + most)), i, 0, std::ssize(work.ranges)});
  }
  return work;
}

enum class Step { kForward, kQueries, kKeys };
void compute(const AttentionPlan& plan, Step step, Memory* memory) {
  for (const attention::Tile& tile : plan.forward.local) {
    const Side queries{{tile.q.begin, tile.q.step, tile.q.count}, tile.q_pos, tile.q_step};
    const Side keys{{tile.k.begin, tile.k.step, tile.k.count}, tile.k_pos, tile.k_step};
    for (int64_t head = tile.head_begin; head < tile.head_end; head += tile.head_step) {
      cuda::Call call = memory->call(head);
      const int64_t most =
          cuda::rows_for(static_cast<int>(plan.spec.head_dim), step != Step::kForward);
      const Work work = step == Step::kKeys ? work_of(keys, queries, plan.band, most)
                                            : work_of(queries, keys, plan.band, most);
      call.items = work.items.data();
      call.ranges = work.ranges.data();
      call.item_count = std::ssize(work.items);
      if (step == Step::kForward) run<cuda::Forward, false>(call, call.heads);
      if (step == Step::kQueries) run<cuda::BackwardQueries, true>(call, call.heads);
      if (step == Step::kKeys) run<cuda::BackwardKeys, true>(call, 1);
    }
  }
}

Doubles doubles(const Floats& values) { return {values.begin(), values.end()}; }

double error_of(const Floats& got, const Doubles& wanted) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

void check_exact(const AttentionSpec& spec, uint64_t seed) {
  const Problem problem = make_problem(spec, seed);
  const auto made = make_plan(spec, 0);
  REQUIRE(made.ok());
  const OracleResult wanted =
      oracle_forward(spec, doubles(problem.q), doubles(problem.k), doubles(problem.v));
  Memory memory(problem);
  compute(made.value(), Step::kForward, &memory);
  const int64_t rows = spec.length, heads = spec.heads, d = spec.head_dim;
  Floats out(problem.q.size());
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < rows; ++i) {
        const auto thin = static_cast<size_t>((b * heads + h) * rows + i);
        const auto wide = static_cast<size_t>(((b * rows + i) * heads + h) * d);
        const float sum = memory.sums[thin];
        const bool seen = !std::isinf(wanted.lse[thin]);
        REQUIRE((sum > 0) == seen);
        memory.lse[thin] = memory.m[thin] + std::log(sum);
        if (seen) REQUIRE(memory.lse[thin] == Approx(wanted.lse[thin]).epsilon(2e-6).margin(2e-6));
        double delta = -problem.dlse[thin] * (seen ? 1 : 0);
        for (size_t x = 0; x < static_cast<size_t>(d); ++x) {
          out[wide + x] = seen ? memory.acc[wide + x] / sum : memory.acc[wide + x];
          delta += out[wide + x] * problem.dout[wide + x];
        }
        memory.delta[thin] = static_cast<float>(delta);
      }
    }
  }
  CHECK(error_of(out, wanted.out) <= 1e-6);
  compute(made.value(), Step::kQueries, &memory);
  compute(made.value(), Step::kKeys, &memory);
  Doubles dlse = doubles(problem.dlse);
  for (size_t i = 0; i < dlse.size(); ++i) dlse[i] = std::isinf(wanted.lse[i]) ? 0 : dlse[i];
  const OracleGradients gradients =
      oracle_backward(spec, doubles(problem.q), doubles(problem.k), doubles(problem.v), wanted,
                      doubles(problem.dout), dlse);
  CHECK(error_of(memory.dq, gradients.dq) <= 2e-6);
  CHECK(error_of(memory.dk, gradients.dk) <= 2e-6);
  CHECK(error_of(memory.dv, gradients.dv) <= 2e-6);
}

}  // namespace

TEST_CASE("the block kernel's arithmetic is exact for every mask", "[attention][cuda]") {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SpecMaker maker(seed);
    AttentionSpec spec = maker.spec(90, 1);
    spec.head_dim = maker.one_of<int64_t>({1, 8, 20, 64});
    spec.dtype = maker.one_of({DType::kFloat32, DType::kBFloat16, DType::kFloat16});
    spec.kv_wire = spec.dtype;
    if (seed % 3 == 0) maker.change_scores(&spec);
    INFO("seed " << seed);
    check_exact(spec, seed);
  }
}

TEST_CASE("the block kernel's arithmetic is exact for every class of head_dim and many tiles",
          "[attention][cuda]") {
  for (const int64_t head_dim : {64, 65, 128, 130, 256}) {
    for (const bool causal : {false, true}) {
      AttentionSpec spec;
      if (head_dim % 64 == 0) {
        spec.softcap = causal ? 0.7 : 0;
        spec.alibi_slopes = {0.03125f, 0.25f};
      }
      spec.length = 141;
      spec.heads = 2;
      spec.head_dim = head_dim;
      spec.mask.causal = causal;
      if (!causal) spec.mask.left = 70;
      INFO("head_dim " << head_dim << ", causal " << causal);
      check_exact(spec, 7);
    }
  }
}

TEST_CASE("16-bit elements of the block kernel are widened as the library does",
          "[attention][cuda]") {
  std::vector<std::byte> bytes(1 << 17);
  for (size_t i = 0; i < 1 << 16; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  const Floats half = widened(DType::kFloat16, bytes), brain = widened(DType::kBFloat16, bytes);
  for (size_t i = 0; i < 1 << 16; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float mine[] = {cuda::widen(cuda::Half{bits}), cuda::widen(cuda::Brain{bits})};
    const float theirs[] = {half[i], brain[i]};
    for (int j = 0; j < 2; ++j) {
      if (!(std::isnan(mine[j]) && std::isnan(theirs[j])) && mine[j] != theirs[j])
        FAIL("bits " << i);
    }
  }
}

}  // namespace rueda::testing
