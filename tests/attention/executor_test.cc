#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

#include "attention/wire.h"
#include "tests/attention/attention_world.h"

namespace rueda::testing {
using namespace attention;
namespace {

std::string describe(const AttentionSpec& s) {
  return "n " + std::to_string(s.length) + " heads " + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + " d " + std::to_string(s.head_dim) + " batch " +
         std::to_string(s.batch) + " ranks " + std::to_string(s.ranks) + " ulysses " +
         std::to_string(s.ulysses) + " layout " + std::to_string(int(s.layout)) + " rotate " +
         std::to_string(int(s.rotate_forward)) + std::to_string(int(s.rotate_backward)) +
         " chunk " + std::to_string(s.chunk_tokens) + " gather " + std::to_string(s.gather_first) +
         " causal " + std::to_string(s.mask.causal) + " window " + std::to_string(s.mask.left) +
         "," + std::to_string(s.mask.right) + " packed " +
         std::to_string(s.mask.cu_seqlens.size()) + " pairs " +
         std::to_string(s.mask.segment_lengths.size()) + " block " + std::to_string(s.mask.block);
}

AttentionSpec simple(int64_t n, Rank ranks, int64_t heads, int64_t kv_heads, int64_t d) {
  AttentionSpec spec;
  spec.length = n;
  spec.ranks = ranks;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.head_dim = d;
  spec.layout = Layout::kZigzag;
  spec.mask.causal = true;
  return spec;
}

void check_exact(AttentionWorld* world, const AttentionSpec& spec, uint64_t seed) {
  const Problem problem = make_problem(spec, seed);
  const Errors errors = errors_of(problem, world->solve(problem));
  INFO(describe(spec) << ", seed " << seed);
  CHECK(errors.out <= 1e-6);
  CHECK(errors.lse <= 2e-6);
  CHECK(errors.dq <= 2e-6);
  CHECK(errors.dk <= 2e-6);
  CHECK(errors.dv <= 2e-6);
}

}  // namespace

TEST_CASE("every scheme, mask and size is exact, forward and backward", "[attention]") {
  const int trials = is_short() ? 6 : 60;
  for (const Rank ranks : {1, 2, 3, 4, 8}) {
    if (is_short() && ranks > 3) continue;
    AttentionWorld world(ranks);
    for (int trial = 0; trial < trials; ++trial) {
      const auto seed = static_cast<uint64_t>(ranks * 1000 + trial);
      SpecMaker maker(seed);
      AttentionSpec spec = maker.spec(90, 1);
      spec.ranks = ranks;
      std::vector<Rank> divisors;
      for (Rank u = 1; u <= ranks; ++u) {
        if (ranks % u == 0) divisors.push_back(u);
      }
      spec.ulysses = divisors[static_cast<size_t>(maker.between(0, std::ssize(divisors) - 1))];
      spec.head_dim = maker.one_of<int64_t>({7, 16, 32, 33, 64});
      check_exact(&world, spec, seed);
    }
  }
}

TEST_CASE("softcap and ALiBi are exact with every scheme, mask and size", "[attention]") {
  const int trials = is_short() ? 6 : 30;
  for (const Rank ranks : {1, 2, 3, 4}) {
    if (is_short() && ranks == 4) continue;
    AttentionWorld world(ranks);
    for (int trial = 0; trial < trials; ++trial) {
      const auto seed = static_cast<uint64_t>(ranks * 1000 + trial + 77000);
      SpecMaker maker(seed);
      AttentionSpec spec = maker.spec(90, 1);
      spec.ranks = ranks;
      if (trial % 3 == 0) spec.ulysses = ranks == 4 && trial % 2 == 0 ? 2 : ranks;
      spec.head_dim = maker.one_of<int64_t>({7, 16, 32, 33, 64});
      maker.change_scores(&spec);
      check_exact(&world, spec, seed);
    }
  }
}

TEST_CASE("softcap and ALiBi with 16 bits and compressed keys, on every instruction set",
          "[attention]") {
  const std::string before = kernels::active_target();
  for (const std::string& target : kernels::available_targets()) {
    kernels::use_target(target);
    for (const auto& [dtype, wire] : {std::pair{DType::kFloat32, DType::kFloat32},
                                      {DType::kFloat32, DType::kInt8},
                                      {DType::kBFloat16, DType::kBFloat16}}) {
      AttentionWorld world(2);
      AttentionSpec spec = simple(is_short() ? 250 : 601, 2, 2, 1, 24);
      spec.dtype = dtype;
      spec.kv_wire = wire;
      spec.softcap = 1.5;
      spec.alibi_slopes = {0.25f, 0.03125f};
      if (wire == DType::kInt8) spec.rotate_backward = Rotate::kKeysAndValues;
      const Problem problem = make_problem(spec, 8);
      const Errors errors = errors_of(problem, world.solve(problem));
      INFO(target << ", " << name_of(dtype) << " as " << name_of(wire));
      const bool exact = dtype == DType::kFloat32 && wire == DType::kFloat32;
      CHECK(errors.out <= (exact ? 1e-6 : 1.5e-2));
      CHECK(errors.gradients() <= (exact ? 2e-6 : 3e-2));
    }
  }
  kernels::use_target(before);
}

TEST_CASE("ranks whose softcap or slopes differ are told so, and kernels without them refuse",
          "[attention]") {
  AttentionWorld world(2);
  for (const int kind : {0, 1}) {
    const auto messages = world.runtimes().run([&](Rank rank, engine::Runtime&) -> std::string {
      AttentionSpec spec = simple(64, 2, 2, 2, 8);
      if (kind == 0) spec.softcap = 10 + rank;
      if (kind == 1) spec.alibi_slopes = {0.5f, 0.25f + static_cast<float>(rank)};
      try {
        run_rank(&world.engine(rank), make_problem(spec, 1), rank);
      } catch (const Failure& failure) {
        return failure.what();
      }
      return "nothing was wrong";
    });
    for (const std::string& message : messages)
      CHECK(message.find("same arguments") != std::string::npos);
  }
  AttentionSpec spec = simple(8, 1, 2, 2, 8);
  spec.softcap = -1;
  CHECK(make_plan(spec, 0).status().message().find("softcap is -1") != std::string::npos);
  spec.softcap = 5;
  spec.alibi_slopes = {1};
  CHECK(make_plan(spec, 0).status().message().find("1 ALiBi slopes") != std::string::npos);
  spec.alibi_slopes.clear();
  static const LocalKernel plain = {"plain", 50,     nullptr, 1u << int(DType::kFloat32),
                                    nullptr, nullptr};
  Kernels kernels;
  must(kernels.add(&plain));
  CHECK(std::string(kernels.find({DType::kFloat32, DType::kFloat32, 8, true})->name) == "native");
  must(kernels.use("plain"));
  Engine alone(nullptr, &kernels);
  const auto call = alone.forward(std::make_shared<AttentionPlan>(must(alone.plan(spec))), 0, 1, {},
                                  nullptr, true);
  CHECK(call.status().message().find("'plain'") != std::string::npos);
  CHECK(call.status().message().find("softcap") != std::string::npos);
  // On one rank alone: the other, which would wait for it, is told, and the next call goes on.
  spec.ranks = 2;
  RuntimeWorld two(Kind::kShm, 2);
  const auto messages = two.run([&](Rank rank, engine::Runtime& runtime) {
    Kernels own;
    must(own.add(&plain));
    must(own.use(rank == 1 ? "plain" : "auto"));
    Engine engine(&runtime, &own);
    const Problem problem = make_problem(spec, 1);
    std::string said = "nothing was wrong";
    try {
      run_rank(&engine, problem, rank);
    } catch (const Failure& failure) {
      said = failure.what();
    }
    must(own.use("auto"));
    run_rank(&engine, problem, rank);
    return said;
  });
  CHECK(messages[0].find("the call of rank 1") != std::string::npos);
  CHECK(messages[1].find("'plain'") != std::string::npos);
}

TEST_CASE("head sizes 32 to 256 and odd ones are exact", "[attention]") {
  AttentionWorld world(2);
  for (const int64_t d : {1, 20, 32, 64, 80, 96, 128, 160, 255, 256}) {
    if (is_short() && d != 20 && d != 255) continue;
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {4, 1}, {8, 2}}) {
      check_exact(&world, simple(75, 2, heads, kv_heads, d), static_cast<uint64_t>(d));
    }
  }
}

