// Adasum against a plain reference in doubles, on every transport and number of ranks; its two
// characteristic results; and that its bits do not depend on transport, batch or repetition.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <tuple>

#include "collectives/kernels/adasum.h"
#include "tests/support/patterns.h"
#include "tests/support/thread_world.h"

namespace rueda::testing {
namespace {

using algorithms::NativeCommunicator;
using Values = std::vector<double>;

constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

Values from_bytes(DType dtype, const Bytes& bytes) {
  Values values(bytes.size() / size_of(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* at = bytes.data() + i * size_of(dtype);
    float f32 = 0;
    if (dtype == DType::kFloat64) {
      std::memcpy(&values[i], at, 8);
      continue;
    }
    if (dtype == DType::kFloat32) std::memcpy(&f32, at, 4);
    if (size_of(dtype) == 2) kernels::convert_to_f32(dtype, at, &f32, 1);
    values[i] = f32;
  }
  return values;
}

// The textbook form, on whole vectors: neighbours first, one recursion per half.
struct Combined {
  Values vector;
  int ranks = 0;
};
double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
Combined reference(const std::vector<Values>& inputs, size_t begin, size_t end) {
  if (end - begin == 1) return {inputs[begin], 1};
  size_t half = 1;  // the largest power of two below the number of inputs
  while (2 * half < end - begin) half *= 2;
  const Combined a = reference(inputs, begin, begin + half);
  const Combined b = reference(inputs, begin + half, end);
  const double ranks = a.ranks + b.ranks;
  const double ab = dot(a.vector, b.vector);
  const double aa = dot(a.vector, a.vector);
  const double bb = dot(b.vector, b.vector);
  Combined result{a.vector, a.ranks + b.ranks};
  for (size_t i = 0; i < a.vector.size(); ++i) {
    result.vector[i] = (aa == 0 ? 1 : 1 - a.ranks / ranks * ab / aa) * a.vector[i] +
                       (bb == 0 ? 1 : 1 - b.ranks / ranks * ab / bb) * b.vector[i];
  }
  return result;
}

// Made once: drawing them costs more than the collective, above all under ThreadSanitizer.
const Bytes& random_bytes(DType dtype, Rank rank, int64_t count) {
  static std::mutex mutex;
  static std::map<std::tuple<DType, Rank, int64_t>, Bytes> made;
  const std::lock_guard lock(mutex);
  Bytes& bytes = made[{dtype, rank, count}];
  if (bytes.empty() && count > 0) {
    std::mt19937 generator(static_cast<unsigned>(1000 * rank + count));
    std::normal_distribution<double> normal(0.3, 1);  // neither orthogonal nor parallel
    Values values;
    for (int64_t i = 0; i < count; ++i) values.push_back(normal(generator));
    bytes = to_bytes(dtype, values);
  }
  return bytes;
}

Bytes bytes_of(DType dtype, const Values& values) { return to_bytes(dtype, values); }
Bytes bytes_of(DType, Bytes bytes) { return bytes; }

// memcmp is what ThreadSanitizer does not slow down.
bool same(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// What each rank has after an Adasum of the tensors that input(rank) gives, as values or as bytes.
using Tensors = std::vector<Values>;
template <typename Input>
std::vector<std::vector<Bytes>> run(Kind kind, Rank size, DType dtype, Input input,
                                    bool in_place = false, double postscale = 1) {
  auto worlds = make_worlds(kind, size);
  return on_ranks(size, [&](Rank rank) {
    ThreadRank& world = *worlds[static_cast<size_t>(rank)];
    std::vector<Rank> everyone(static_cast<size_t>(size));
    std::iota(everyone.begin(), everyone.end(), 0);
    NativeCommunicator communicator(world.group(std::move(everyone)));
    std::vector<Bytes> ins;
    std::vector<Bytes> outs;
    for (auto& tensor : input(rank)) {
      ins.push_back(bytes_of(dtype, std::move(tensor)));
      outs.emplace_back(ins.back().size(), std::byte{0xee});
    }
    std::vector<Part> parts;
    for (size_t i = 0; i < ins.size(); ++i) {
      parts.push_back({ins[i].data(), in_place ? ins[i].data() : outs[i].data(),
                       static_cast<int64_t>(ins[i].size() / size_of(dtype))});
    }
    const auto scaling = must(plan_scaling(dtype, ReduceOp::kAdasum, 1, postscale, size));
    must(drive(world, communicator,
               allreduce(communicator, std::move(parts), dtype, ReduceOp::kAdasum, scaling)));
    return in_place ? ins : outs;
  });
}

bool same_on_all(const std::vector<std::vector<Bytes>>& by_rank) {
  return std::all_of(by_rank.begin(), by_rank.end(), [&](const auto& mine) {
    return std::equal(mine.begin(), mine.end(), by_rank.front().begin(), by_rank.front().end(),
                      same);
  });
}

// Of the largest element.
double rounding_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 1e-3;
    case DType::kBFloat16: return 8e-3;
    case DType::kFloat32: return 1e-6;
    default: return 1e-14;
  }
}

std::string differs(DType dtype, const Bytes& got, const Values& wanted) {
  const Values values = from_bytes(dtype, got);
  double largest = 0;
  for (const double value : wanted) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!(std::abs(values[i] - wanted[i]) <= rounding_of(dtype) * largest)) {
      return "element " + std::to_string(i) + " is " + std::to_string(values[i]) + ", not " +
             std::to_string(wanted[i]);
    }
  }
  return "";
}

