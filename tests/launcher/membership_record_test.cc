// Who takes over from a record that is older than what was said last, and who asks twice.
#include "launcher/membership/membership.h"

#include <catch2/catch.hpp>

#include "tests/launcher/membership_job.h"

namespace rueda::launcher::membership {
namespace {

using Catch::Contains;
using wire::EnterCause;

Policy three() {
  Policy policy;
  policy.elastic = true;
  policy.start_np = 3;
  return policy;
}

TEST_CASE("what a member says from before an epoch that it was told of does not count",
          "[membership]") {
  Policy policy = three();
  policy.on_failure = OnFailure::kShrink;
  Job job(policy, {{"a", 3}});
  job.all_first();
  job.die(2);
  job.back(0, 4);
  job.back(1, 4);
  job.idle(1);
  REQUIRE(job.decider.epoch() == 2);
  job.die(0);
  job.enter(1, EnterCause::kEpochEnded, 4, 1);  // its wait was interrupted; it may be in 2 by now
  CHECK(job.epoch_of(1).epoch == 2);
  job.idle(1);
  CHECK(job.decider.epoch() == 2);
  job.enter(1, EnterCause::kEpochEnded, 5, 2);
  job.idle(1);
  CHECK(job.decider.epoch() == 3);
}

TEST_CASE("orders to start that may have been lost are repeated", "[membership]") {
  Job job(three(), {{"a", 2}, {"b", 2}});
  const auto before = Job::of<StartMember>(job.all);
  REQUIRE(before.size() == 4);  // as many as there are slots
  job.first(0);
  const std::string record = job.decider.record();
  auto next = MembershipDecider::resume(three(), record);
  REQUIRE(next != nullptr);
  const auto again = Job::of<StartMember>(next->on(Tick{}, Time{}));
  REQUIRE(again.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(again[i].member == before[i + 1].member);
    CHECK(again[i].host == before[i + 1].host);
    CHECK(again[i].slot == before[i + 1].slot);
    CHECK(again[i].place.rank == before[i + 1].place.rank);
    CHECK(again[i].place.local_rank == before[i + 1].place.local_rank);
    CHECK(again[i].place.cross_size == before[i + 1].place.cross_size);
  }
}

TEST_CASE("so are those of newcomers and to stop", "[membership]") {
  Policy policy = three();
  policy.elastic_timeout = Seconds(5);
  Job job(policy, {{"a", 3}});
  job.all_first();
  job.die(2);
  REQUIRE(job.started() == std::vector<MemberId>{3});
  const StartMember before = job.got<StartMember>()[0];
  job.back(0, 1);
  job.idle(6);  // rank 1 does not come: it is stopped
  auto next = MembershipDecider::resume(policy, job.decider.record());
  REQUIRE(next != nullptr);
  const auto actions = next->on(Tick{}, Time{});
  REQUIRE(Job::of<StopMember>(actions).size() == 1);
  CHECK(Job::of<StopMember>(actions)[0].member == 1);
  const auto starts = Job::of<StartMember>(actions);
  REQUIRE_FALSE(starts.empty());
  CHECK(starts[0].member == 3);
  CHECK(starts[0].slot == 2);
  CHECK(starts[0].place.local_rank == before.place.local_rank);
  CHECK(starts[0].place.local_size == before.place.local_size);
}

TEST_CASE("who takes over does not begin anew: commits may have been made since", "[membership]") {
  Job job(three(), {{"a", 3}});
  auto next = MembershipDecider::resume(three(), job.decider.record());
  REQUIRE(next != nullptr);
  job.decider = std::move(*next);
  for (const MemberId m : {0, 1, 2}) job.die(m);
  for (const MemberId m : {3, 4, 5}) job.ready(m);
  job.idle(5);
  CHECK_THAT(job.ended(), Contains("no rank is left that holds the state"));
}

TEST_CASE("a job that is over or fails ends under who takes over as well", "[membership]") {
  Policy policy;
  policy.start_np = 2;
  Job job(policy, {{"a", 2}});
  job.all_first();
  job.on(MemberLost{1, "killed"});
  const bool over = GENERATE(true, false);
  if (over) job.on(MemberEnded{1, 9, true, "killed"});
  auto next = MembershipDecider::resume(policy, job.decider.record());
  REQUIRE(next != nullptr);
  Time now(std::chrono::seconds(5));
  auto ends = Job::of<EndJob>(next->on(Tick{}, now));
  CHECK(ends.size() == (over ? 1U : 0U));
  if (!over) ends = Job::of<EndJob>(next->on(MemberEnded{1, 9, true, "killed"}, now));
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].exit_code == 9);
  CHECK_THAT(ends[0].text, Contains("rank 1 on a: killed"));
}

TEST_CASE("who was stopped after the last record is lost to who takes over, and no success",
          "[membership]") {
  Policy policy = three();
  policy.min_np = 1;
  policy.on_failure = OnFailure::kBlacklist;
  Job job(policy, {{"a", 2}, {"b", 1}});
  job.all_first();
  const std::string record = job.decider.record();
  job.on(MemberLost{0, "killed"});
  REQUIRE(job.stopped() == std::vector<MemberId>{1});
  auto next = MembershipDecider::resume(policy, record);
  REQUIRE(next != nullptr);
  job.decider = std::move(*next);
  const int code = GENERATE(0, 143);
  job.on(MemberEnded{1, code, false, "it ended", true});
  CHECK(job.got<EndEpoch>().size() == 1);
  CHECK(job.said().empty());
  job.die(0);
  job.back(2, 1);
  job.idle(1);
  CHECK(job.entered() == std::vector<MemberId>{2});
  CHECK(job.ended().empty());
}

TEST_CASE("who takes over knows of drained hosts that no rank is on", "[membership]") {
  Job job(three(), {{"a", 3}});
  job.all_first();
  job.on(HostDrained{"b"});  // it was awaited
  job.on(HostsFound{{{"a", 3, "", 0}}, {"a", "b"}});
  const auto next = MembershipDecider::resume(three(), job.decider.record());
  REQUIRE(next != nullptr);
  CHECK(next->is_drained("b"));
  CHECK_FALSE(next->is_drained("a"));
  const std::vector<HostSlots> found = next->found_hosts();
  REQUIRE(found.size() == 2);
  CHECK(found[1].host == "b");
}

TEST_CASE("who takes over announces what no member has heard of", "[membership]") {
  Policy policy = three();
  Job job(policy, {{"a", 3}});
  job.all_first();
  const std::string record = job.decider.record();
  job.on(HostDrained{"a"});
  job.discover({{"a", 3}, {"b", 1}});
  job.ready(3);
  const auto heard = Job::of<Announce>(job.all);
  REQUIRE(heard.size() == 2);
  auto next = MembershipDecider::resume(policy, record);
  REQUIRE(next != nullptr);
  const auto told = Job::of<Announce>(next->on(HostDrained{"a"}, Time{}));
  REQUIRE(told.size() == 1);
  CHECK(told[0].serial > heard.back().serial);
}

}  // namespace
}  // namespace rueda::launcher::membership
