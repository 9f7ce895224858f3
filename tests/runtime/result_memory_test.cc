#include "runtime/engine/result_memory.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <set>
#include <vector>

namespace rueda::engine {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST_CASE("a result that was dropped lends its memory to the next of about its size", "[results]") {
  if (ResultMemory::kept_bytes() == 0) {
    const ResultMemory probe(kMiB);
  }
  if (ResultMemory::kept_bytes() == 0) return;  // under sanitizers nothing is kept
  const std::byte* first = nullptr;
  {
    ResultMemory block(3 * kMiB);
    first = block.data();
    CHECK(reinterpret_cast<uintptr_t>(first) % 64 == 0);
    ResultMemory moved(std::move(block));
    CHECK(moved.data() == first);
    CHECK(block.data() == nullptr);
  }
  ResultMemory second(3 * kMiB - 1000);
  CHECK(second.data() == first);
  ResultMemory third(3 * kMiB);
  CHECK(third.data() != first);
  ResultMemory small(100);
  second = std::move(small);
  CHECK(second.data() != first);
}

TEST_CASE("only a few blocks are kept, and never more bytes than the limit", "[results]") {
  {
    std::vector<ResultMemory> many;
    for (size_t i = 0; i < 12; ++i) many.emplace_back((i + 1) * kMiB);
    std::set<const std::byte*> places;
    for (const ResultMemory& block : many) places.insert(block.data());
    CHECK(places.size() == many.size());
  }
  CHECK(ResultMemory::kept_bytes() <= 4 * 12 * kMiB);
  {
    const ResultMemory large(ResultMemory::kMostKept / 2 + kMiB);
    const ResultMemory other(ResultMemory::kMostKept / 2 + 2 * kMiB);
    const ResultMemory huge(ResultMemory::kMostKept + kMiB);
  }
  CHECK(ResultMemory::kept_bytes() <= ResultMemory::kMostKept);
}

// Sanitizers end the process that asks for so much, if they are not told otherwise.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("what there is no memory for is nothing, and ends nobody", "[results]") {
  const ResultMemory none(size_t{1} << 62);
  CHECK(none.data() == nullptr);
}
#endif

}  // namespace
}  // namespace rueda::engine
