// Memory that NCCL is told of, without a GPU: the pool's blocks as windows and for each rank alone,
// freed while in use, when communicators end, by old NCCLs. The stub aborts the test on any misuse.
#include <catch2/catch.hpp>

#include <future>
#include <thread>

#include "collectives/nccl/block_offer.h"
#include "tests/cuda/gpu_world.h"
#include "tests/runtime/group_calls.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

using Catch::Contains;
using nccl::BlockOffer;
using nccl::BlockPool;

int64_t number_of(const char* name) {
  return reinterpret_cast<int64_t (*)()>(dlsym(dlopen(built::kStubNccl, RTLD_NOW), name))();
}
int64_t registered_now() { return number_of("stub_nccl_registered_now"); }
int64_t given_now() { return number_of("stub_nccl_given_now"); }

// A tensor of floats that fills a block of the pool.
class PoolTensor {
 public:
  PoolTensor(Rank gpu, size_t count) : count_(count) {
    data_ = static_cast<float*>(BlockPool::of_process().allocate(count * sizeof(float), gpu));
    if (data_ == nullptr) throw Failure("no memory of the pool");
  }
  ~PoolTensor() { free(); }
  PoolTensor(const PoolTensor&) = delete;
  PoolTensor& operator=(const PoolTensor&) = delete;
  void free() {
    if (data_ != nullptr) BlockPool::of_process().free(std::exchange(data_, nullptr));
  }
  void fill(float value) { std::fill(data_, data_ + count_, value); }
  bool is(float value) const {
    return std::all_of(data_, data_ + count_, [value](float each) { return each == value; });
  }
  Operation sum(const std::string& name, Rank rank) {
    Operation op = sum_of(name, nullptr);
    op.shape = {static_cast<int64_t>(count_)};
    op.input = op.output = reinterpret_cast<std::byte*>(data_);
    return on_gpu(op, rank);
  }

 private:
  float* data_ = nullptr;
  size_t count_;
};

void open_pool(Rank rank, Runtime& r) {
  must(BlockPool::of_process().open(must(r.machine().device(rank)), must(r.machine().library())));
}

// Sums over two ranks, of a name again and again, so that a plan comes.
std::string trouble_with_sums(Runtime& r, Rank rank, PoolTensor* tensor, const std::string& name,
                              int steps = 30) {
  for (int step = 0; step < steps; ++step) {
    tensor->fill(static_cast<float>(rank + step));
    must(finish(start(r, tensor->sum(name, rank))));
    if (!tensor->is(static_cast<float>(2 * step + 1))) return "step " + std::to_string(step);
  }
  return "";
}

}  // namespace

TEST_CASE("what the pool gives is registered once, as a window in plans, and let go of when freed",
          "[registered]") {
  const int64_t given = given_now();
  const int64_t registered = registered_now();
  GpuWorld gpus(2);
  const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    open_pool(rank, r);
    PoolTensor tensor(rank, 5000), other(rank, 5000);
    std::string trouble = trouble_with_sums(r, rank, &tensor, "pool");
    if (trouble.empty()) trouble = trouble_with_sums(r, rank, &other, "other", 1);
    return trouble;
  });
  for (const auto& error : errors) CHECK(error == "");
  for (Rank rank : {0, 1}) {
    const auto now = gpus.world[rank].counters();
    CHECK(now.planned_batches > 10);
    // Both communicators' buffers and the planned one's two blocks are windows; the negotiated one
    // has registered each block that it saw.
    CHECK(now.nccl_windows == 4);
    CHECK(now.nccl_registrations == 6);
    CHECK(now.nccl_registered_bytes == (int64_t{2} << 25) + 4 * 20000);
  }
  CHECK(registered_now() == registered + 4);  // the buffers
  CHECK(given_now() == given + 4);
}

TEST_CASE("ranks make windows of what all of them have, and register the rest alone",
          "[registered]") {
  GpuWorld gpus(2);
  const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    open_pool(rank, r);
    PoolTensor lone(rank, rank == 0 ? 3000 : 4000), common(rank, 5000);
    std::string trouble = trouble_with_sums(r, rank, &common, "common");
    PoolTensor late(rank, 6000);  // behind the plan's beginning
    for (int step = 0; step < 2 && trouble.empty(); ++step) {
      late.fill(1);
      must(finish(start(r, late.sum("late", rank))));
      if (!late.is(2)) trouble = "late";
    }
    return trouble;
  });
  for (const auto& error : errors) CHECK(error == "");
  for (Rank rank : {0, 1}) CHECK(gpus.world[rank].counters().nccl_windows == 3);
}

