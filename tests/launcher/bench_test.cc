// `rueda bench`: its arithmetic, its command line, and a whole run of two ranks.
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>

#include "collectives/base/unique_fd.h"
#include "launcher/tools/bench/figures.h"
#include "launcher/tools/bench/gradient_sets.h"
#include "launcher/tools/bench/measure.h"
#include "tests/launcher/job.h"
#include "tests/support/built.h"

using namespace rueda::bench;
using rueda::testing::Job;

namespace {

Job::Setup tool() {
  Job::Setup setup;
  setup.program = built::kRuedaTool;
  return setup;
}

int occurrences(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("gradient sets have the published numbers of tensors and parameters", "[bench]") {
  struct Expected {
    const char* name;
    size_t tensors;
    uint64_t parameters;
  };
  for (const Expected& set :
       {Expected{"resnet50", 161, 25557032}, Expected{"resnet101", 314, 44549160},
        Expected{"gpt2-small", 148, 124439808}, Expected{"bert-large", 391, 335141888},
        Expected{"vgg16", 32, 138357544}}) {
    const auto counts = gradient_counts(set.name);
    REQUIRE(counts.ok());
    CHECK(counts.value().size() == set.tensors);
    CHECK(std::accumulate(counts.value().begin(), counts.value().end(), uint64_t{0}) ==
          set.parameters);
  }
  CHECK_FALSE(gradient_counts("resnet51").ok());
}

TEST_CASE("one element that differs is counted as wrong, in every dtype", "[bench]") {
  for (const char* dtype : {"f32", "f16", "bf16", "i32", "f64"}) {
    const auto c = parse_case(std::string("broadcast:") + dtype + ":private:1K");
    REQUIRE(c.ok());
    const uint64_t count = extent_of(c.value(), 2).output;
    std::vector<uint64_t> data(128);
    fill_for_check(c.value().dtype, data.data(), count, 0);
    CHECK(count_wrong(c.value(), data.data(), count, 1, 2) == 0);
    reinterpret_cast<unsigned char*>(data.data())[700] ^= 1;
    CHECK(count_wrong(c.value(), data.data(), count, 1, 2) == 1);
  }
}

TEST_CASE("a state is NEAR or FAR only when it was so before and after", "[bench]") {
  CHECK(state_of(50, 60) == "NEAR");
  CHECK(state_of(200, 300) == "FAR");
  CHECK(state_of(50, 200) == "mixed");
  CHECK(state_of(120, 120) == "mixed");
  CHECK(state_of(0, 0) == "none");
}

TEST_CASE("rueda bench refuses wrong arguments in one line that names them", "[bench]") {
  const std::vector<std::vector<std::string>> wrong = {{"--bytes", "3X"},
                                                       {"--op", "allredduce"},
                                                       {"--dtype", "f8"},
                                                       {"--memory", "shared"},
                                                       {"--gradients", "resnet9"},
                                                       {"--np", "0"},
                                                       {"--foo"},
                                                       {"--case", "allreduce:4"},
                                                       {"--bytes", "17G"}};
  for (std::vector<std::string> arguments : wrong) {
    const std::string word = arguments.back();
    INFO(word);
    arguments.insert(arguments.begin(), "bench");
    Job refused(arguments, tool());
    CHECK(refused.wait() == 2);
    CHECK_THAT(refused.err(), Catch::StartsWith("rueda bench: "));
    CHECK_THAT(refused.err(), Catch::Contains(word == "0" ? "--np" : word));
  }
}

TEST_CASE("rueda bench starts two ranks by itself and every result is exact", "[bench]") {
  Job job({"bench", "--op", "allreduce,allgather,reducescatter,broadcast,alltoall", "--dtype",
           "f32,bf16", "--memory", "private", "--bytes", "8,1000,1M", "--iterations", "2", "--json",
           "-"},
          tool());
  CHECK(job.wait() == 0);
  INFO(job.err());
  // 5 operations, 2 dtypes, 3 sizes; and the limit beside each 1M.
  CHECK(occurrences(job.out(), "\"wrong\": 0") == 5 * 2 * 3 + 5 * 2);
  CHECK(occurrences(job.out(), "unavailable") == 0);
}

TEST_CASE("rueda bench measures persistent operations of every kind in both memories", "[bench]") {
  const bool anew = GENERATE(false, true);
  std::vector<std::string> arguments = {"bench",
                                        "--op",
                                        "allreduce,allgather,reducescatter,broadcast,alltoall",
                                        "--np",
                                        "3",
                                        "--memory",
                                        "private,arena",
                                        "--bytes",
                                        "12,100K",
                                        "--iterations",
                                        "2",
                                        "--json",
                                        "-"};
  if (anew) arguments.push_back("--no-prepare");
  arguments.push_back("--no-pin");
  Job job(arguments, tool());
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  // 5 operations, 2 memories, 2 sizes.
  CHECK(occurrences(job.out(), "\"wrong\": 0") == 5 * 2 * 2);
  const std::string manner = anew ? "call" : "persistent";
  CHECK(occurrences(job.out(), "\"manner\": \"" + manner + "\"") == 5 * 2 * 2);
}

TEST_CASE("what an operation does not write into the caller's memory is wrong", "[bench]") {
  // Leaves the last element as it was after the first run: equal, by chance, to what must come.
  class Forgetful final : public Subject {
   public:
    rueda::Status begin(const Case&, const std::vector<Tensor>& tensors) override {
      tensor_ = tensors.front();
      runs_ = 0;
      return {};
    }
    rueda::Status run() override {
      const uint64_t count = tensor_.output_count - (runs_++ == 0 ? 0 : 1);
      std::copy_n(static_cast<float*>(tensor_.input), count, static_cast<float*>(tensor_.output));
      return {};
    }
    void end() override {}

   private:
    Tensor tensor_;
    int runs_ = 0;
  };
  const rueda::UniqueFd file(memfd_create("bench_test", MFD_CLOEXEC));
  auto meeting = Meeting::open("/proc/self/fd/" + std::to_string(file.get()), 0, 1);
  REQUIRE(meeting.ok());
  Forgetful subject;
  Effort effort;
  effort.iterations = 1;
  for (const char* text : {"allgather:f32:private:8", "alltoall:f32:private:8"}) {
    const auto row = measure(&subject, &meeting.value(), parse_case(text).value(), effort);
    REQUIRE(row.ok());
    CHECK(row.value().wrong == 1);
  }
}

TEST_CASE("rueda bench measures all gradients of a model", "[bench]") {
  Job job({"bench", "--case", "gradients:f32:private:resnet50", "--iterations", "1"}, tool());
  CHECK(job.wait() == 0);
  CHECK_THAT(job.out(), Catch::Contains("resnet50") && Catch::Contains("exact"));
}

TEST_CASE("rueda bench measures the ranks of a job that ruedarun started", "[bench]") {
  Job job({"-np", "3", "--no-prefix", built::kRuedaTool, "bench", "--case",
           "allreduce:f32:private:4", "--iterations", "2"});
  CHECK(job.wait() == 0);
  CHECK_THAT(job.out(), Catch::Contains("3 ranks") && Catch::Contains("exact"));
}

TEST_CASE("a figure is met when the median of its rounds reaches the goal", "[bench]") {
  const Figure fast = at_least("A10", "speed", spread_of({0.5, 1.2, 1.1}), 1.1, "x");
  CHECK(fast.verdict == Verdict::kMet);
  CHECK(fast.measured == "1.10x (0.50 to 1.20)");
  CHECK(at_least("A10", "speed", spread_of({0.5, 1.2, 1.1}), 1.11, "x").verdict == Verdict::kShort);
  CHECK(at_most("A7", "memory", spread_of({0.55}), 0.55, "x").verdict == Verdict::kMet);
  CHECK(at_most("A7", "memory", spread_of({0.56}), 0.55, "x").verdict == Verdict::kShort);
  CHECK_THAT(table_of({fast}),
             Catch::Contains("A10") && Catch::Contains(">= 1.10x") && Catch::EndsWith("met\n"));
}

TEST_CASE("rueda bench attention gives every figure of the attention page", "[bench]") {
  Job job({"bench", "attention", "--quick", "--rounds", "1", "--json", "-"}, tool());
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  for (const char* id : {"A5", "A6", "A7", "A8", "A9", "A10", "A10b", "A11", "A14", "A16", "A17"})
    CHECK_THAT(job.out(), Catch::Contains("\"id\": \"" + std::string(id) + "\""));
  // What is counted holds on every machine.
  for (const auto& line : job.out_lines()) {
    for (const char* counted : {"\"A6\"", "\"A7\"", "\"A8\""}) {
      INFO(line);
      if (line.find(counted) != std::string::npos) CHECK(line.find("SHORT") == std::string::npos);
    }
  }
}
