// Ranks are lost in every phase, and the others go on in the next epoch, in the same processes.
#include <signal.h>

#include <catch2/catch.hpp>

#include "tests/elastic/heal_job.h"

namespace rueda::testing {
namespace {

using Catch::Contains;
using launcher::membership::OnFailure;
using launcher::membership::Policy;
using Lines = std::vector<std::string>;

Policy shrinking(int ranks) {
  Policy policy;
  policy.elastic = true;
  policy.start_np = ranks;
  policy.min_np = 1;
  policy.on_failure = OnFailure::kShrink;
  return policy;
}

void begin(HealJob* job, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(job->answer(static_cast<uint64_t>(rank)) ==
          "epoch 1 rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
}

TEST_CASE("a rank is killed in an allreduce and the others go on without it", "[heal]") {
  HealJob job(shrinking(3), 3);
  begin(&job, 3);
  CHECK(job.ask_all({0, 1, 2}, 'a') == Lines(3, "sum of 3"));
  job.tell(0, 'a');
  job.tell(2, 'a');
  job.kill(1, SIGKILL);
  for (const uint64_t member : {0, 2}) {
    const std::string line = job.answer(member);
    CHECK_THAT(line, Contains("failed 14 lost 1 ended 1: "));
    CHECK_THAT(line, Contains("rank 1 (pid " + std::to_string(job.pid(1)) + " on here) was lost"));
  }
  CHECK(job.ask_all({0, 2}, 'n') == Lines{"epoch 2 rank 0 of 2", "epoch 2 rank 1 of 2"});
  CHECK(job.ask_all({0, 2}, 'a') == Lines(2, "sum of 2"));
  CHECK(job.ask_all({0, 2}, 'v') == Lines(2, "vote 0 seen 1"));
  job.kill(0, SIGKILL);
  CHECK_THAT(job.ask(2, 'a'), Contains("failed 14 lost 0 ended 1: "));
  CHECK(job.ask(2, 'n') == "epoch 3 rank 0 of 1");
  CHECK(job.ask(2, 'a') == "sum of 1");
  job.end({2});
  CHECK(job.ended_with == 0);
}

TEST_CASE("a rank that dies between two epochs is missed at once", "[heal]") {
  HealJob job(shrinking(4), 4);
  begin(&job, 4);
  for (const uint64_t member : {0, 1, 2}) job.tell(member, 'a');
  job.kill(3, SIGKILL);
  for (const uint64_t member : {0, 1, 2})
    CHECK_THAT(job.answer(member), Contains("failed 14 lost 3 ended 1: "));
  job.tell(0, 'n');
  job.tell(1, 'n');
  job.until_enters(1);
  job.kill(1, SIGKILL);  // it waits for 2
  job.tell(2, 'n');
  CHECK(job.answer(0) == "epoch 2 rank 0 of 2");
  CHECK(job.answer(2) == "epoch 2 rank 1 of 2");
  CHECK(job.ask_all({0, 2}, 'a') == Lines(2, "sum of 2"));
  job.end({0, 2});
}

TEST_CASE("a rank that dies in the heal leads to the next one", "[heal]") {
  HealJob job(shrinking(4), 4);
  begin(&job, 4);
  for (const uint64_t member : {0, 1, 2}) job.tell(member, 'a');
  job.kill(3, SIGKILL);
  for (const uint64_t member : {0, 1, 2}) job.answer(member);
  job.tell(1, 'n');
  job.until_enters(1);
  job.kill(1, SIGSTOP);  // it has its place, and never meets the others
  job.tell(0, 'n');
  job.tell(2, 'n');
  job.until_epoch(2);
  job.kill(1, SIGKILL);
  CHECK(job.answer(0) == "epoch 3 rank 0 of 2");
  CHECK(job.answer(2) == "epoch 3 rank 1 of 2");
  CHECK(job.ask_all({0, 2}, 'a') == Lines(2, "sum of 2"));
  job.end({0, 2});
}

TEST_CASE("process sets go on with the ranks that are left of them", "[heal]") {
  HealJob job(shrinking(4), 4);
  begin(&job, 4);
  CHECK(job.ask_all({0, 1, 2, 3}, 'p') == Lines(4, "set 1"));
  CHECK(job.ask_all({0, 1, 2, 3}, 'P') == Lines(4, "set 2"));
  for (const uint64_t member : {0, 2, 3}) job.tell(member, 'a');
  job.kill(1, SIGKILL);
  for (const uint64_t member : {0, 2, 3}) job.answer(member);
  const std::string sets = " [0 1] [2]";
  CHECK(job.ask_all({0, 2, 3}, 'n') == Lines{"epoch 2 rank 0 of 3" + sets,
                                             "epoch 2 rank 1 of 3" + sets,
                                             "epoch 2 rank 2 of 3" + sets});
  CHECK(job.ask_all({0, 2, 3}, 's') ==
        Lines{"sets 0:6 1:3 2:-3", "sets 0:6 1:3 2:-3", "sets 0:6 1:-3 2:3"});
  // The second one has nobody any more, and the first has the same ranks as the job.
  job.tell(0, 'a');
  job.tell(2, 'a');
  job.kill(3, SIGKILL);
  for (const uint64_t member : {0, 2}) job.answer(member);
  CHECK(job.ask_all({0, 2}, 'n') ==
        Lines{"epoch 3 rank 0 of 2 [0 1] []", "epoch 3 rank 1 of 2 [0 1] []"});
  CHECK(job.ask_all({0, 2}, 's') == Lines(2, "sets 0:3"));
  CHECK(job.ask_all({0, 2}, 'i') ==
        Lines{"epoch 4 rank 0 of 2 [0 1] []", "epoch 4 rank 1 of 2 [0 1] []"});
  job.end({0, 2});
}

TEST_CASE("a rank that leaves in order and fails then is lost to the others", "[heal]") {
  HealJob job(shrinking(3), 3);
  begin(&job, 3);
  CHECK(job.ask(1, 'l') == "left");
  job.tell(0, 'a');
  job.tell(2, 'a');
  job.tell(1, 'x');
  for (const uint64_t member : {0, 2}) CHECK_THAT(job.answer(member), Contains(" ended 1: "));
  CHECK(job.ask_all({0, 2}, 'n') == Lines{"epoch 2 rank 0 of 2", "epoch 2 rank 1 of 2"});
  CHECK(job.ask_all({0, 2}, 'a') == Lines(2, "sum of 2"));
  job.end({0, 2});
}

TEST_CASE("who trains on when another has ended with 0 is told at once that it cannot", "[heal]") {
  HealJob job(shrinking(3), 3);
  begin(&job, 3);
  job.tell(0, 'a');
  job.tell(2, 'a');
  job.end({1});
  for (const uint64_t member : {0, 2}) {
    const std::string line = job.answer(member);
    CHECK_THAT(line, Contains(" ended 0: "));
    CHECK_THAT(line, Contains("has been shut down without submitting it"));
  }
  CHECK(job.ended_with == -1);
  job.end({0, 2});
  CHECK(job.ended_with == 0);
}

TEST_CASE("a newcomer waits outside until the others let it in", "[heal]") {
  Policy policy = shrinking(2);
  policy.on_failure = OnFailure::kReplace;
  HealJob job(policy, 2);
  begin(&job, 2);
  job.kill(1, SIGKILL);
  CHECK_THAT(job.ask(0, 'a'), Contains("ended 1: "));
  CHECK(job.ask(0, 'n') == "epoch 2 rank 0 of 1");
  CHECK_THAT(job.answer(2), Contains("provisional rank "));
  CHECK_THAT(job.ask(2, 'a'), Contains("this rank joins a running job: collectives come after "
                                       "elastic.run has let it in"));
  CHECK(job.ask(0, 'v') == "vote 0 seen 1");
  job.tell(2, 'r');
  job.until_announced();
  CHECK_THAT(job.ask(0, 'v'), Contains("vote 258 seen 1"));
  job.tell(0, 'i');
  CHECK(job.answer(0) == "epoch 3 rank 0 of 2");
  CHECK(job.answer(2) == "epoch 3 rank 1 of 2");
  CHECK(job.ask_all({0, 2}, 'a') == Lines(2, "sum of 2"));
  job.end({0, 2});
}

TEST_CASE("fifty heals leave nothing behind in a process", "[heal]") {
  Policy policy = shrinking(2);
  policy.on_failure = OnFailure::kReplace;
  policy.most_replacements = 1000;
  HealJob job(policy, 2);
  begin(&job, 2);
  std::string after_five;
  for (uint64_t round = 1; round <= 50; ++round) {
    const uint64_t old = round, come = round + 1;
    job.kill(old, SIGKILL);
    REQUIRE_THAT(job.ask(0, 'a'), Contains("ended 1: "));
    REQUIRE_THAT(job.ask(0, 'n'), Contains("rank 0 of 1"));
    REQUIRE_THAT(job.answer(come), Contains("provisional"));
    job.tell(come, 'r');
    job.until_announced();
    job.tell(0, 'i');
    REQUIRE_THAT(job.answer(0), Contains("rank 0 of 2"));
    REQUIRE_THAT(job.answer(come), Contains("rank 1 of 2"));
    REQUIRE(job.ask_all({0, come}, 'a') == Lines(2, "sum of 2"));
    if (round == 5) after_five = job.ask(0, 'h');
  }
  CHECK(job.ask(0, 'h') == after_five);
  job.end({0, 51});
}

}  // namespace
}  // namespace rueda::testing
