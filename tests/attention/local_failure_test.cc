// A call that fails on one rank alone, which goes on living: the others, who wait for its messages,
// are told at once who has failed and why.
#include <catch2/catch.hpp>

#include <map>
#include <new>

#include "attention/decode_work.h"
#include "attention/program.h"
#include "tests/attention/attention_world.h"
#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {
using namespace attention;
namespace {

constexpr Rank kSize = 3, kVictim = 1;
constexpr const char* kReason = "OutOfMemoryError: 7 GiB are missing";

// Kernels on the host's memory that compute nothing.
struct FailingKernels {
  int fails_at = -1;     // the call of perform, counted from 0
  int takes_until = -1;  // the call of take
  int performed = 0, taken = 0;
  std::map<int, std::vector<std::byte>> slots;
  std::string reason = std::string(100, '\0');

  int fail() {
    reason.replace(0, std::strlen(kReason), kReason);
    return 1;
  }
  DeviceKernels functions() {
    DeviceKernels made;
    made.user = this;
    made.take = [](void* user, int32_t, int32_t slot, int64_t bytes) -> void* {
      auto* const me = static_cast<FailingKernels*>(user);
      if (me->taken++ == me->takes_until && me->fail() != 0) return nullptr;
      auto& memory = me->slots[slot];
      memory.resize(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
      return memory.data();
    };
    made.give = [](void*, int32_t, int32_t) {};
    made.perform = [](void* user, int32_t, int32_t) -> int32_t {
      auto* const me = static_cast<FailingKernels*>(user);
      return me->performed++ == me->fails_at ? me->fail() : 0;
    };
    made.reason = reason.data();
    made.reason_bytes = reason.size();
    return made;
  }
};

// The call, and what comes behind it. Who has its part of the call is told by the next operation.
std::pair<Status, Status> ends(engine::Runtime& runtime, const Status& called) {
  const auto behind = runtime.start({operation(CollectiveKind::kBarrier, "behind", {}, nullptr)});
  return {called, behind.ok() ? end_of(behind.value().front()) : behind.status()};
}

void check_told(const std::vector<std::pair<Status, Status>>& all, const std::string& reason) {
  for (Rank rank = 0; rank < kSize; ++rank) {
    const auto& [called, behind] = all[static_cast<size_t>(rank)];
    INFO("rank " << rank << ": " << called.to_string() << "; " << behind.to_string());
    if (rank == kVictim) {
      CHECK_FALSE(called.ok());
      CHECK_THAT(called.message(), Catch::Contains(reason));
    }
    // Of whom it had all messages by then the call has ended well.
    for (const Status& status : {rank == kVictim || called.ok() ? behind : called, behind}) {
      CHECK(status.code() == Code::kInternal);
      CHECK_THAT(status.message(), Catch::Contains("rank 1") && Catch::Contains(reason));
      CHECK(status.facts().rank == kVictim);
    }
  }
}

DecodeSpec decoding(Rank rank, bool own) {
  DecodeSpec spec;
  spec.batch = kSize;
  spec.head_dim = 8;
  spec.heads = 6;
  spec.kv_heads = 2;
  spec.own = own;
  spec.lengths = {5, 64, 3};
  spec.blocks = kSize;
  spec.block_tokens = 32;
  spec.sequences = own ? split_rows(spec.batch, rank, kSize) : spec.batch;
  return spec;
}

AttentionSpec ring(Rotate rotate) {
  AttentionSpec spec;
  spec.length = 48;
  spec.ranks = kSize;
  spec.heads = spec.kv_heads = 2;
  spec.head_dim = 8;
  spec.rotate_forward = spec.rotate_backward = rotate;
  return spec;
}

}  // namespace

TEST_CASE("a kernel of decoding that fails on one rank ends the call on all", "[attention]") {
  for (const bool own : {false, true}) {
    for (int step = 0; step < (own ? 4 : 3); ++step) {  // kPlaceQueries where ranks have their own
      AttentionWorld world(kSize);
      const auto all = world.runtimes().run([&](Rank rank, engine::Runtime& runtime) {
        FailingKernels kernels;
        if (rank == kVictim) kernels.fails_at = step;
        bool under_way = false;
        return ends(runtime, world.engine(rank).decode(decoding(rank, own), 0, kernels.functions(),
                                                       &under_way));
      });
      INFO("own " << own << ", step " << step);
      check_told(all, kReason);
    }
  }
}

TEST_CASE("so does one of a program, in forward and backward", "[attention]") {
  for (const Rotate rotate : {Rotate::kKeysAndValues, Rotate::kQueries}) {
    for (const bool backward : {false, true}) {
      int steps = 0;
      for (const Instruction& one :
           make_program(must(make_plan(ring(rotate), kVictim)), backward, true).list)
        steps += one.moves() || one.op == Op::kFree ? 0 : 1;
      REQUIRE(steps > 5);
      for (int step = 0; step < steps; step += is_short() ? 3 : 1) {
        AttentionWorld world(kSize);
        const auto all = world.runtimes().run([&](Rank rank, engine::Runtime& runtime) {
          FailingKernels kernels;
          if (rank == kVictim) kernels.fails_at = step;
          bool under_way = false;
          Engine& engine = world.engine(rank);
          const AttentionPlan plan = must(engine.plan(ring(rotate)));
          return ends(runtime, engine.run(plan, 0, backward, kernels.functions(), &under_way));
        });
        INFO("rotate " << int(rotate) << ", backward " << backward << ", step " << step);
        check_told(all, kReason);
      }
    }
  }
}

TEST_CASE("so does memory that one rank has not", "[attention]") {
  for (int nth = 0; nth < 3; ++nth) {
    AttentionWorld world(kSize);
    const auto all = world.runtimes().run([&](Rank rank, engine::Runtime& runtime) {
      FailingKernels kernels;
      if (rank == kVictim) kernels.takes_until = nth;
      bool under_way = false;
      return ends(runtime, world.engine(rank).decode(decoding(rank, false), 0, kernels.functions(),
                                                     &under_way));
    });
    INFO("take " << nth);
    check_told(all, kReason);
  }
}

TEST_CASE("a process set of one rank fails for itself", "[attention]") {
  AttentionWorld world(2);
  const auto all = world.runtimes().run([&](Rank rank, engine::Runtime& runtime) {
    const RequestPtr adding = must(runtime.add_process_set({kVictim}));
    must(end_of(adding));
    if (rank == kVictim) {
      FailingKernels kernels;
      kernels.fails_at = 0;
      bool under_way = false;
      DecodeSpec spec = decoding(0, false);
      spec.block_tokens = 64;
      const Status called = world.engine(rank).decode(spec, static_cast<uint32_t>(adding->result()),
                                                      kernels.functions(), &under_way);
      if (!has(called.message(), kReason)) return called.to_string();
    }
    return trouble_with_sum(runtime, "behind");
  });
  for (const std::string& trouble : all) CHECK(trouble == "");
}

namespace {

thread_local bool has_no_memory = false;
void plain_forward(const KernelTile& tile, float* scratch) {
  if (has_no_memory) throw std::bad_alloc();
  native_kernel().forward(tile, scratch);
}

}  // namespace

TEST_CASE("so does memory that the host has not", "[attention]") {
  static const LocalKernel greedy = {"greedy",      50,     nullptr, 1u << int(DType::kFloat32),
                                     plain_forward, nullptr};
  AttentionWorld world(kSize);
  must(world.kernels().add(&greedy));
  must(world.kernels().use("greedy"));
  const Problem problem = make_problem(ring(Rotate::kQueries), 1);
  const auto all = world.runtimes().run([&](Rank rank, engine::Runtime& runtime) {
    has_no_memory = rank == kVictim;
    Status called;
    try {
      run_rank(&world.engine(rank), problem, rank, 0, false);
    } catch (const Failure& failure) {
      called = internal_error(failure.what()).with_rank(kVictim);
    }
    return ends(runtime, called);
  });
  check_told(all, "attention: out of memory");
}

}  // namespace rueda::testing