TEST_CASE("the setting says how NCCL is told: for each rank alone, or not at all", "[registered]") {
  for (const std::string how : {"local", "none"}) {
    INFO(how);
    Config config = gpu_config();
    config.nccl_register = how;
    GpuWorld gpus(2, Kind::kShm, config);
    const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
      open_pool(rank, r);
      PoolTensor tensor(rank, 5000);
      return trouble_with_sums(r, rank, &tensor, "pool");
    });
    for (const auto& error : errors) CHECK(error == "");
    const auto now = gpus.world[0].counters();
    CHECK(now.nccl_windows == 0);
    CHECK(now.nccl_registrations == (how == "none" ? 0 : 4));
  }
}

TEST_CASE("freeing waits for what the GPU does with the memory", "[registered]") {
  const auto waiting = reinterpret_cast<int64_t (*)()>(
      dlsym(dlopen(built::kFakeCuda, RTLD_NOW), "fake_cuda_synchronizing"));
  const int64_t before = waiting();
  GpuWorld gpus(2);
  const auto results = gpus.world.run([&](Rank rank, Runtime& r) {
    open_pool(rank, r);
    UserStream user(must(r.machine().device(rank)));
    PoolTensor tensor(rank, 5000);
    tensor.fill(1);
    must(finish(start(r, tensor.sum("x", rank))));
    std::promise<void> gate;
    user.run([open = gate.get_future().share()] { open.wait(); });
    auto op = tensor.sum("x", rank);
    op.stream = user.handle();
    const RequestPtr work = start(r, op);
    must(end_of(work));
    const bool early = must(work->device_end()->query());
    auto freed = std::async(std::launch::async, [&] { tensor.free(); });
    // Both ranks wait for their GPUs, unless one has freed already.
    const auto patience = std::chrono::steady_clock::now() + kGenerous;
    while (waiting() < before + 2 &&
           freed.wait_for(std::chrono::seconds(0)) != std::future_status::ready &&
           std::chrono::steady_clock::now() < patience)
      std::this_thread::yield();
    const bool alone = waiting() < before + 2;
    gate.set_value();
    freed.get();
    return early || alone || !must(work->device_end()->query());
  });
  for (const bool wrong : results) CHECK_FALSE(wrong);
}

TEST_CASE("memory of the pool outlives jobs and is registered by the next one anew",
          "[registered]") {
  const int64_t before = registered_now();
  const int64_t given = given_now();
  std::vector<std::unique_ptr<PoolTensor>> tensors(2);
  for (int life = 0; life < 3; ++life) {
    GpuWorld gpus(2);
    const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
      open_pool(rank, r);
      auto& tensor = tensors[static_cast<size_t>(rank)];
      if (tensor == nullptr) tensor = std::make_unique<PoolTensor>(rank, 5000);
      const std::string trouble = trouble_with_sums(r, rank, tensor.get(), "pool");
      r.shutdown();
      return trouble;
    });
    for (const auto& error : errors) CHECK(error == "");
    CHECK(gpus.world[0].counters().nccl_registrations > 0);
  }
  CHECK(registered_now() == before);
  tensors.clear();
  CHECK(given_now() == given);
}

TEST_CASE("an abort takes registrations with it, and what was freed meanwhile", "[registered]") {
  const int64_t before = registered_now();
  const int64_t given = given_now();
  {
    const Variable hang("STUB_NCCL_FAULT", "ncclAllReduce:0:2:hang");
    std::vector<std::unique_ptr<PoolTensor>> tensors(2);
    GpuWorld gpus(2);
    const auto texts = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
      open_pool(rank, r);
      const uint32_t group = must(r.open_group("aborted", {1, 0}));
      auto& tensor = tensors[static_cast<size_t>(rank)];
      tensor = std::make_unique<PoolTensor>(rank, 5000);
      auto op = tensor->sum("", rank);
      op.process_set = group;
      must(finish(start(r, op)));
      const RequestPtr stuck = start(r, op);
      must(end_of(stuck));
      if (must(stuck->device_end()->query())) return "it has not hung";
      const std::string trouble = trouble_with_sum(r, "all GPUs have it");
      if (!trouble.empty()) return trouble;
      auto freed = std::async(std::launch::async, [&] { tensor->free(); });
      if (rank == 1) must(r.abort_group(group, "enough"));
      Floats more(50, 1);
      const Status status =
          end_of(start(r, on_gpu(call_of(group, CollectiveKind::kAllreduce, more, &more), rank)));
      if (status.code() != Code::kCancelled) return "code: " + status.to_string();
      freed.get();  // the GPU has come back from the abort
      r.shutdown();
      return "";
    });
    for (const auto& text : texts) CHECK(text == "");
  }
  CHECK(registered_now() == before);
  // What NCCL could not let go of at once goes with the pool's next call.
  BlockPool::of_process().allocate(1, 0);
  CHECK(given_now() == given + 1);
}

