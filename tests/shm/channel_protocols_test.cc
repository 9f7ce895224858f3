// Every kind of collective on every protocol that a channel has, and mixtures of protocols.
#include <sys/mman.h>

#include <cstdlib>
#include <iostream>

#include "collectives/shm/cma.h"
#include "tests/shm/channel_world.h"

namespace rueda::shm {
namespace {

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter,
                                     CollectiveKind::kBroadcast, CollectiveKind::kAllgather,
                                     CollectiveKind::kAlltoall};

bool is_short() { return std::getenv("RUEDA_TEST_SHORT") != nullptr; }

bool may_pull() {
  static const bool allowed = [] {
    ChannelWorld world(1);
    const bool result = probe_cma(*world.arenas[0]);
    if (!result) std::cout << "not run: read_peer (this machine does not allow process_vm_readv)\n";
    return result;
  }();
  return allowed;
}

std::vector<ShmProtocol> protocols() {
  return may_pull() ? std::vector<ShmProtocol>{ShmProtocol::kStaged, ShmProtocol::kCma}
                    : std::vector<ShmProtocol>{ShmProtocol::kStaged};
}

// Nothing, one line, several lines, one-shot, a chunk, many chunks and above every threshold.
const int64_t kSizes[] = {0, 1, 14, 200, 1000, 5000, 40000};

// fn(request) for every combination that a kind can have.
template <typename Function>
void for_each_request(Rank size, Function fn) {
  for (const CollectiveKind kind : kKinds) {
    for (const Lies lies : kAllLies) {
      for (const ShmProtocol protocol : protocols()) {
        const bool fuses =
            kind != CollectiveKind::kReducescatter && kind != CollectiveKind::kAlltoall;
        std::vector<std::vector<int64_t>> lists;
        for (const int64_t n : kSizes) lists.push_back({n});
        if (fuses) {
          lists.push_back({3, 0, 5, 1});
          lists.push_back({700, 20000, 0, 33, 2000, 30000});
        }
        for (const auto& sizes : lists) {
          Request request;
          request.kind = kind;
          request.sizes = sizes;
          request.lies = lies;
          request.protocol = protocol;
          request.root = size - 1;
          fn(request);
          if (kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kBroadcast) {
            request.in_place = true;
            fn(request);
            request.in_place = false;
          }
          if (kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReducescatter) {
            request.dtype = DType::kBFloat16;
            request.op = ReduceOp::kAverage;
            fn(request);
          }
        }
      }
    }
  }
}

std::string text_of(const Request& r, Rank size) {
  return std::string(name_of(r.kind)) + " ranks=" + std::to_string(size) +
         " n=" + std::to_string(r.sizes[0]) + " parts=" + std::to_string(r.sizes.size()) +
         " lies=" + std::to_string(static_cast<int>(r.lies)) +
         " protocol=" + std::to_string(static_cast<int>(r.protocol)) +
         (r.in_place ? " in place" : "");
}

TEST_CASE("every protocol gives every rank the exact result, whatever the order of turns",
          "[channel][one_thread]") {
  for (const Rank size : {1, 2, 3, 4, 5, 6, 7, 8}) {
    if (is_short() && size > 3) break;
    ChannelWorld world(size);
    unsigned seed = 0;
    for_each_request(size, [&](const Request& request) {
      INFO(text_of(request, size));
      ChannelCall call(&world, request);
      call.start_all();
      REQUIRE(call.finish(++seed));
      REQUIRE(call.right());
      world.forget();
    });
  }
}

TEST_CASE("ranks that run at the same time get the exact result on every protocol", "[channel]") {
  for (const Rank size : {2, 3}) {
    ChannelWorld world(size);
    for_each_request(size, [&](const Request& request) {
      INFO(text_of(request, size));
      ChannelCall call(&world, request);
      call.run_threads();
      REQUIRE(call.done());
      REQUIRE(call.right());
      world.forget();
    });
  }
}

TEST_CASE("tensors take the protocol that fits where they lie", "[channel]") {
  ChannelWorld world(3);
  const auto bytes_after = [&](CollectiveKind kind, Lies lies, ShmProtocol protocol) {
    Request request;
    request.kind = kind;
    request.sizes = {70000};
    request.lies = lies;
    request.protocol = protocol;
    const Channel::Bytes before = world[0].bytes();
    ChannelCall call(&world, request);
    call.start_all();
    REQUIRE(call.finish(1));
    Channel::Bytes after = world[0].bytes();
    world.forget();
    after.total -= before.total;
    after.in_place -= before.in_place;
    after.cma -= before.cma;
    return after;
  };
  for (const CollectiveKind kind : kKinds) {
    INFO(name_of(kind));
    const auto in_heap = bytes_after(kind, Lies::kHeap, ShmProtocol::kStaged);
    CHECK(in_heap.in_place == in_heap.total);
    const auto buffers = bytes_after(kind, Lies::kPrivate, ShmProtocol::kStaged);
    CHECK(buffers.in_place + buffers.cma == 0);
    CHECK(buffers.total == in_heap.total);
    if (!may_pull()) continue;
    const auto cma = bytes_after(kind, Lies::kPrivate, ShmProtocol::kCma);
    CHECK(cma.cma == cma.total);
    CHECK(bytes_after(kind, Lies::kHeap, ShmProtocol::kCma).in_place == in_heap.total);
  }
  // Outputs that peers cannot write.
  CHECK(bytes_after(CollectiveKind::kAllreduce, Lies::kOutputsPrivate, ShmProtocol::kStaged)
            .in_place == 0);
}

// Values whose sums depend on the order and on every rounding.
std::vector<float> rough(size_t rank, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(std::ldexp(static_cast<float>(random() % 65536) - 32768.0f,
                                static_cast<int>(random() % 20) - 10));
  }
  return values;
}