TEST_CASE("sequences of many blocks are exact on every instruction set", "[attention]") {
  const std::string before = kernels::active_target();
  for (const std::string& target : kernels::available_targets()) {
    kernels::use_target(target);
    INFO(target);
    AttentionWorld world(2);
    check_exact(&world, simple(is_short() ? 300 : 901, 2, 2, 1, 24), 5);
  }
  kernels::use_target(before);
}

TEST_CASE("the error does not grow with the ranks", "[attention]") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    double alone_out = 0, alone_gradients = 0;
    for (const Rank ranks : {1, is_short() ? 3 : 8}) {
      AttentionSpec spec = simple(is_short() ? 128 : 512, ranks, 2, 1, 64);
      spec.dtype = spec.kv_wire = dtype;
      AttentionWorld world(ranks);
      const Problem problem = make_problem(spec, 3);
      const Errors errors = errors_of(problem, world.solve(problem));
      INFO(name_of(dtype) << " on " << ranks);
      if (ranks == 1) {
        alone_out = errors.out;
        alone_gradients = errors.gradients();
        CHECK(errors.out <= (dtype == DType::kFloat32 ? 1e-6 : 4e-3));
      } else {
        CHECK(errors.out <= 1.5 * alone_out);
        CHECK(errors.gradients() <= 1.5 * alone_gradients);
      }
    }
  }
}

