// Adasum of GPU tensors on the fake kernels and the stub of NCCL against the CPU side: the same
// bits, as both neutral contributions add in the CPU side's order.
#include <catch2/catch.hpp>

#include <latch>
#include <numeric>
#include <random>

#include "tests/cuda/device_world.h"
#include "tests/support/patterns.h"

namespace rueda::testing {
namespace {

using algorithms::NativeCommunicator;
using Catch::Contains;

std::vector<Bytes> tensors(Rank rank, DType dtype, const std::vector<size_t>& counts) {
  std::mt19937 generator(static_cast<unsigned>(rank) + 7);
  std::normal_distribution<double> normal(0.3, 1);
  std::vector<Bytes> made;
  for (const size_t count : counts) {
    std::vector<double> values(count);
    for (double& value : values) value = normal(generator);
    made.push_back(to_bytes(dtype, values));
  }
  if (made.size() > 2 && rank == 1) std::fill(made[2].begin(), made[2].end(), std::byte{0});
  return made;
}

std::vector<Part> parts_of(const std::vector<Bytes>& in, std::vector<Bytes>* out, DType dtype) {
  std::vector<Part> parts;
  for (size_t i = 0; i < in.size(); ++i)
    parts.push_back(
        {in[i].data(), (*out)[i].data(), static_cast<int64_t>(in[i].size() / size_of(dtype))});
  return parts;
}

// "" or what differs between the GPUs' and the CPU's.
std::string difference(DeviceRank& here, DType dtype, const std::vector<size_t>& counts,
                       bool in_place, double postscale) {
  const Rank size = here.world.size();
  const auto scaling = must(plan_scaling(dtype, ReduceOp::kAdasum, 1, postscale, size));
  std::vector<Rank> everyone(static_cast<size_t>(size));
  std::iota(everyone.begin(), everyone.end(), 0);
  NativeCommunicator native(here.world.group(std::move(everyone)));
  const std::vector<Bytes> in = tensors(here.rank(), dtype, counts);
  std::vector<Bytes> expected = in;
  must(drive(here.world, native,
             testing::allreduce(native, parts_of(in, &expected, dtype), dtype, ReduceOp::kAdasum,
                                scaling)));
  std::vector<Bytes> given = in;
  std::vector<Bytes> apart = in;
  std::vector<Bytes>* const out = in_place ? &given : &apart;
  here.finish([&](nccl::DeviceCommunicator& c) {
    return testing::allreduce(c, parts_of(given, out, dtype), dtype, ReduceOp::kAdasum, scaling);
  });
  for (size_t i = 0; i < in.size(); ++i) {
    if ((*out)[i] != expected[i]) return "tensor " + std::to_string(i) + " differs from the CPU's";
  }
  return "";
}

TEST_CASE("Adasum of GPU tensors is that of the CPU, for every number of ranks and dtype") {
  const Rank size = GENERATE(1, 2, 3, 5, 8);
  const auto results = on_device_ranks(size, [](DeviceRank& here) {
    std::string text;
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      text += difference(here, dtype, {5000, 1, 300, 0, 33}, true, 1);
      text += difference(here, dtype, {40, 7000}, false, 0.5);
    }
    text += difference(here, DType::kFloat32, {200000}, true, 1);  // a call's memory grows
    return text;
  });
  for (const std::string& text : results) CHECK(text == "");
}

TEST_CASE(
    "Adasum without kernels, or of doubles, is refused alike on all ranks, and the next call "
    "works") {
  const auto results = on_device_ranks(
      2,
      [](DeviceRank& here) {
        std::vector<std::string> said;
        for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
          std::vector<Bytes> data = tensors(here.rank(), dtype, {10});
          said.push_back(here.outcome([&](nccl::DeviceCommunicator& c) {
                               return testing::allreduce(c, parts_of(data, &data, dtype), dtype,
                                                         ReduceOp::kAdasum, {});
                             })
                             .message());
        }
        std::vector<float> ones(4, 1);
        auto* const bytes = reinterpret_cast<std::byte*>(ones.data());
        here.finish([&](nccl::DeviceCommunicator& c) {
          return testing::allreduce(c, {{bytes, bytes, 4}}, DType::kFloat32, ReduceOp::kSum, {});
        });
        said.push_back(std::to_string(ones[3]));
        return said;
      },
      [](Rank rank, nccl::Machine::Options* options) {
        if (rank == 1) options->kernels = "none";
      });
  for (const auto& said : results) {
    CHECK_THAT(said[0],
               Contains("Adasum on GPUs needs rueda's kernels") && Contains("tensor.cpu()"));
    CHECK_THAT(said[1], Contains("Adasum of float64 is not available on GPUs"));
    CHECK(said[2] == "2.000000");
  }
}

TEST_CASE("a peer that does not come in the middle of an Adasum is ended by abort") {
  const Variable fault("STUB_NCCL_FAULT", "ncclAllReduce:1:1:hang");
  std::latch given(2);  // what is given up sooner fails the peer's call
  on_device_ranks(2, [&](DeviceRank& here) {
    std::vector<Bytes> data = tensors(here.rank(), DType::kFloat32, {1000});
    auto [status, order] = here.run([&](nccl::DeviceCommunicator& c) {
      return testing::allreduce(c, parts_of(data, &data, DType::kFloat32), DType::kFloat32,
                                ReduceOp::kAdasum, {});
    });
    given.arrive_and_wait();
    must(status);
    here.communicator.abandon();
    must(order.done->wait());
    return 0;
  });
}

}  // namespace
}  // namespace rueda::testing
