#include "collectives/host/lent_blocks.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <array>
#include <cstring>
#include <thread>

#include "collectives/host/heap.h"
#include "collectives/host/redirect.h"
#include "tests/support/built.h"

namespace rueda::host {
namespace {

constexpr size_t kBytes = 100 << 10;

struct Other {
  Other() {
    void* const library = dlopen(built::kOtherLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) FAIL(dlerror());
    allocate = reinterpret_cast<void* (*)(size_t)>(dlsym(library, "other_allocate"));
    free = reinterpret_cast<void (*)(void*)>(dlsym(library, "other_free"));
  }
  void* (*allocate)(size_t) = nullptr;
  void (*free)(void*) = nullptr;
};

const Other& other() {
  static const Other library;
  return library;
}

Heap& lending_heap() {
  auto made = Heap::of_process(64 << 20);
  if (!made.ok()) FAIL(made.status().to_string());
  other();
  const Status status = lent_blocks::lend_to("libother_library.so");
  if (!status.ok()) FAIL(status.to_string());
  return *made.value();
}

TEST_CASE("only a library that calls the functions by name is redirected", "[lent]") {
  lending_heap();
  const Redirection known{"free", nullptr}, unknown{"no_such_function", nullptr};
  CHECK(redirect_calls("libno_such_library.so", std::array{known}) == -1);
  CHECK(redirect_calls("libother_library.so", std::array{known, unknown}) == -1);
  other().free(other().allocate(kBytes));  // with the null that was not written this would end here
}

TEST_CASE("expected sizes are lent between begin and end, and kept for the next call", "[lent]") {
  Heap& heap = lending_heap();
  const size_t before = heap.in_use();
  lent_blocks::expect(kBytes, 2);
  void* early = other().allocate(kBytes);
  CHECK_FALSE(heap.contains(early));
  lent_blocks::begin();
  void* first = other().allocate(kBytes);
  void* second = other().allocate(kBytes);
  void* third = other().allocate(kBytes);
  void* larger = other().allocate(kBytes + 1);
  CHECK(heap.contains(first));
  CHECK(heap.contains(second));
  CHECK(first != second);
  CHECK_FALSE(heap.contains(third));  // two were expected
  CHECK_FALSE(heap.contains(larger));
  void* elsewhere = nullptr;
  std::thread([&] { elsewhere = other().allocate(kBytes); }).join();
  CHECK_FALSE(heap.contains(elsewhere));
  std::memset(first, 1, kBytes);
  other().free(first);
  void* again = other().allocate(kBytes);
  CHECK(again == first);
  lent_blocks::end();
  void* late = other().allocate(kBytes);
  CHECK_FALSE(heap.contains(late));

  other().free(again);
  CHECK(heap.in_use() > before);    // one is lent, one is kept
  lent_blocks::expect(kBytes, -2);  // what is lent goes back when it is freed
  CHECK(heap.in_use() > before);
  lent_blocks::expect(kBytes, 1);  // others' do not count against what is wanted now
  lent_blocks::begin();
  void* next = other().allocate(kBytes);
  CHECK(heap.contains(next));
  lent_blocks::end();
  std::thread([&] { other().free(second); }).join();
  other().free(next);
  CHECK(heap.in_use() > before);
  lent_blocks::expect(kBytes, -1);
  CHECK(heap.in_use() == before);
  for (void* memory : {early, third, larger, elsewhere, late}) other().free(memory);
}

TEST_CASE("small blocks are not lent, and a heap without room lends none", "[lent]") {
  Heap& heap = lending_heap();
  const size_t before = heap.in_use(), huge = size_t{63} << 20;
  lent_blocks::expect(lent_blocks::kLeastBytes - 64, 1);
  lent_blocks::expect(huge, 3);
  lent_blocks::begin();
  void* small = other().allocate(lent_blocks::kLeastBytes - 64);
  CHECK_FALSE(heap.contains(small));
  void* one = other().allocate(huge);
  void* two = other().allocate(huge);
  CHECK(heap.contains(one));
  REQUIRE(two != nullptr);
  CHECK_FALSE(heap.contains(two));
  lent_blocks::end();
  for (void* memory : {small, one, two}) other().free(memory);
  lent_blocks::expect(huge, -3);
  CHECK(heap.in_use() == before);
}

TEST_CASE("a forked child is lent nothing and frees nothing", "[lent]") {
  Heap& heap = lending_heap();
  lent_blocks::expect(kBytes, 2);
  lent_blocks::begin();
  auto* lent = static_cast<unsigned char*>(other().allocate(kBytes));
  REQUIRE(heap.contains(lent));
  std::memset(lent, 3, kBytes);
  const pid_t child = fork();
  if (child == 0) {
    const bool reads = lent[kBytes - 1] == 3;
    std::memset(lent, 4, kBytes);
    other().free(lent);
    void* own = other().allocate(kBytes);
    const bool is_private = !heap.contains(own);
    other().free(own);
    _exit(reads && is_private ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(lent[0] == 3);
  lent_blocks::end();
  other().free(lent);
  lent_blocks::expect(kBytes, -2);
}

}  // namespace
}  // namespace rueda::host