TEST_CASE("huge scores, rows without keys and ranks without tokens are no trouble", "[attention]") {
  AttentionWorld world(4);
  // Scores of +-1e4, exact in float32: small integers times a power of two.
  AttentionSpec spec = simple(96, 4, 2, 2, 16);
  spec.scale = 1;
  Problem problem = make_problem(spec, 1);
  std::mt19937_64 engine(9);
  for (float& x : problem.q) x = static_cast<float>(static_cast<int>(engine() % 51) - 25);
  for (float& x : problem.k) x = static_cast<float>(static_cast<int>(engine() % 51) - 25);
  Errors errors = errors_of(problem, world.solve(problem));
  CHECK(errors.out <= 1e-6);
  CHECK(errors.lse <= 2e-6);
  CHECK(errors.gradients() <= 2e-6);
  // Scores of +-1e4 of which several count: the log-sum-exp has digits that float32 does not hold.
  for (const Rank ulysses : {1, 2}) {
    for (const Rotate rotate : {Rotate::kKeysAndValues, Rotate::kQueries}) {
      AttentionSpec close = spec;
      close.ulysses = ulysses;
      close.rotate_forward = close.rotate_backward = rotate;
      problem = make_problem(close, 4);
      for (Floats* values : {&problem.q, &problem.k}) {
        for (size_t i = 0; i < values->size(); ++i) {
          const bool large = i % 16 == 0;
          (*values)[i] =
              large ? 100.0f : static_cast<float>(static_cast<int>(engine() % 7) - 3) / 4;
          if (large && values == &problem.q && i / 16 % 2 == 1) (*values)[i] = -100.0f;
        }
      }
      errors = errors_of(problem, world.solve(problem));
      INFO("ulysses " << ulysses << ", rotate " << int(rotate));
      CHECK(errors.out <= 1e-6);
      CHECK(errors.lse <= 2e-6);
      CHECK(errors.gradients() <= 2e-6);
    }
  }
  // Gaps of a thousand between what the ranks see.
  problem = make_problem(spec, 5);
  for (size_t i = 0; i < problem.q.size(); ++i) {
    const size_t token = i / 32;
    if (i % 16 == 0) problem.q[i] = 10;
    if (i % 16 == 0) problem.k[i] = 100.0f * static_cast<float>(token % 4);
  }
  errors = errors_of(problem, world.solve(problem));
  CHECK(errors.out <= 8 * 0x1p-24 * 3000);
  CHECK(errors.gradients() <= 8 * 0x1p-24 * 3000);
  // Any scores so large: their own rounding counts.
  problem = make_problem(spec, 2, 30);
  const Answer answer = world.solve(problem);
  for (const Floats* values : {&answer.out, &answer.dq, &answer.dk, &answer.dv}) {
    for (const float x : *values) {
      if (!std::isfinite(x)) FAIL("not finite");
    }
  }
  const double largest = 16 * 120.0 * 120.0;
  CHECK(errors_of(problem, answer).out <= 8 * 0x1p-24 * largest);
  CHECK(errors_of(problem, answer).gradients() <= 8 * 0x1p-24 * largest);
  // Three tokens on four ranks, and a mask that shows nothing to some.
  spec = simple(3, 4, 2, 1, 8);
  check_exact(&world, spec, 3);
  spec = simple(40, 4, 2, 1, 8);
  spec.mask.block = 10;
  spec.mask.blocks = {1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0};
  check_exact(&world, spec, 4);
}