TEST_CASE("no protocol changes a bit of a sum that is not exact", "[channel][one_thread]") {
  constexpr Rank kRanks = 3;
  constexpr int64_t kCount = 50000;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32}) {
    for (const double prescale : {1.0, 0.3}) {
      const Scaling scaling =
          plan_scaling(dtype, ReduceOp::kAverage, prescale, 1.7, kRanks).value();
      std::vector<Bytes> inputs;
      std::vector<Bytes> scaled;
      std::vector<const std::byte*> pointers;
      for (size_t rank = 0; rank < kRanks; ++rank) {
        const auto values = rough(rank, kCount);
        inputs.push_back(testing::to_bytes(dtype, {values.begin(), values.end()}));
        scaled.push_back(inputs.back());
        kernels::scaled_copy(dtype, scaled.back().data(), scaled.back().data(), kCount, prescale);
      }
      for (const Bytes& input : scaled) pointers.push_back(input.data());
      Bytes wanted(inputs[0].size());
      kernels::reduce(dtype, ReduceOp::kAverage, pointers, wanted.data(), kCount, scaling.finish);
      for (const int64_t piece : {int64_t{7}, int64_t{230}, int64_t{1500}, kCount}) {
        for (const Lies lies : kAllLies) {
          for (const ShmProtocol protocol : protocols()) {
            ChannelWorld world(kRanks);
            Request request;
            request.dtype = dtype;
            request.op = ReduceOp::kAverage;
            request.scaling = scaling;
            request.sizes = {piece};
            request.lies = lies;
            request.protocol = protocol;
            ChannelCall call(&world, request);
            const auto element = static_cast<int64_t>(size_of(dtype));
            for (size_t rank = 0; rank < kRanks; ++rank) {
              std::copy_n(inputs[rank].begin(), piece * element,
                          const_cast<std::byte*>(call.op(rank).tensors()[0].in));
            }
            call.start_all();
            INFO(name_of(dtype) << " n=" << piece << " " << text_of(request, kRanks));
            REQUIRE(call.finish(3));
            for (size_t rank = 0; rank < kRanks; ++rank) {
              CHECK(std::equal(wanted.begin(), wanted.begin() + piece * element,
                               call.op(rank).tensors()[0].out));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("results larger than the caches are right too", "[channel]") {
  constexpr int64_t kCount = (34 << 20) / 4;  // above the size from where results are streamed
  ChannelWorld world(2, 4096, 2 * sizeof(int32_t) * kCount + 4096);
  std::unique_ptr<ChannelOp> ops[2];
  for (size_t rank = 0; rank < 2; ++rank) {
    auto* in = reinterpret_cast<int32_t*>(world.allocate(rank, sizeof(int32_t) * kCount, true));
    for (int32_t i = 0; i < kCount; ++i) in[i] = i * (rank == 0 ? 1 : 3);
    CollectiveDesc desc;
    desc.dtype = DType::kInt32;
    desc.counts = {kCount};
    ops[rank] = std::make_unique<ChannelOp>(&world[rank], std::move(desc));
    ops[rank]->tensors()[0].in = reinterpret_cast<std::byte*>(in);
    ops[rank]->tensors()[0].out = world.allocate(rank, sizeof(int32_t) * kCount, true);
    ops[rank]->start({});
  }
  for (size_t i = 0; i < 10000 && !(ops[0]->done() && ops[1]->done()); ++i) world[i % 2].progress();
  REQUIRE((ops[0]->done() && ops[1]->done()));
  CHECK(world[0].bytes().in_place == sizeof(int32_t) * kCount);
  for (const auto& op : ops) {
    const auto* out = reinterpret_cast<const int32_t*>(op->tensors()[0].out);
    bool right = true;
    for (int32_t i = 0; i < kCount; ++i) right &= out[i] == 4 * i;
    CHECK(right);
  }
}

TEST_CASE("a post that names memory outside its heap ends the channel, not the process",
          "[channel]") {
  ChannelWorld world(2);
  Request request;
  request.sizes = {10000};
  request.lies = Lies::kHeap;
  ChannelCall call(&world, request);
  const uint64_t bad[] = {
      (uint64_t{1} << 62) | ChannelWorld::kHeapBytes,            // begins at its end
      (uint64_t{1} << 62) | (ChannelWorld::kHeapBytes - 39999),  // a byte too long
      (uint64_t{1} << 62) | ((uint64_t{1} << 62) - 1), uint64_t{3} << 62, uint64_t{1}};
  for (const uint64_t word : bad) {
    ChannelWorld fresh(2);
    ChannelCall one(&fresh, request);
    one.start(0);
    auto& line = fresh.arenas[1]->channel(1)->posts[0].lines[0];
    const uint64_t words[2] = {word, 0};
    std::memcpy(line.payload, words, sizeof(words));
    line.sequence.store(1, std::memory_order_release);
    fresh[0].progress();
    CHECK(fresh[0].failure().code() == Code::kDataLoss);
    CHECK_FALSE(fresh[0].progress());
    CHECK_FALSE(one.op(0).done());
    CHECK(one.untouched(0));
  }
}

TEST_CASE("memory that cannot be cma ends the channel", "[channel]") {
  if (!may_pull()) return;
  ChannelWorld world(2);
  Request request;
  request.sizes = {40000};
  request.protocol = ShmProtocol::kCma;
  ChannelCall call(&world, request);
  void* gone = mmap(nullptr, 160000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(gone != MAP_FAILED);
  call.op(1).tensors()[0].in = static_cast<std::byte*>(gone);
  call.start_all();
  REQUIRE(munmap(gone, 160000) == 0);
  world[0].progress();
  CHECK(world[0].failure().code() != Code::kOk);
  CHECK_FALSE(call.op(0).done());
}

}  // namespace
}  // namespace rueda::shm
