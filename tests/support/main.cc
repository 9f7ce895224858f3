// Catch2's main. Each case's name goes to stderr when it begins, unless a person looks at it: of a
// program that had to be ended from outside this says where it hung.
#define CATCH_CONFIG_MAIN
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

namespace {

struct Names : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    TestEventListenerBase::testCaseStarting(info);
    if (isatty(STDERR_FILENO) == 0) std::fprintf(stderr, "case: %s\n", info.name.c_str());
  }
};
CATCH_REGISTER_LISTENER(Names)

}  // namespace