TEST_CASE("transports carry the bytes of the plan, workspace is what it says", "[attention]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    const char* counter = kind == Kind::kShm ? "shm_bytes" : "tcp_bytes";
    for (const Rank ulysses : {1, 2, 4}) {
      for (const Rotate rotate : {Rotate::kKeysAndValues, Rotate::kQueries}) {
        for (const auto& [dtype, wire] : {std::pair{DType::kFloat32, DType::kFloat32},
                                          {DType::kBFloat16, DType::kBFloat16},
                                          {DType::kFloat32, DType::kBFloat16},
                                          {DType::kFloat16, DType::kInt8}}) {
          // Compressed is what travels in the ring alone.
          if (wire != dtype && (ulysses > 1 || rotate == Rotate::kQueries)) continue;
          if (is_short() && (ulysses == 4 || (kind == Kind::kTcp && dtype != wire))) continue;
          AttentionWorld world(4, kind);
          AttentionSpec spec = simple(301, 4, 4, 2, 16);
          spec.ulysses = ulysses;
          spec.rotate_forward = spec.rotate_backward = rotate;
          spec.dtype = dtype;
          spec.kv_wire = wire;
          const Problem problem = make_problem(spec, 7);
          const auto trouble = world.runtimes().run([&](Rank rank, engine::Runtime& runtime) {
            Engine& engine = world.engine(rank);
            const int64_t before = runtime.counter(counter);
            const RankAnswer answer = run_rank(&engine, problem, rank);
            const int64_t sent = runtime.counter(counter) - before;
            const PlanReport report = must(engine.plan(spec)).report;
            std::string text;
            if (sent != report.bytes_sent_forward + report.bytes_sent_backward) {
              text += "sent " + std::to_string(sent) + ", planned " +
                      std::to_string(report.bytes_sent_forward + report.bytes_sent_backward);
            }
            // Beside it: lse and delta by heads, and what an exchange packs.
            if (ulysses == 1) {
              if (answer.workspace_forward > report.workspace_forward)
                text += "; forward takes " + std::to_string(answer.workspace_forward) + " > " +
                        std::to_string(report.workspace_forward);
              if (answer.workspace_backward > report.workspace_backward)
                text += "; backward takes " + std::to_string(answer.workspace_backward) + " > " +
                        std::to_string(report.workspace_backward);
            }
            return text;
          });
          for (const std::string& text : trouble) CHECK(text == "");
        }
      }
    }
  }
}