TEST_CASE("adasum gives every rank the reference's result, each tensor by itself", "[adasum]") {
  const std::vector<int64_t> counts = {17, 0, 1, 1000, 40000};
  const Rank size = GENERATE(1, 2, 3, 4, 5, 8);
  if (is_short() && size > 3) return;
  for (const DType dtype : kFloats) {
    std::vector<std::vector<Bytes>> first;
    for (const Kind kind : kAllKinds) {
      if (kind == Kind::kTcp6 && !has_ipv6()) continue;
      INFO(name_of(kind) << " x " << size << " " << name_of(dtype));
      const auto results = run(kind, size, dtype, [&](Rank rank) {
        std::vector<Bytes> tensors;
        for (const int64_t count : counts) tensors.push_back(random_bytes(dtype, rank, count));
        return tensors;
      });
      REQUIRE(same_on_all(results));
      if (first.empty()) first = results;
      REQUIRE(same_on_all({results[0], first[0]}));
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      std::vector<Values> inputs;
      for (Rank rank = 0; rank < size; ++rank)
        inputs.push_back(from_bytes(dtype, random_bytes(dtype, rank, counts[i])));
      CHECK(differs(dtype, first[0][i], reference(inputs, 0, inputs.size()).vector) == "");
    }
  }
}

TEST_CASE("adasum has the same bits alone, in a batch, in place and again", "[adasum]") {
  const Rank size = GENERATE(2, 3, 5);
  if (is_short() && size > 3) return;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const auto bytes = [&](Rank rank, int64_t count) { return random_bytes(dtype, rank, count); };
    const auto alone = [&](Rank rank) { return std::vector<Bytes>{bytes(rank, 200'000)}; };
    const auto batch = [&](Rank rank) {
      return std::vector<Bytes>{bytes(rank, 33), bytes(rank, 200'000), bytes(rank, 5)};
    };
    const Bytes wanted = run(Kind::kShm, size, dtype, alone)[0][0];
    CHECK(same(run(Kind::kShm, size, dtype, alone)[0][0], wanted));
    CHECK(same(run(Kind::kShm, size, dtype, alone, true)[0][0], wanted));
    CHECK(same(run(Kind::kTcp, size, dtype, batch)[0][1], wanted));
    CHECK(same(run(Kind::kShm, size, dtype, batch, true)[0][1], wanted));
  }
}

TEST_CASE("orthogonal vectors are added, parallel ones averaged", "[adasum]") {
  const Rank size = GENERATE(1, 2, 3, 4, 5);
  // Norms whose squares f32 cannot hold, too.
  const double scale = GENERATE(1e-30, 1.0, 1e30);
  const auto own_axis = [&](Rank rank) {
    Values values(static_cast<size_t>(3 * size), 0);
    values[static_cast<size_t>(3 * rank)] = scale;
    return Tensors{values};
  };
  const auto multiples = [&](Rank rank) { return Tensors{Values(1000, scale * (rank + 1))}; };
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Values sum(static_cast<size_t>(3 * size), 0);
    for (Rank rank = 0; rank < size; ++rank) sum[static_cast<size_t>(3 * rank)] = scale;
    CHECK(run(Kind::kInproc, size, dtype, own_axis)[0][0] == to_bytes(dtype, sum));
    const auto mean = run(Kind::kInproc, size, dtype, multiples)[0][0];
    CHECK(differs(dtype, mean, Values(1000, scale * (size + 1) / 2)) == "");
    const auto scaled = run(Kind::kInproc, size, dtype, multiples, false, 0.5)[0][0];
    CHECK(differs(dtype, scaled, Values(1000, scale * (size + 1) / 4)) == "");
  }
}

TEST_CASE("a rank of zeros changes nothing, a NaN reaches everybody", "[adasum]") {
  const Rank size = GENERATE(2, 3, 5);
  const auto one_rank = [&](double value) {
    return [value](Rank rank) { return Tensors{Values(100, rank == 1 ? value : 0.0)}; };
  };
  CHECK(run(Kind::kShm, size, DType::kFloat32, one_rank(3))[0][0] ==
        to_bytes(DType::kFloat32, Values(100, 3)));
  const auto poisoned =
      run(Kind::kShm, size, DType::kFloat32, one_rank(std::numeric_limits<double>::quiet_NaN()));
  for (const auto& mine : poisoned) {
    for (const double value : from_bytes(DType::kFloat32, mine[0])) CHECK(std::isnan(value));
  }
}

TEST_CASE("adasum of anything but floats is refused with the dtype", "[adasum]") {
  for (const DType dtype : kHostReducedDTypes) {
    const auto scaling = plan_scaling(dtype, ReduceOp::kAdasum, 1, 1, 2);
    CHECK(scaling.ok() == has_reduction(dtype, ReduceOp::kAdasum));
    if (!scaling.ok()) CHECK(scaling.status().message().find(name_of(dtype)) != std::string::npos);
  }
}

TEST_CASE("dot products are added in the documented order", "[adasum]") {
  std::vector<float> a(1003);
  std::vector<float> b(1003);
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  for (float& value : a) value = normal(generator);
  for (float& value : b) value = normal(generator);
  double channels[8] = {};
  for (size_t i = 0; i < a.size(); ++i) channels[i % 8] += static_cast<double>(a[i]) * b[i];
  const double wanted = ((channels[0] + channels[1]) + (channels[2] + channels[3])) +
                        ((channels[4] + channels[5]) + (channels[6] + channels[7]));
  CHECK(kernels::products(a.data(), b.data(), a.size()).dot == wanted);
}

}  // namespace
}  // namespace rueda::testing
