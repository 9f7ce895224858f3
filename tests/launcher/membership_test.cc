// The decider on jobs of fixed size, losses and heals.
#include "launcher/membership/membership.h"

#include <catch2/catch.hpp>

#include "tests/launcher/membership_job.h"

namespace rueda::launcher::membership {
namespace {

using Catch::Contains;
using wire::EnterCause;
using wire::EpochAnswer;
using wire::EpochBranch;

TEST_CASE("a job of fixed size starts its ranks host by host and answers each at once",
          "[membership]") {
  Policy policy;
  policy.start_np = 3;
  Job job(policy, {{"a", 2}, {"b", 4}});
  const auto starts = job.got<StartMember>();
  REQUIRE(starts.size() == 3);
  CHECK(starts[2].host == "b");
  CHECK(starts[2].slot == 0);
  CHECK(starts[2].place.rank == 2);
  CHECK(starts[2].place.local_rank == 0);
  CHECK(starts[2].place.local_size == 1);
  CHECK(starts[2].place.cross_rank == 1);
  CHECK(starts[2].place.cross_size == 2);
  CHECK(starts[1].place.local_size == 2);
  CHECK(starts[1].place.cross_size == 1);
  job.first(2);
  CHECK(job.entered() == Members{2});
  CHECK(job.epoch_of(2).epoch == 1);
  CHECK(job.epoch_of(2).rank == 2);
  CHECK(job.epoch_of(2).size == 3);
  CHECK(job.epoch_of(2).branch == EpochBranch::kFresh);
}

TEST_CASE("shutdown and init again: all get the same next epoch, nobody waits", "[membership]") {
  Policy policy;
  policy.start_np = 2;
  Job job(policy, {{"a", 2}});
  job.all_first();
  job.enter(1, EnterCause::kLeft);
  CHECK(job.epoch_of(1).epoch == 2);
  CHECK(job.epoch_of(1).rank == 1);
  job.enter(0, EnterCause::kLeft, -1, 1);
  CHECK(job.epoch_of(0).epoch == 2);
  CHECK(job.epoch_of(0).rank == 0);
  job.enter(0, EnterCause::kLeft, -1, 2);
  CHECK(job.epoch_of(0).epoch == 3);
  job.enter(0, EnterCause::kLeft, -1, 2);  // its wait was interrupted
  CHECK(job.epoch_of(0).epoch == 3);
}

TEST_CASE("in a job of fixed size the first loss ends epoch and job", "[membership]") {
  Policy policy;
  policy.start_np = 3;
  Job job(policy, {{"a", 3}});
  job.all_first();
  job.on(MemberLost{1, "killed by signal 9"});
  REQUIRE(job.got<EndEpoch>().size() == 1);
  CHECK(job.got<EndEpoch>()[0].epoch == 1);
  CHECK(job.got<EndEpoch>()[0].lost == 1);
  CHECK(job.ended() == "");  // its exit code is awaited
  job.back(0, 4);
  CHECK(job.entered().empty());
  job.on(MemberEnded{1, 137, true, "killed"});
  CHECK_THAT(job.ended(), Contains("137: rank 1 on a: killed by signal 9"));
  CHECK(job.started().empty());
}

TEST_CASE("an exit code that never comes is not awaited for ever", "[membership]") {
  Policy policy;
  policy.start_np = 2;
  Job job(policy, {{"a", 2}});
  job.all_first();
  job.on(MemberLost{1, "silent"});
  job.idle(10);
  CHECK_THAT(job.ended(), Contains("1: rank 1 on a: silent"));
}

TEST_CASE("every rank's end with code 0 is the job's", "[membership]") {
  Policy policy;
  policy.start_np = 2;
  Job job(policy, {{"a", 2}});
  job.first(0);
  job.exit(0);
  CHECK(job.ended() == "");
  job.exit(1);  // without init, too
  CHECK(job.ended() == "0: ");
}

TEST_CASE("survivors go on when all have come back, from the newest commit", "[membership]") {
  Policy policy = elastic(4);
  policy.on_failure = OnFailure::kShrink;
  Job job(policy, {{"a", 4}});
  job.all_first();
  job.sets = {{0, 1}, {1}, {2, 3, 0}};
  job.die(1);
  REQUIRE(job.got<EndEpoch>().size() == 1);
  job.pass(1);
  job.back(0, 6);
  job.back(3, 7);
  CHECK(job.entered().empty());
  job.back(2, 7);
  CHECK(job.entered() == Members{2, 0, 3});  // rank 0 has the newest commit
  const wire::NewEpoch epoch = job.epoch_of(0);
  CHECK(epoch.epoch == 2);
  CHECK(epoch.rank == 1);
  CHECK(epoch.size == 3);
  CHECK(epoch.target == 7);
  CHECK(epoch.branch == EpochBranch::kRestore);
  CHECK_FALSE(epoch.fresh_memory);
  CHECK(epoch.members[0].has_target);
  CHECK_FALSE(epoch.members[1].has_target);
  CHECK(epoch.members[0].last_rank == 2);
  CHECK(epoch.process_sets == std::vector<std::vector<int32_t>>{{1}, {}, {0, 1, 2}});
  CHECK_THAT(job.said(),
             Contains("rank 1 on a was lost") && Contains("3 ranks go on from commit 7"));
  CHECK(job.started().empty());
}

TEST_CASE("what is said of a loss names all that were lost, and waits for their causes",
          "[membership]") {
  Policy policy = elastic(4);
  policy.on_failure = OnFailure::kShrink;
  Job job(policy, {{"a", 4}});
  job.all_first();
  job.on(MemberLost{1, "it ended", false});
  job.on(MemberLost{3, "it ended too", false});
  job.back(0, 5);
  job.back(2, 5);
  job.pass(2);  // the heal does not wait for what has not been reaped
  REQUIRE(job.entered() == Members{0, 2});
  const std::string end = "; 2 ranks go on from commit 5\n";
  SECTION("known late") {
    CHECK(job.said().empty());
    job.on(MemberLost{1, "killed by signal 9"});
    CHECK(job.said().empty());
    job.on(MemberEnded{1, 137, true, "killed by signal 9"});
    CHECK(job.said().empty());
    job.on(MemberEnded{3, 7, true, ""});
    CHECK(job.said() ==
          "rank 1 on a was lost: killed by signal 9; rank 3 on a was lost: it ended too" + end);
  }
  SECTION("known after the next loss") {
    job.on(MemberLost{2, "it ended as well", false});
    job.on(MemberLost{1, "killed by signal 9"});
    job.on(MemberLost{3, "killed by signal 11"});
    CHECK(job.said() ==
          "rank 1 on a was lost: killed by signal 9; "
          "rank 3 on a was lost: killed by signal 11" +
              end);
    job.on(MemberEnded{2, 137, true, ""});
    job.back(0, 5);
    job.pass(1);
    CHECK(job.entered() == Members{0});
    CHECK(job.said() == "rank 1 on a was lost: it ended as well; 1 rank goes on from commit 5\n");
  }
  SECTION("never known") {
    job.idle(3);
    CHECK(job.said() == "rank 1 on a was lost: it ended; rank 3 on a was lost: it ended too" + end);
  }
}

TEST_CASE("after a loss there is a last call for others, and one end for all", "[membership]") {
  Policy policy = elastic(4);
  policy.on_failure = OnFailure::kShrink;
  Job job(policy, {{"a", 4}});
  job.all_first();
  job.die(1);
  for (const MemberId member : {0, 2, 3}) job.back(member, 1);
  CHECK(job.entered().empty());
  job.pass(0.01);
  job.die(3);
  CHECK(job.got<EndEpoch>().empty());
  job.pass(0.015);
  CHECK(job.entered().empty());
  job.idle(1);
  CHECK(job.entered() == Members{0, 2});
  CHECK(job.decider.epoch() == 2);
}

TEST_CASE("a death in a heal begins the next one, with another number", "[membership]") {
  Policy policy = elastic(3);
  policy.on_failure = OnFailure::kShrink;
  Job job(policy, {{"a", 3}});
  job.all_first();
  job.die(2);
  job.back(0, 1);
  job.back(1, 1);
  job.idle(1);
  CHECK(job.decider.epoch() == 2);
  job.die(0);
  CHECK(job.got<EndEpoch>()[0].epoch == 2);
  job.enter(1, EnterCause::kEpochEnded, 1);
  job.idle(1);
  CHECK(job.epoch_of(1).epoch == 3);
  CHECK(job.epoch_of(1).size == 1);
}

TEST_CASE("a lost member's threads are waited for; without them memory is fresh", "[membership]") {
  Policy policy = elastic(2);
  policy.on_failure = OnFailure::kShrink;
  const bool fenced = GENERATE(true, false);
  Job job(policy, {{"a", 2}});
  job.all_first();
  job.on(MemberLost{1, "killed"});
  job.back(0, 1);
  job.pass(1.5);
  CHECK(job.entered().empty());
  if (fenced) job.on(MemberFenced{1});
  if (!fenced) job.idle(1);
  CHECK(job.entered() == Members{0});
  CHECK(job.epoch_of(0).fresh_memory == !fenced);
}

TEST_CASE("a loss is told when its cause is known, though its process is gone by then",
          "[membership]") {
  Policy policy = elastic(2);
  policy.on_failure = OnFailure::kShrink;
  Job job(policy, {{"a", 2}});
  job.all_first();
  job.on(MemberLost{1, "it ended", false});
  job.on(MemberFenced{1});
  job.back(0, 1);
  job.idle(1);
  CHECK(job.entered() == Members{0});
  CHECK(job.said().empty());
  const std::string told =
      "rank 1 on a was lost: killed by signal 9; 1 rank goes on from commit 1\n";
  SECTION("it is reaped") {
    job.on(MemberEnded{1, 137, true, "killed by signal 9"});
    CHECK(job.said() == told);
    job.idle(5);
    CHECK(job.said().empty());
  }
  SECTION("more is known") {
    job.on(MemberLost{1, "killed by signal 9"});
    CHECK(job.said() == told);
  }
  SECTION("its cause never comes") {
    job.idle(2);
    CHECK(job.said() == "rank 1 on a was lost: it ended; 1 rank goes on from commit 1\n");
  }
  SECTION("the job is over before") {
    job.on(MemberEnded{0, 0, false, ""});
    CHECK(job.ended() == "0: ");
    CHECK(job.said().empty());
    LossLine line = job.got<EndJob>().at(0).unsaid.at(0);
    CHECK_FALSE(line.is_known());
    line.know_more(1, "killed by signal 9", true);
    CHECK(line.text() + "\n" == told);
  }
}

TEST_CASE("who says that the epoch has ended ends it for all", "[membership]") {
  Job job(elastic(2), {{"a", 2}});
  job.all_first();
  job.back(0, 3);
  CHECK(job.got<EndEpoch>().empty());
  job.idle(3);
  REQUIRE(job.got<EndEpoch>().size() == 1);
  CHECK(job.got<EndEpoch>()[0].lost == 0);
  CHECK(job.got<EndEpoch>()[0].has_left);
  job.back(1, 3);
  CHECK(job.entered() == Members{0, 1});
  CHECK(job.epoch_of(0).branch == EpochBranch::kRestore);
}

TEST_CASE("without a state anywhere all begin anew, unless there was one", "[membership]") {
  Policy policy = elastic(2);
  policy.on_failure = OnFailure::kShrink;
  SECTION("nobody had committed") {
    Job job(policy, {{"a", 2}});
    job.all_first();
    job.die(1);
    job.back(0, -1);
    job.idle(1);
    CHECK(job.epoch_of(0).branch == EpochBranch::kFresh);
  }
  SECTION("who had it is gone") {
    policy.start_np = 3;
    Job job(policy, {{"a", 3}});
    job.all_first();
    job.die(2);
    job.back(0, 5);
    job.back(1, 4);
    job.idle(1);
    job.die(0, 9);
    job.enter(1, EnterCause::kEpochEnded, -1);  // its copy of the state was not complete
    job.idle(1);
    CHECK_THAT(job.ended(), Contains("holds the state of the job (commit 5)"));
  }
}

TEST_CASE("a newcomer is no source, whatever it says", "[membership]") {
  Job job(elastic(2), {{"a", 2}});
  job.all_first();
  job.die(0);
  const MemberId fresh = job.started().at(0);
  job.back(1, 5);
  job.idle(1);
  job.ready(fresh, GENERATE(6, 9));
  job.at_commit(1, 6);
  CHECK(job.entered() == Members{1, fresh});
  CHECK(job.epoch_of(1).target == 6);
  CHECK_FALSE(job.epoch_of(1).members[1].has_target);
}

TEST_CASE("a job that lost every rank goes on from a checkpoint, or says that it cannot",
          "[membership]") {
  Job job(elastic(1), {{"a", 1}});
  job.all_first();
  job.die(0, 7);
  const MemberId fresh = job.started().at(0);
  SECTION("checkpoint") {
    job.ready(fresh, 20);
    job.idle(1);
    CHECK(job.entered() == Members{fresh});
    CHECK(job.epoch_of(fresh).target == 20);
    CHECK(job.epoch_of(fresh).members[0].has_target);
    CHECK_THAT(job.said(), Contains("from commit 20"));
  }
  SECTION("nothing") {
    job.ready(fresh);
    job.idle(1);
    CHECK_THAT(job.ended(), Contains("7: no rank is left that holds the state of the job"));
  }
}

TEST_CASE("a state of which ranks know, and which none holds whole, is not begun anew",
          "[membership]") {
  Job job(elastic(2), {{"a", 2}});
  job.all_first();
  job.die(1, 9);
  wire::Standing dirty;
  dirty.epoch = job.decider.epoch();
  dirty.cause = wire::EnterCause::kEpochEnded;
  dirty.commits = 4;
  job.on(MemberEnters{0, dirty});
  job.idle(3);
  CHECK_THAT(job.ended(),
             Contains("9: no rank is left that holds the state of the job (commit 4)"));
}

TEST_CASE("the first failed rank's code is the job's, also when it comes late", "[membership]") {
  Policy policy = elastic(2);
  policy.on_failure = OnFailure::kShrink;
  Job job(policy, {{"a", 2}});
  job.all_first();
  job.on(MemberLost{1, "it ended without leaving the job"});
  job.on(MemberFenced{1});  // before it is reaped
  job.back(0, 3);
  job.idle(1);
  REQUIRE(job.entered() == Members{0});
  job.on(MemberEnded{1, 137, true, "killed by signal 9"});
  job.die(0, 7);
  CHECK_THAT(job.ended(), Contains("137: every rank has failed"));
}

TEST_CASE("who was lost before the others have ended with 0 is named, with how it ended",
          "[membership]") {
  Job job(elastic(3), {{"a", 3}});
  job.all_first();
  job.on(MemberLost{1, "it ended without leaving the job", false});
  const bool late = GENERATE(false, true);
  if (!late) job.on(MemberEnded{1, 137, true, "killed by signal 9"});
  job.exit(0);
  job.exit(2);
  REQUIRE(job.ended() == "0: ");
  LossLine line = job.got<EndJob>().at(0).unsaid.at(0);
  CHECK(line.is_known() == !late);
  if (late) line.know_more(1, "killed by signal 9", true);
  CHECK(line.text() ==
        "rank 1 on a was lost: killed by signal 9; the others have ended with code 0");
}

TEST_CASE("three heals without a commit end the job", "[membership]") {
  Policy policy = elastic(2);
  policy.most_replacements = 100;
  policy.last_call = Seconds(0);
  Job job(policy, {{"a", 2}});
  job.all_first();
  const auto heal = [&](int64_t commits) {
    job.die(job.decider.seats().back().member);
    const Members fresh = job.started();
    job.back(job.decider.seats().front().member, commits);
    if (job.ended() != "") return;
    job.ready(fresh.at(0));
    job.at_commit(job.decider.seats().front().member, commits);
  };
  for (int i = 0; i < 3; ++i) heal(5);
  CHECK(job.ended() == "");
  for (int i = 0; i < 3; ++i) heal(6);
  CHECK(job.ended() == "");
  heal(6);
  CHECK_THAT(job.ended(), Contains("75: 3 times") && Contains("without a commit"));
}

TEST_CASE("a limit of resets ends the job", "[membership]") {
  Policy policy = elastic(4);
  policy.on_failure = OnFailure::kShrink;
  policy.reset_limit = GENERATE(0, 2);
  policy.last_call = Seconds(0);
  Job job(policy, {{"a", 4}});
  job.all_first();
  for (MemberId dead = 3; dead > 0 && job.ended() == ""; --dead) {
    job.die(dead);
    for (MemberId member = 0; member < dead; ++member)
      job.back(member, static_cast<int64_t>(10 - dead));
  }
  CHECK(job.decider.epoch() == static_cast<uint64_t>(1 + policy.reset_limit));
  CHECK(job.ended() == "75: number of resets during elastic job exceeded limit: " +
                           std::to_string(policy.reset_limit));
  CHECK_THAT(job.got<EndJob>().at(0).unsaid.at(0).text(),
             Contains("rank " + std::to_string(3 - policy.reset_limit) + " on a was lost: ") &&
                 Contains("; the job ends"));
}

TEST_CASE("who is lost is named before the others wait, or the job ends", "[membership]") {
  Policy policy = elastic(3, 3);
  policy.on_failure = OnFailure::kShrink;
  policy.elastic_timeout = Seconds(30);
  Job job(policy, {{"a", 3}});
  job.all_first();
  job.on(MemberLost{1, "it ended", false});
  job.back(0, 3);
  job.back(2, 3);
  job.pass(2);
  CHECK(job.said().empty());
  job.on(MemberEnded{1, 137, true, "killed by signal 9"});
  CHECK(job.said() ==
        "rank 1 on a was lost: killed by signal 9; 2 ranks are left, and --min-np is 3: they keep "
        "their state and wait for others\n");
  job.on(MemberLost{2, "it is stopped", false});
  job.idle(30);
  CHECK(job.ended() == "124: only 1 rank was there for 30 s, and --min-np is 3");
  const std::vector<LossLine> unsaid = job.got<EndJob>().at(0).unsaid;
  REQUIRE(unsaid.size() == 1);
  CHECK(unsaid[0].text() == "rank 2 on a was lost: it is stopped; the job ends");
}

TEST_CASE("below min-np survivors wait, until the timeout", "[membership]") {
  Policy policy = elastic(2, 2);
  policy.on_failure = OnFailure::kShrink;
  policy.elastic_timeout = Seconds(30);
  Job job(policy, {{"a", 2}});
  job.all_first();
  job.die(1);
  job.back(0, 3);
  job.idle(20);
  CHECK(job.entered().empty());
  CHECK_THAT(job.said(), Contains("1 rank is left, and --min-np is 2"));
  SECTION("a host is found") {
    job.discover({{"a", 2}, {"b", 1}});
    REQUIRE(job.started().size() == 1);
    job.ready(job.started()[0]);
    CHECK(job.entered() == Members{0, 2});
    CHECK(job.epoch_of(0).branch == EpochBranch::kRestore);
  }
  SECTION("nothing is found") {
    job.idle(11);
    CHECK_THAT(job.ended(), Contains("124: only 1 rank was there for 30 s, and --min-np is 2"));
  }
}

TEST_CASE("too few slots are waited for, until the timeout", "[membership]") {
  Policy policy = elastic(3);
  policy.elastic_timeout = Seconds(5);
  Job job(policy, {{"a", 2}});
  CHECK(job.started().empty());
  SECTION("found") {
    job.discover({{"a", 2}, {"b", 2}});
    CHECK(job.started() == Members{0, 1, 2, 3});  // without max-np all slots are used
  }
  SECTION("not") {
    job.idle(6);
    CHECK_THAT(job.ended(), Contains("124: 3 ranks need 3 slots"));
  }
}

TEST_CASE("who does not come back in time is left behind", "[membership]") {
  Policy policy = elastic(3);
  policy.on_failure = OnFailure::kShrink;
  Job job(policy, {{"a", 3}});
  job.all_first();
  job.die(2);
  job.back(0, 3);
  job.idle(599);
  CHECK(job.entered().empty());
  job.idle(10);
  CHECK(job.stopped() == Members{1});
  CHECK(job.entered() == Members{0});
}

}  // namespace
}  // namespace rueda::launcher::membership