namespace {

// The kernel `native`, and the most queries of one of its calls.
std::atomic<int64_t> most_queries{0};

void note(const KernelTile& tile) {
  int64_t before = most_queries.load();
  while (tile.queries > before && !most_queries.compare_exchange_weak(before, tile.queries)) {
  }
}
void noted_forward(const KernelTile& tile, float* scratch) {
  note(tile);
  native_kernel().forward(tile, scratch);
}
void noted_backward(const KernelTile& tile, float* scratch) {
  note(tile);
  native_kernel().backward(tile, scratch);
}

}  // namespace

TEST_CASE("threads share a head where there are fewer heads than threads, exactly", "[attention]") {
  uint32_t dtypes = 0;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    dtypes |= 1u << static_cast<int>(dtype);
  static const LocalKernel noted = {"noted", -1, nullptr, dtypes, noted_forward, noted_backward};
  const int64_t n = 1024;
  for (const Rank ranks : {1, 2}) {
    AttentionWorld world(ranks);
    must(world.kernels().add(&noted));
    must(world.kernels().use("noted"));
    AttentionSpec causal = simple(n, ranks, 2, 1, 64), window = causal, dilated = causal;
    window.mask.left = 300;
    window.layout = Layout::kStriped;
    dilated.mask.causal = false;
    dilated.mask.segment_lengths = {512, 1024};
    dilated.mask.dilation_rates = {1, 3};
    for (const AttentionSpec& spec : {causal, window, dilated}) {
      for (const Rotate rotate : {Rotate::kKeysAndValues, Rotate::kQueries}) {
        Problem problem = make_problem(spec, 11);
        problem.spec.rotate_forward = problem.spec.rotate_backward = rotate;
        INFO(describe(problem.spec));
        std::vector<Answer> answers;
        for (const int threads : {1, 3, 3}) {
          most_queries = 0;
          problem.threads = threads;
          answers.push_back(world.solve(problem));
          const Errors errors = errors_of(problem, answers.back());
          CHECK(errors.out <= 1e-6);
          CHECK(errors.gradients() <= 2e-6);
          // Eight ranges, two for a thread; one range is the whole sequence.
          if (ranks == 1 && spec.mask.left < 0 && spec.mask.causal)
            CHECK(most_queries == (threads == 1 ? n : n / 8));
        }
        CHECK(answers[1].out == answers[2].out);
        CHECK(answers[1].dq == answers[2].dq);
        CHECK(answers[1].dk == answers[2].dk);
        CHECK(answers[1].dv == answers[2].dv);
        if (is_short()) break;
      }
    }
  }
}

TEST_CASE("memory per rank, counted, falls with the ranks and not with the sequence",
          "[attention]") {
  // All tensors of forward and backward, and what the calls took for themselves, of the rank with
  // most.
  const auto most = [](int64_t n, Rank ranks) {
    AttentionWorld world(ranks);
    AttentionSpec spec = simple(n, ranks, 1, 1, 16);
    spec.chunk_tokens = n / ranks / 12;  // as by itself where a shard has 2304 tokens or more
    const Problem problem = make_problem(spec, 3);
    int64_t bytes = 0;
    for (const RankAnswer& a : world.runtimes().run([&](Rank rank, engine::Runtime&) {
           return run_rank(&world.engine(rank), problem, rank);
         })) {
      const size_t tensors =
          2 * (a.out.size() + a.dq.size() + a.dk.size() + a.dv.size()) + 3 * a.lse.size();
      bytes = std::max(bytes, static_cast<int64_t>(tensors * sizeof(float)) +
                                  std::max(a.workspace_forward, a.workspace_backward));
    }
    return static_cast<double>(bytes);
  };
  std::map<Rank, double> fixed, share;
  const int64_t n = 6144, own = 768;
  for (const Rank ranks : {2, 4, 8}) {
    if (is_short() && ranks == 8) continue;
    fixed[ranks] = most(n, ranks);
    share[ranks] = most(own * ranks, ranks);
    if (ranks == 2) continue;
    INFO(ranks << " ranks: " << fixed[ranks] / fixed[ranks / 2] << ", "
               << share[ranks] / share[ranks / 2]);
    CHECK(fixed[ranks] <= 0.55 * fixed[ranks / 2]);
    CHECK(share[ranks] <= 1.02 * share[ranks / 2]);
  }
}