TEST_CASE("a window that fails or hangs ends the job and says what does without", "[registered]") {
  for (const std::string how : {"error", "async", "hang"}) {
    INFO(how);
    const Variable fault("STUB_NCCL_FAULT", "ncclCommWindowRegister:1:1:" + how);
    const auto results = on_device_ranks(
        2,
        [](DeviceRank& here) {
          Floats data(4, 1);
          auto* const bytes = reinterpret_cast<std::byte*>(data.data());
          return here.outcome([&](nccl::DeviceCommunicator& c) {
            return testing::allreduce(c, {{bytes, bytes, 4}}, DType::kFloat32, ReduceOp::kSum, {});
          });
        },
        [](Rank, nccl::Machine::Options* options) { options->patience = std::chrono::seconds(1); });
    for (const Status& status : results) {
      CHECK_THAT(status.message(), Contains("RUEDA_NCCL_REGISTER=local does without"));
    }
  }
}

TEST_CASE("a pool needs an NCCL that gives memory, and to be opened for its GPU", "[registered]") {
  GpuWorld gpus(1);
  Config old = gpu_config();
  old.nccl_library = built::kStubNcclOld;
  GpuWorld older(1, Kind::kShm, old);
  older.world.run([](Rank, Runtime& r) {
    const Status status =
        BlockPool::of_process().open(must(r.machine().device(6)), must(r.machine().library()));
    CHECK(status.code() == Code::kUnimplemented);
    CHECK_THAT(status.message(), Contains("gives no memory (ncclMemAlloc): install 2.19 or newer"));
    return 0;
  });
  CHECK(BlockPool::of_process().allocate(100, 6) == nullptr);
  int local = 0;
  BlockPool::of_process().free(&local);  // not its own
  CHECK(BlockPool::of_process().find(reinterpret_cast<std::byte*>(&local)).data == nullptr);
}

TEST_CASE("what ranks offer for windows is matched by size, in the first rank's order",
          "[registered]") {
  const auto offer = [](const std::vector<size_t>& sizes, bool captured = false) {
    std::vector<nccl::Block> blocks;
    for (const size_t bytes : sizes) blocks.push_back({nullptr, bytes, nullptr, nullptr});
    return BlockOffer(blocks, captured);
  };
  using Sizes = std::vector<uint64_t>;
  CHECK(must(nccl::agree_on({offer({20, 2, 20})})) == Sizes{20, 2, 20});
  CHECK(must(nccl::agree_on({offer({20, 2, 20}), offer({4, 20, 2})})) == Sizes{20, 2});
  CHECK(must(nccl::agree_on({offer({20, 2}), offer({2, 20}), offer({2, 3})})) == Sizes{2});
  CHECK(must(nccl::agree_on({offer({1}), offer({})})).empty());
  CHECK(must(nccl::agree_on({offer({1}), offer({1}, true)})).empty());
  CHECK(nccl::is_captured_anywhere({offer({1}), offer({1}, true)}));
  // More than fit wait.
  CHECK(must(nccl::agree_on({offer(std::vector<size_t>(100, 1))})).size() == BlockOffer::kMost);
  auto damaged = offer({1});
  damaged.count = 1000;
  CHECK(nccl::agree_on({damaged}).status().code() == Code::kDataLoss);
  // The first of a size on each rank.
  auto memory = std::make_shared<std::byte>();
  std::vector<nccl::Block> blocks;
  for (const size_t bytes : {4, 20, 2, 20}) blocks.push_back({memory, bytes, nullptr, nullptr});
  blocks[3].data = nullptr;
  const auto chosen = nccl::choose(blocks, {20, 2});
  REQUIRE(chosen.size() == 2);
  CHECK((chosen[0].bytes == 20 && chosen[0].data != nullptr));
  CHECK(chosen[1].bytes == 2);
}

}  // namespace rueda::testing
