#include "collectives/host/writer_first_mutex.h"

#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <thread>

namespace rueda::host {
namespace {

// Whether a thread of this process sleeps in the kernel.
bool sleeps(pid_t thread) {
  std::ifstream in("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t name = text.rfind(") ");
  return name != std::string::npos && text[name + 2] == 'S';
}

TEST_CASE("no newcomer passes a waiting writer", "[heap]") {
  WriterFirstMutex mutex;
  mutex.lock_shared();
  std::atomic<pid_t> waits{0};
  int written = 0;
  std::thread writer([&] {
    waits = gettid();
    mutex.lock();
    ++written;
    mutex.unlock();
  });
  while (waits == 0 || !sleeps(waits)) std::this_thread::yield();
  int passed = 0;
  for (int i = 0; i < 100; ++i) {
    if (!mutex.try_lock_shared()) continue;
    ++passed;
    mutex.unlock_shared();
  }
  mutex.unlock_shared();
  mutex.lock_shared();  // behind the writer
  CHECK(written == 1);
  mutex.unlock_shared();
  writer.join();
  CHECK(passed == 0);
}

TEST_CASE("holders that share do not wait for each other", "[heap]") {
  WriterFirstMutex mutex;
  mutex.lock_shared();
  bool shared = false;
  std::thread([&] {
    shared = mutex.try_lock_shared();
    if (shared) mutex.unlock_shared();
  }).join();
  CHECK(shared);
  mutex.unlock_shared();
  mutex.lock();
  std::thread([&] { shared = mutex.try_lock_shared(); }).join();
  CHECK(!shared);
  mutex.unlock();
}

}  // namespace
}  // namespace rueda::host