TEST_CASE("more or fewer keys than queries are exact, aligned at the end", "[attention]") {
  AttentionWorld world(3);
  for (const auto& [queries, keys] : {std::pair{1, 50}, {7, 40}, {40, 7}, {33, 34}}) {
    for (const Layout layout : {Layout::kContiguous, Layout::kZigzag, Layout::kStriped}) {
      for (const Rotate rotate : {Rotate::kAuto, Rotate::kKeysAndValues, Rotate::kQueries}) {
        AttentionSpec spec = simple(queries, 3, 4, 2, 16);
        spec.key_length = keys;
        spec.layout = layout;
        spec.rotate_forward = spec.rotate_backward = rotate;
        if (rotate == Rotate::kAuto) spec.mask.left = 5;
        check_exact(&world, spec, static_cast<uint64_t>(queries * keys));
      }
    }
  }
}

TEST_CASE("compressed keys and values cost what is stated, in bytes and in error", "[attention]") {
  AttentionWorld world(4);
  AttentionSpec spec = simple(301, 4, 4, 2, 64);
  const int64_t exact_bytes = must(world.engine(0).plan(spec)).report.bytes_sent_forward;
  const Problem exact = make_problem(spec, 7);
  for (const auto& [wire, share, least, most] :
       {std::tuple{DType::kBFloat16, 0.5, 1e-5, 4e-3}, {DType::kInt8, 68.0 / 256, 1e-3, 1.5e-2}}) {
    Problem problem = exact;
    problem.spec.kv_wire = wire;
    const Errors errors = errors_of(problem, world.solve(problem));
    INFO(name_of(wire) << ": " << errors.out << ", gradients " << errors.gradients());
    CHECK(errors.out >= least);  // it was compressed
    CHECK(errors.out <= most);
    CHECK(errors.gradients() <= 2 * most);
    const int64_t bytes = must(world.engine(0).plan(problem.spec)).report.bytes_sent_forward;
    CHECK(static_cast<double>(bytes) == share * static_cast<double>(exact_bytes));
  }
}

TEST_CASE("int8 is off by half a step of its block, and holds zeros and large numbers",
          "[attention]") {
  AttentionSpec spec = simple(2, 1, 1, 1, 33);
  spec.kv_wire = DType::kInt8;
  spec.mask.causal = false;
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  // A plan whose message is all rows.
  AttentionSpec two = spec;
  two.ranks = 2;
  two.length = 4;
  const AttentionPlan plan = must(make_plan(two, 0));
  const Hop& hop = plan.forward.sends.front();
  const Geometry local = Geometry::local(plan, Side::kKeys, 33);
  const Geometry there = Geometry::message(plan, hop.rows, Side::kKeys, 33);
  for (const float size : {0.0f, 1e-30f, 1.0f, 1e30f}) {
    Floats k(66), v(66), back(132);
    for (float& x : k) x = size * normal(engine);
    for (float& x : v) x = size * normal(engine);
    std::vector<std::byte> message(static_cast<size_t>(hop_bytes(plan, false, hop).out));
    const auto bytes = [](const Floats& x) { return reinterpret_cast<const std::byte*>(x.data()); };
    pack_keys(two, there, local, bytes(k), bytes(v), message.data());
    const ReceivedKeys came = unpack_keys(two, there.elements(), message.data(), back.data());
    CHECK(came.dtype == DType::kFloat32);
    for (int row = 0; row < 4; ++row) {
      const float* sent = (row < 2 ? k.data() : v.data()) + row % 2 * 33;
      float largest = 0;
      for (int i = 0; i < 33; ++i) largest = std::max(largest, std::abs(sent[i]));
      for (int i = 0; i < 33; ++i)
        CHECK(std::abs(back[static_cast<size_t>(row * 33 + i)] - sent[i]) <= largest / 253.9f);
    }
  }
}

