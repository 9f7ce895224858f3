// A rank is killed in each step of forward and of backward: every other rank is told the pass, the
// step and the rank.
#include <catch2/catch.hpp>

#include "tests/launcher/job.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

struct Death {
  int forward = -1, backward = -1;  // the call of the victim's kernel
  std::vector<std::string> more = {};
  bool tcp = false;
};

void check_told(const Death& death, int size, int victim, const std::string& where) {
  std::vector<std::string> words = {"-np",
                                    std::to_string(size),
                                    "--no-prefix",
                                    built::kFaultProgram,
                                    std::to_string(victim),
                                    std::to_string(death.forward),
                                    std::to_string(death.backward)};
  words.insert(words.end(), death.more.begin(), death.more.end());
  Job::Setup setup;
  if (death.tcp) setup.environment = {"RUEDA_TRANSPORT=tcp"};
  Job job(words, setup);
  const int code = job.wait();
  INFO("forward " << death.forward << ", backward " << death.backward << "\n"
                  << job.out() << job.err());
  CHECK(code == 128 + 9);
  const std::string lost = "rank " + std::to_string(victim);
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const std::string begin = "rank " + std::to_string(rank) + " told: ";
    std::string line;
    for (const std::string& one : job.out_lines()) {
      if (one.find(begin) == 0) line = one.substr(begin.size());
    }
    CHECK_THAT(line,
               Catch::StartsWith("attention ") && Catch::Contains(where) && Catch::Contains(lost));
  }
  CHECK(job.wait_until_gone());
}

}  // namespace

TEST_CASE("a rank killed in each step of forward and backward is named with pass and step",
          "[attention][failure]") {
  constexpr int kSize = 4;
  for (int step = 0; step < kSize; ++step) {
    const int victim = (step + 1) % kSize;
    check_told({step, -1, {}, step % 2 == 1}, kSize, victim, ", step ");
    check_told({-1, step, {}, step % 2 == 0}, kSize, victim, ", step ");
  }
}

TEST_CASE("so it is when queries travel, and when heads are exchanged", "[attention][failure]") {
  check_told({1, -1, {"rotate=q"}}, 3, 2, ", step ");
  check_told({-1, 2, {"rotate=q"}}, 3, 0, ", step ");
  check_told({0, -1, {"ulysses=2"}}, 2, 1, "exchange of ");
  check_told({-1, 1, {"ulysses=2"}}, 2, 0, "exchange of ");
}

}  // namespace rueda::testing
