// Memory that is not there is an error, never a crash.
#include <catch2/catch.hpp>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map much more
// As `ulimit -v`: nothing more than what there is, and a little.
void limit_address_space() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + (64 << 10);
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
}

TEST_CASE("a runtime that gets no memory for its flight recorder says so") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto worlds = make_worlds(Kind::kInproc, 1, Config());
    limit_address_space();
    const auto made = engine::Runtime::create(Config(), std::move(worlds.front()->joined));
    const bool said = made.status().code() == Code::kResourceExhausted &&
                      has(made.status().message(), "ulimit -v");
    _exit(said ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

}  // namespace
}  // namespace rueda::testing
