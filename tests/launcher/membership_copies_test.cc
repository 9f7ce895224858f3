// Members that leave in order, and have what nobody else has: who stays until another has a copy.
#include <catch2/catch.hpp>

#include "tests/launcher/membership_job.h"

namespace rueda::launcher::membership {
namespace {

using wire::EpochAnswer;

Members removed_in(const Job& job) {
  Members members;
  for (const Answer& answer : job.got<Answer>()) {
    if (answer.common->answer == EpochAnswer::kRemoved) members.push_back(answer.member);
  }
  return members;
}

// Four hosts with a rank each, in a circle: each has its copy with the next.
Job circle() {
  Job job(elastic(4, 1), {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}});
  job.all_first();
  job.mirrors = {{0, {1}}, {1, {2}}, {2, {3}}, {3, {0}}};
  return job;
}

// All that are in the epoch come to a commit.
void commit(Job* job, const Members& members, int64_t number) {
  for (const MemberId id : members) job->at_commit(id, number);
}

TEST_CASE(
    "of two hosts that go together, one of which has the other's copy, one stays a commit longer",
    "[membership]") {
  Job job = circle();
  job.discover({{"c", 1}, {"d", 1}});
  commit(&job, {0, 1, 2, 3}, 4);
  CHECK(removed_in(job) == Members{0});
  CHECK(job.entered().size() == 3);
  CHECK(job.epoch_of(1).branch == wire::EpochBranch::kGoOn);
  REQUIRE(job.got<Announce>().size() == 1);  // it is still to leave
  job.mirrors = {{1, {2}}, {2, {3}}, {3, {1}}};
  commit(&job, {1, 2, 3}, 5);
  CHECK(removed_in(job) == Members{1});
  CHECK(job.entered().size() == 2);
  CHECK(job.got<Announce>().empty());
}

TEST_CASE("hosts whose copies are with who stays go at once", "[membership]") {
  Job job = circle();
  job.discover({{"b", 1}, {"d", 1}});
  commit(&job, {0, 1, 2, 3}, 4);
  CHECK(removed_in(job) == Members{0, 2});
  CHECK(job.entered().size() == 2);
}

TEST_CASE("a rank whose copy was lost stays until another has one", "[membership]") {
  Job job = circle();
  job.on(HostDrained{"a"});
  job.die(1);
  for (const MemberId id : {0, 2, 3}) job.back(id, 4);
  job.idle(2);
  CHECK(removed_in(job).empty());
  CHECK(job.decider.epoch() == 2);
  job.mirrors = {{0, {2}}, {2, {3}}, {3, {0}}};
  commit(&job, {0, 2, 3}, 5);
  CHECK(removed_in(job) == Members{0});
}

TEST_CASE("one that has no copy yet stays; when all go, newcomers are waited for", "[membership]") {
  Job job(elastic(2, 1), {{"a", 1}, {"b", 1}});
  job.all_first();
  job.mirrors = {{0, {1}}, {1, {0}}};
  job.discover({{"c", 1}});
  REQUIRE(job.started() == Members{2});
  commit(&job, {0, 1}, 4);
  CHECK(job.got<Answer>().empty());
  job.ready(2);
  CHECK(removed_in(job) == Members{0});
  CHECK(job.entered().size() == 2);
  job.mirrors = {{1, {1}}, {2, {1}}};
  commit(&job, {1, 2}, 5);
  CHECK(removed_in(job).empty());
  CHECK(job.entered().size() == 2);
  job.mirrors = {{1, {2}}, {2, {1}}};
  commit(&job, {1, 2}, 6);
  CHECK(removed_in(job) == Members{1});
}

}  // namespace
}  // namespace rueda::launcher::membership