TEST_CASE("every kernel of this machine gives the same attention, and one can be asked for",
          "[attention]") {
  AttentionWorld world(2);
  for (const LocalKernel* kernel : world.kernels().here()) {
    must(world.kernels().use(kernel->name));
    for (const int64_t d : {1, 31, 64, 80, 256}) {
      if (is_short() && d != 31 && d != 64) continue;
      AttentionSpec spec = simple(is_short() ? 100 : 430, 2, 4, 2, d);
      spec.dtype = spec.kv_wire = DType::kBFloat16;
      if (d == 80) spec.scale = -0.2;
      if (d == 64) spec.mask.left = 70;
      const Problem problem = make_problem(spec, static_cast<uint64_t>(d));
      const Errors errors = errors_of(problem, world.solve(problem));
      INFO(kernel->name << ", " << describe(spec));
      CHECK(errors.out <= 4e-3);
      CHECK(errors.lse <= 2e-6);  // products of bfloat16 are exact
      CHECK(errors.gradients() <= 8e-3);
    }
  }
  const std::string refused = world.kernels().use("fastest").message();
  CHECK(refused.find("'fastest': this machine has auto") != std::string::npos);
  CHECK(refused.find("native") != std::string::npos);
  // A kernel that takes less than the call needs is refused by name.
  static const LocalKernel halves = {"halves", 1,      nullptr, 1u << int(DType::kFloat16),
                                     nullptr,  nullptr};
  must(world.kernels().add(&halves));
  CHECK_FALSE(world.kernels().add(&halves).ok());
  must(world.kernels().use("halves"));
  const auto call = must(world.engine(0).forward(
      std::make_shared<AttentionPlan>(must(world.engine(0).plan(simple(8, 2, 1, 1, 8)))), 0, 1, {},
      nullptr));
  const Status status = call->wait(std::chrono::nanoseconds(-1));
  CHECK(status.message().find("'halves'") != std::string::npos);
  // Each has its own list.
  CHECK(Kernels().use("halves").code() == Code::kInvalidArgument);
}

TEST_CASE("the same bits every time, whoever is late", "[attention]") {
  AttentionWorld world(3);
  AttentionSpec spec = simple(130, 3, 4, 2, 32);
  spec.chunk_tokens = 11;
  const Problem problem = make_problem(spec, 11);
  std::vector<Answer> answers;
  for (int run = 0; run < (is_short() ? 5 : 20); ++run) {
    std::mt19937_64 engine(static_cast<uint64_t>(run));
    std::vector<int64_t> delays;
    for (int i = 0; i < 3; ++i) delays.push_back(static_cast<int64_t>(engine() % 400000));
    answers.push_back(put_together(spec, world.runtimes().run([&](Rank rank, engine::Runtime&) {
      // Computing, not sleeping: the others see only that this rank is late.
      volatile int64_t busy = 0;
      for (int64_t i = 0; i < delays[static_cast<size_t>(rank)]; ++i) busy = busy + i;
      return run_rank(&world.engine(rank), problem, rank);
    })));
    const Answer &a = answers.front(), &b = answers.back();
    CHECK((a.out == b.out && a.lse == b.lse && a.dq == b.dq && a.dk == b.dk && a.dv == b.dv));
  }
}

TEST_CASE("two models of different heads share a process, in process sets too", "[attention]") {
  AttentionWorld world(4);
  auto ids = world.runtimes().run([&](Rank, engine::Runtime& runtime) {
    uint32_t mine = 0;
    const Rank rank = runtime.membership().rank;
    for (const auto& members : {std::vector<int64_t>{0, 3}, std::vector<int64_t>{1, 2}}) {
      const auto work = must(runtime.add_process_set(members));
      must(work->wait(std::chrono::nanoseconds(-1)));
      if (std::find(members.begin(), members.end(), rank) != members.end())
        mine = static_cast<uint32_t>(work->result());
    }
    return mine;
  });
  AttentionSpec first = simple(50, 2, 3, 1, 16), second = simple(61, 2, 8, 4, 8);
  first.ulysses = 2;
  const Problem one = make_problem(first, 1), two = make_problem(second, 2);
  const auto parts = world.runtimes().run([&](Rank rank, engine::Runtime&) {
    const Rank place = rank == 0 || rank == 1 ? 0 : 1;
    const uint32_t set = ids[static_cast<size_t>(rank)];
    auto a = run_rank(&world.engine(rank), one, place, set);
    auto b = run_rank(&world.engine(rank), two, place, set);
    return std::pair(a, b);
  });
  for (const auto& [x, y] : {std::pair<size_t, size_t>{0, 3}, {1, 2}}) {
    const Errors a = errors_of(one, put_together(first, {parts[x].first, parts[y].first}));
    const Errors b = errors_of(two, put_together(second, {parts[x].second, parts[y].second}));
    CHECK(std::max(a.out, b.out) <= 1e-6);
    CHECK(std::max(a.gradients(), b.gradients()) <= 2e-6);
  }
}

TEST_CASE("ranks that call different attentions are told so", "[attention]") {
  AttentionWorld world(2);
  const auto messages = world.runtimes().run([&](Rank rank, engine::Runtime&) -> std::string {
    AttentionSpec spec = simple(64, 2, 2, 2, 8);
    spec.mask.causal = rank == 0;
    spec.layout = Layout::kStriped;
    try {
      run_rank(&world.engine(rank), make_problem(spec, 1), rank);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "nothing was wrong";
  });
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(message.find("attention forward, step 1 of 1") != std::string::npos);
    CHECK(message.find("same arguments") != std::string::npos);
  }
}

TEST_CASE("an engine that checks programs refuses a plan that would go wrong", "[attention]") {
  RuntimeWorld world(Kind::kShm, 2);
  const Kernels kernels;
  const auto messages = world.run([&](Rank, engine::Runtime& runtime) -> std::string {
    Engine engine(&runtime, &kernels, true);
    auto plan = must(engine.plan(simple(64, 2, 2, 2, 8)));
    // As a bug of the planner would leave it: in backward the last rows are never sent. Forward
    // alone would not notice.
    plan.backward.sends.pop_back();
    const auto shared = std::make_shared<const AttentionPlan>(std::move(plan));
    const auto tensor = std::vector<std::byte>(static_cast<size_t>(32 * 2 * 8 * 4));
    auto out = tensor;
    const std::byte* const in = tensor.data();
    const auto call =
        engine.forward(shared, 0, 1, {in, in, in, out.data(), nullptr}, nullptr, true);
    return call.ok() ? "it ran" : call.status().message();
  });
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(message.find("attention program of rank") != std::string::npos);
    CHECK(message.find("this is a bug of rueda") != std::string::npos);
  }
  // Of virtual ranks too, before anything is called back.
  std::vector<AttentionPlan> plans;
  std::vector<const AttentionPlan*> all;
  for (const Rank rank : {0, 1}) plans.push_back(plan_of(simple(64, 2, 2, 2, 8), rank));
  plans[0].backward.sends.pop_back();
  for (const AttentionPlan& plan : plans) all.push_back(&plan);
  std::vector<int64_t> sent;
  Engine alone(nullptr, &kernels, true);
  const Status status = alone.run(all, false, nullptr, {}, &sent);
  CHECK(status.message().find("attention program of rank") != std::string::npos);
}

}  // namespace rueda::testing
