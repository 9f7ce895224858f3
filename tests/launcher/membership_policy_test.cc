// The decider's policies: replacing, blacklisting, joining, leaving, spares; and its parts.
#include <catch2/catch.hpp>

#include "launcher/membership/membership.h"
#include "launcher/membership/placement.h"
#include "tests/launcher/membership_job.h"

namespace rueda::launcher::membership {
namespace {

using Catch::Contains;
using wire::EnterCause;
using wire::EpochAnswer;
using wire::EpochBranch;

EpochAnswer answer_to(const Job& job, MemberId member) { return job.epoch_of(member).answer; }

TEST_CASE("a dead rank is replaced in its slot, once its threads are gone", "[membership]") {
  Job job(elastic(2), {{"a", 2}});
  job.all_first();
  job.on(MemberLost{1, "killed"});
  CHECK(job.started().empty());
  job.on(MemberFenced{1});
  const auto starts = job.got<StartMember>();
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].member == 2);  // never a number twice
  CHECK(starts[0].host == "a");
  CHECK(starts[0].slot == 1);
  CHECK(starts[0].place.rank == 1);
  CHECK(starts[0].place.size == 2);
  job.back(0, 1);
  job.idle(1);
  CHECK(job.epoch_of(0).size == 1);  // nobody waits for the new one
  job.first(2);
  CHECK(answer_to(job, 2) == EpochAnswer::kProvisional);
  CHECK(job.epoch_of(2).rank == 1);
  CHECK(job.epoch_of(2).size == 2);
  CHECK(job.got<Announce>().empty());
  job.enter(2, EnterCause::kReady);
  REQUIRE(job.got<Announce>().size() == 1);
  CHECK(job.got<Announce>()[0].serial == 1);
  CHECK(job.got<Announce>()[0].changes == 2);
  CHECK(job.got<Announce>()[0].members == Members{0});
  job.at_commit(0, 2);
  CHECK(job.entered() == Members{0, 2});
  CHECK(job.epoch_of(2).epoch == 3);
  CHECK(job.epoch_of(2).announced == 1);
  CHECK(job.epoch_of(2).branch == EpochBranch::kSync);
  CHECK(job.epoch_of(2).members[0].has_target);
  CHECK_FALSE(job.epoch_of(2).members[1].has_target);
}

TEST_CASE("a slot is replaced three times in ten minutes; then its host is not used any more",
          "[membership]") {
  Job job(elastic(3, 1), {{"a", 2}, {"b", 1}});
  job.all_first();
  MemberId in_slot = 2;  // on b
  for (int i = 0; i < 3; ++i) {
    job.die(in_slot);
    REQUIRE(job.started().size() == 1);
    in_slot = job.started()[0];
    job.back(0, i);
    job.back(1, i);
    job.idle(1);
    job.ready(in_slot);
    job.at_commit(0, i + 1);
    job.at_commit(1, i + 1);
  }
  const bool later = GENERATE(true, false);
  if (later) job.pass(601);
  job.die(in_slot);
  CHECK(job.started().size() == (later ? 1U : 0U));
  CHECK((job.said().find("host b is not used any more") != std::string::npos) == !later);
}

TEST_CASE("the last host is never blacklisted", "[membership]") {
  Policy policy = elastic(2, 1);
  policy.most_replacements = 0;
  Job job(policy, {{"a", 2}});
  job.all_first();
  job.die(1);
  CHECK(job.started().empty());
  CHECK(job.said() == "");
  job.back(0, 1);
  job.idle(1);
  CHECK(job.entered() == Members{0});
  job.die(0, 6);
  CHECK_THAT(job.ended(), Contains("1: every rank has failed"));
}

TEST_CASE("Horovod's way: a failing host leaves whole, and is back after its cooldown",
          "[membership]") {
  Policy policy = elastic(2, 1);
  policy.on_failure = OnFailure::kBlacklist;
  policy.on_join = OnJoin::kAnnounce;
  policy.cooldown = {{10, 100}};
  Job job(policy, {{"a", 2}, {"b", 2}});
  CHECK(job.started() == Members{0, 1, 2, 3});  // -np is what it starts with; no cap
  job.all_first();
  job.die(0);
  CHECK(job.stopped() == Members{1});
  CHECK(job.got<EndEpoch>().size() == 1);
  CHECK_THAT(job.said(), Contains("host a is not used for 2") || Contains("for 30 s"));
  job.on(MemberEnded{1, 143, true, "killed"});
  job.back(2, 1);
  job.back(3, 1);
  job.idle(1);
  CHECK(job.entered() == Members{2, 3});
  job.idle(18.9);
  CHECK(job.started().empty());  // at least 2 * min
  job.idle(11);
  CHECK(job.started() == Members{4, 5});  // at most 3 * min
  REQUIRE(job.got<Announce>().size() == 1);
  job.at_commit(2, 2);
  job.at_commit(3, 2);
  CHECK(job.entered().empty());  // those who were announced are waited for
  job.ready(4);
  CHECK(job.entered().empty());
  job.ready(5);
  CHECK(job.entered() == Members{2, 3, 4, 5});  // rank 0 is a survivor, though a comes first
}

TEST_CASE("cooldowns double with a host's failures, between the least and the longest",
          "[membership]") {
  HostTable hosts({{10, 100}}, 7);
  hosts.found({{"a", 1, "", 0}});
  Time now(std::chrono::seconds(50));
  for (const auto& [least, most] : std::vector<std::pair<double, double>>{
           {20, 30}, {40, 50}, {80, 90}, {100, 100}, {100, 100}}) {
    hosts.blacklist("a", now);
    CHECK(hosts.all_blacklisted());
    const double cooldown = Seconds(*hosts.next_back() - now).count();
    CHECK(cooldown >= least);
    CHECK(cooldown <= most);
    CHECK_FALSE(hosts.expire(now));
    now = *hosts.next_back();
    CHECK(hosts.expire(now));
    CHECK(hosts.usable("a", 0));
  }
  HostTable forever(std::nullopt, 7);
  forever.found({{"a", 1, "", 0}});
  forever.blacklist("a", now);
  CHECK_FALSE(forever.next_back());
}

TEST_CASE("all hosts blacklisted, or all ranks failed: Horovod's text", "[membership]") {
  Policy policy = elastic(2, 1);
  policy.on_failure = OnFailure::kBlacklist;
  Job job(policy, {{"a", 1}, {"b", 1}});
  job.all_first();
  job.die(0, 5);
  CHECK(job.ended() == "");
  job.die(1, 6);
  CHECK_THAT(job.ended(),
             Contains("5: Horovod detected that one or more processes exited with non-zero "
                      "status"));
}

TEST_CASE("ranks on a host that is no longer found do not save a job whose hosts have all failed",
          "[membership]") {
  Policy policy = elastic(2, 1);
  policy.on_failure = OnFailure::kBlacklist;
  Job job(policy, {{"a", 1}, {"b", 1}});
  job.all_first();
  job.discover({{"b", 1}});
  job.die(1, 4);
  CHECK_THAT(job.ended(), Contains("4: Horovod detected") && Contains("every host has failed"));
}

TEST_CASE("hosts that were found keep their order; new ones come behind", "[membership]") {
  HostTable hosts(std::nullopt, 0);
  hosts.found({{"b", 1, "", 0}, {"a", 2, "", 0}});
  hosts.found({{"a", 3, "", 0}, {"c", 1, "", 0}, {"b", 1, "", 0}});
  CHECK(hosts.position("b") < hosts.position("a"));
  CHECK(hosts.position("a") < hosts.position("c"));
  CHECK(hosts.usable("a", 2));
  hosts.found({{"a", 3, "", 0}, {"c", 1, "", 0}});
  CHECK_FALSE(hosts.usable("b", 0));
  hosts.found({{"b", 1, "", 0}, {"a", 3, "", 0}, {"c", 1, "", 0}});
  CHECK(hosts.position("c") < hosts.position("b"));
  hosts.drain("a");
  CHECK_FALSE(hosts.usable("a", 0));
}

TEST_CASE("ranks go host by host, survivors before newcomers, the leader first", "[membership]") {
  const auto members = [](const std::vector<Candidate>& ordered) {
    Members ids;
    for (const Candidate& c : ordered) ids.push_back(c.member);
    return ids;
  };
  const std::vector<Candidate> all = {{1, 0, 0, 1, false},
                                      {2, 1, 0, 2, true},
                                      {3, 1, 1, 3, true},
                                      {7, 0, 1, -1, false},
                                      {8, 2, 0, -1, false}};
  CHECK(members(in_order({{1, 1, 0, 0, true}, {2, 2, 0, 1, true}, {9, 0, 0, -1, false}})) ==
        Members{1, 2, 9});  // a host is back that was the first once
  CHECK(members(in_order(all)) == Members{2, 3, 1, 7, 8});
  const auto places = places_of(in_order(all));
  CHECK(places[2].local_rank == 0);
  CHECK(places[2].cross_rank == 1);
  CHECK(places[2].cross_size == 3);
  CHECK(places[3].cross_rank == 1);
  CHECK(places[3].cross_size == 2);
  CHECK(places[4].local_size == 1);
}

TEST_CASE("max-np caps; survivors stay before newcomers", "[membership]") {
  Policy policy = elastic(2, 1);
  policy.max_np = 3;
  Job job(policy, {{"a", 2}});
  job.all_first();
  job.discover({{"a", 2}, {"b", 4}});
  CHECK(job.started() == Members{2});
}

TEST_CASE("found hosts: announced at once under announce, when ready under ready", "[membership]") {
  Policy policy = elastic(1);
  policy.on_join = GENERATE(OnJoin::kReady, OnJoin::kAnnounce);
  const bool announces = policy.on_join == OnJoin::kAnnounce;
  Job job(policy, {{"a", 1}});
  job.all_first();
  job.discover({{"a", 1}, {"b", 1}});
  CHECK(job.started() == Members{1});
  CHECK(job.got<Announce>().size() == (announces ? 1U : 0U));
  job.ready(1);
  CHECK(job.got<Announce>().size() == (announces ? 0U : 1U));
  job.at_commit(0, 1);
  CHECK(job.entered() == Members{0, 1});
}

TEST_CASE("a vanished or drained host: announced, and removed at the boundary", "[membership]") {
  Job job(elastic(2, 1), {{"a", 1}, {"b", 1}});
  job.all_first();
  const bool drained = GENERATE(true, false);
  if (drained) job.on(HostDrained{"b"});
  if (!drained) job.discover({{"a", 1}});
  REQUIRE(job.got<Announce>().size() == 1);
  CHECK(job.got<Announce>()[0].changes == 1);
  job.at_commit(1, 4);
  CHECK(job.got<Answer>().empty());
  job.at_commit(0, 4);
  CHECK(answer_to(job, 1) == EpochAnswer::kRemoved);
  CHECK(job.entered() == Members{0});
  CHECK(job.epoch_of(0).branch == EpochBranch::kGoOn);
  job.exit(1);  // no success of the job
  CHECK(job.ended() == "");
  CHECK(job.started().empty());
  job.exit(0);
  CHECK(job.ended() == "0: ");
}

TEST_CASE("who leaves but alone holds the newest commit stays once more", "[membership]") {
  Policy policy = elastic(3, 1);
  policy.on_failure = OnFailure::kShrink;
  Job job(policy, {{"a", 1}, {"b", 1}, {"c", 1}});
  job.all_first();
  job.on(HostDrained{"b"});
  job.die(2);
  job.back(0, 3);
  job.back(1, 4);
  job.idle(1);
  CHECK(job.entered() == Members{1, 0});
  CHECK(job.epoch_of(0).target == 4);
  CHECK(Job::of<Announce>(job.last).size() == 1);  // and is announced again
  job.at_commit(0, 5);
  job.at_commit(1, 5);
  CHECK(answer_to(job, 1) == EpochAnswer::kRemoved);
  CHECK(job.entered() == Members{0});
}

TEST_CASE("a rank that is lost while it leaves is nobody's fault", "[membership]") {
  Policy policy = elastic(2, 1);
  policy.on_failure = OnFailure::kBlacklist;
  Job job(policy, {{"a", 1}, {"b", 1}});
  job.all_first();
  job.on(HostDrained{"b"});
  job.die(1);
  CHECK(job.said() == "");
  job.back(0, 1);
  job.idle(1);
  CHECK(job.entered() == Members{0});
}

TEST_CASE("a drained host is let go although the others then wait", "[membership]") {
  Job job(elastic(2, 2), {{"a", 1}, {"b", 1}});
  job.all_first();
  job.on(HostDrained{"b"});
  job.at_commit(0, 4);
  job.at_commit(1, 4);
  CHECK(answer_to(job, 1) == EpochAnswer::kRemoved);
  CHECK(job.entered().empty());
  job.discover({{"a", 1}, {"c", 1}});
  job.ready(job.started().at(0));
  CHECK(job.entered() == Members{0, 2});
}

TEST_CASE("a job may begin with fewer ranks than it was to, if it is said so", "[membership]") {
  Job job(elastic(4, 2), {{"a", 1}});
  CHECK(job.started().empty());
  job.on(HostsFound{{{"a", 2, "", 0}}, {"a", "b"}});
  CHECK(job.started().empty());
  job.on(HostsFound{{{"a", 1, "", 0}}, {"a", "b"}, true});
  CHECK(job.started().empty());  // fewer than min_np
  job.on(HostsFound{{{"a", 2, "", 0}}, {"a", "b"}});
  CHECK(job.started() == Members{0, 1});
  job.all_first();
  job.discover({{"a", 2}, {"b", 2}});
  CHECK(job.started() == Members{2, 3});
}

TEST_CASE("a drained host stays so while the list has it, let go or never there", "[membership]") {
  const auto find = [](Job* job, std::vector<HostSlots> ready, std::set<std::string> named) {
    job->on(HostsFound{std::move(ready), std::move(named)});
  };
  Job job(elastic(1, 1), {{"a", 1}});
  job.all_first();
  const bool was_there = GENERATE(true, false);
  if (was_there) find(&job, {{"a", 1, "", 0}, {"b", 1, "", 0}}, {"a", "b"});
  job.on(HostDrained{"b"});
  if (was_there) job.exit(1);
  find(&job, {{"a", 1, "", 0}}, {"a", "b"});  // it is let go, or is not awaited any more
  CHECK(job.decider.is_drained("b"));
  CHECK(job.decider.found_hosts().size() == 2);
  CHECK(job.decider.drain_outlook("b").value() == "host b is drained already");
  find(&job, {{"a", 1, "", 0}, {"b", 1, "", 0}}, {"a", "b"});
  CHECK(job.started().empty());
  find(&job, {{"a", 1, "", 0}}, {"a"});
  CHECK_FALSE(job.decider.is_drained("b"));
  CHECK(job.decider.found_hosts().size() == 1);
  find(&job, {{"a", 1, "", 0}, {"b", 1, "", 0}}, {"a", "b"});
  CHECK(job.started().size() == 1);
}

TEST_CASE("newcomers of another version, setting or layout are refused", "[membership]") {
  Job job(elastic(1), {{"a", 1}});
  job.all_first();
  job.discover({{"a", 1}, {"b", 1}});
  SECTION("version") {
    job.version = "2.0";
    job.first(1);
    CHECK(answer_to(job, 1) == EpochAnswer::kRefused);
    CHECK_THAT(job.epoch_of(1).text, Contains("librueda is 2.0, the job's is 1.0"));
    CHECK(job.got<Announce>().empty());
  }
  SECTION("setting") {
    job.settings = "RUEDA_CACHE_CAPACITY=1\nRUEDA_TRANSPORT=mpi\n";
    job.first(1);
    CHECK(answer_to(job, 1) == EpochAnswer::kRefused);
    CHECK(job.epoch_of(1).text ==
          "its settings are not the job's: RUEDA_TRANSPORT=mpi instead of tcp");
    CHECK(job.got<Announce>().empty());
  }
  SECTION("layout") {
    job.first(1);
    job.enter(1, EnterCause::kReady, -1, ~0U, "other");
    job.enter(0, EnterCause::kInterrupted, 2, ~0U, "layout");
    CHECK(answer_to(job, 1) == EpochAnswer::kRefused);
    CHECK(job.entered() == Members{0});
  }
  job.on(MemberEnded{1, 1, true, "refused"});
  CHECK(job.started().empty());  // it would be refused again
  CHECK(job.ended() == "");
}

TEST_CASE("a newcomer that dies costs the others a line, also one that ends with 0",
          "[membership]") {
  const int code = GENERATE(1, 0);
  const std::string how = "exited with code " + std::to_string(code);
  Job job(elastic(1), {{"a", 1}});
  job.all_first();
  job.discover({{"a", 1}, {"b", 1}});
  job.on(MemberEnded{1, code, code != 0, how});
  CHECK_THAT(job.said(),
             Contains("a rank that was to join on b was lost before it was in: " + how));
  CHECK(job.got<Announce>().empty());
  CHECK(job.got<EndEpoch>().empty());
  CHECK(job.started() == Members{2});
  for (MemberId m = 2; m < 5; ++m) job.on(MemberEnded{m, code, code != 0, how});
  CHECK(job.started().empty());
  CHECK(job.ended() == "");
}

TEST_CASE("a spare takes a dead rank's seat at once, and is made up for", "[membership]") {
  Policy policy = elastic(2);
  policy.spares = 1;
  Job job(policy, {{"a", 2}});
  REQUIRE(job.started() == Members{0, 1, 2});
  CHECK(job.got<StartMember>()[2].spare);
  CHECK(job.got<StartMember>()[2].slot == 2);  // beside the ranks
  job.all_first();
  job.ready(2);
  CHECK(job.got<Announce>().empty());
  job.die(1);
  CHECK(job.got<StartMember>().at(0).spare);
  CHECK(job.got<StartMember>().at(0).slot == 1);
  job.back(0, 3);
  job.idle(1);
  CHECK(job.entered() == Members{0, 2});
  CHECK(job.epoch_of(0).branch == EpochBranch::kRestore);
  job.discover({{"a", 2}});  // the list again: a spare's slot is no reason to leave
  CHECK(job.got<Announce>().empty());
}

TEST_CASE("a slow rank leaves only for one that is ready", "[membership]") {
  Policy policy = elastic(2);
  policy.max_np = 2;
  const bool room = GENERATE(true, false);
  Job job(policy, {{"a", 1}, {"b", room ? 2 : 1}});
  job.all_first();
  job.on(MemberSlow{0});
  CHECK(job.started().size() == (room ? 1U : 0U));
  CHECK(job.got<Announce>().empty());
  if (!room) return;
  job.ready(2);
  CHECK(job.got<Announce>().at(0).changes == 3);
  job.at_commit(0, 1);
  job.at_commit(1, 1);
  CHECK(answer_to(job, 0) == EpochAnswer::kRemoved);
  CHECK(job.entered() == Members{1, 2});
}

TEST_CASE("a slow rank stays when who was to take its place is lost before", "[membership]") {
  Policy policy = elastic(2);
  policy.max_np = 2;
  policy.spares = 1;
  Job job(policy, {{"a", 1}, {"b", 2}});
  job.all_first();
  job.ready(2);
  job.on(MemberSlow{0});
  REQUIRE(job.got<Announce>().at(0).changes == 3);
  if (GENERATE(true, false)) {  // another controller does as the first would
    auto next = MembershipDecider::resume(policy, job.decider.record());
    REQUIRE(next != nullptr);
    job.decider = std::move(*next);
  }
  const bool is_drained = GENERATE(true, false);
  if (is_drained) job.on(HostDrained{"a"});
  job.die(2);
  const Members others = job.started();
  job.at_commit(0, 1);
  job.at_commit(1, 1);
  CHECK(answer_to(job, 0) == (is_drained ? EpochAnswer::kRemoved : EpochAnswer::kEnter));
  if (is_drained) return;
  CHECK(job.entered() == Members{0, 1});
  REQUIRE(others.size() == 1);  // a spare again, whose slot was free at once
}

TEST_CASE("who is slow no more stays, and a spare on another host is better", "[membership]") {
  Policy policy = elastic(2);
  policy.max_np = 2;
  policy.spares = 3;
  Job job(policy, {{"a", 4}, {"b", 2}});
  job.all_first();
  const MemberId here = 2, there = 4;  // spares
  job.on(MemberSlow{0});
  job.on(MemberSlow{0, false});
  job.ready(here);
  job.ready(there);
  CHECK(job.got<Announce>().empty());
  job.on(MemberSlow{0});
  CHECK(job.got<Announce>().at(0).changes == 3);
  job.at_commit(0, 1);
  job.at_commit(1, 1);
  CHECK(answer_to(job, 0) == EpochAnswer::kRemoved);
  CHECK(job.entered() == Members{1, there});
}

TEST_CASE("no more slow ranks are replaced than a slot is filled again", "[membership]") {
  Policy policy = elastic(2);
  policy.max_np = 2;
  policy.spares = 1;
  policy.most_replacements = 1;
  Job job(policy, {{"a", 3}});
  job.all_first();
  job.ready(2);
  job.on(MemberSlow{0});
  job.at_commit(0, 1);
  job.at_commit(1, 1);
  REQUIRE(job.entered() == Members{1, 2});
  job.ready(3);
  job.on(MemberSlow{1});
  CHECK(job.got<Announce>().empty());
}

TEST_CASE("a lost host is lost with all, and who was there is removed when it comes back",
          "[membership]") {
  Job job(elastic(3, 1), {{"a", 1}, {"b", 2}});
  job.all_first();
  job.on(HostLost{"b", "it does not answer"});
  CHECK(job.got<EndEpoch>().size() == 1);
  job.back(0, 1);
  job.idle(1);
  CHECK(job.entered() == Members{0});
  CHECK_FALSE(job.epoch_of(0).fresh_memory);
  job.enter(1, EnterCause::kEpochEnded, 1, 1);
  CHECK(answer_to(job, 1) == EpochAnswer::kRemoved);
}

TEST_CASE("a host that was off the list when it was lost is not to blame for it", "[membership]") {
  Job job(elastic(3, 1), {{"a", 1}, {"b", 2}});
  job.all_first();
  job.discover({{"a", 1}});
  job.on(HostLost{"b", "it is switched off"});
  job.back(0, 1);
  job.idle(1);
  CHECK(job.entered() == Members{0});
  job.discover({{"a", 1}, {"b", 2}});
  CHECK(job.started().size() == 2);
}

TEST_CASE("after a rank's success nobody is replaced, and a failure is the job's", "[membership]") {
  Job job(elastic(3), {{"a", 4}});
  job.all_first();
  job.exit(0);
  CHECK(job.ended() == "");
  SECTION("success") {
    job.exit(1);
    job.exit(2);
    job.exit(3);
    CHECK(job.ended() == "0: ");
  }
  SECTION("failure") {
    job.die(1, 9);
    CHECK(job.started().empty());
    CHECK_THAT(job.ended(), Contains("9: rank 1 on a"));
  }
}

TEST_CASE("a silent host whose ranks nobody has heard end is a failure, whoever ended first",
          "[membership]") {
  Job job(elastic(2, 1), {{"a", 1}, {"b", 1}});
  job.all_first();
  const HostLost silent{"b", "no sign of life for 5 s", true};
  SECTION("it is lost when the others have ended") {
    job.exit(0);
    CHECK(job.ended() == "");
    job.on(silent);
  }
  SECTION("it is lost while the others are about to end") {
    job.on(silent);
    CHECK(job.ended() == "");
    job.exit(0);
  }
  const std::string end =
      "1: others have ended with code 0, and nobody has heard how rank 1 on b ended: no sign of "
      "life "
      "for 5 s";
  CHECK(job.ended() == end);
  CHECK(job.got<EndJob>()[0].failed == MemberId{1});
}

TEST_CASE("a silent host that the others have gone on without costs no success", "[membership]") {
  Job job(elastic(2, 1), {{"a", 1}, {"b", 1}});
  job.all_first();
  const bool was_silent = GENERATE(true, false);
  job.on(HostLost{"b", "no sign of life for 5 s", was_silent});
  if (was_silent) {  // of another it is known that it had not ended
    job.back(0, 1);
    job.idle(1);
    REQUIRE(job.entered() == Members{0});
  }
  job.exit(0);
  CHECK(job.ended() == "0: ");
}

TEST_CASE(
    "after a rank's success the others are told, and may heal, but have no more than a timeout",
    "[membership]") {
  Policy policy = elastic(3, 3);
  policy.elastic_timeout = Seconds(60);
  Job job(policy, {{"a", 3}});
  job.all_first();
  job.die(2, 9);
  job.exit(0);
  REQUIRE(job.got<Announce>().size() == 1);
  CHECK(job.got<Announce>()[0].serial == 0);
  CHECK(job.got<Announce>()[0].changes == kFinishing);
  CHECK(job.got<Announce>()[0].members == Members{1});
  job.back(1, 8);
  CHECK(job.said() == "");
  job.idle(1);
  CHECK(job.entered() == Members{1});  // --min-np or not: nobody comes any more
  CHECK_THAT(job.said(), Contains("rank 0 on a has ended with code 0, so no rank is started any"));
  CHECK(job.started().empty());
  const bool ends = GENERATE(true, false);
  const auto resumed = MembershipDecider::resume(policy, job.decider.record());
  if (ends) job.exit(1);
  job.idle(61);
  const std::string late = "rank 0 on a has ended with code 0, and 1 ranks still trained";
  if (ends) {
    CHECK(job.ended() == "0: ");
    return;
  }
  CHECK_THAT(job.ended(), Contains("124: " + late));
  resumed->on(Tick{}, Time(std::chrono::seconds(5)));
  const auto over = Job::of<EndJob>(resumed->on(Tick{}, Time(std::chrono::seconds(66))));
  REQUIRE(over.size() == 1);
  CHECK_THAT(over[0].text, Contains(late));
}

TEST_CASE("who takes over goes on from the record", "[membership]") {
  Policy policy = elastic(3, 1);
  policy.on_failure = OnFailure::kBlacklist;
  policy.cooldown = {{10, 100}};
  Job job(policy, {{"a", 2}, {"b", 1}, {"c", 1}});
  job.all_first();
  job.die(2);  // host b
  for (const MemberId m : {0, 1, 3}) job.back(m, 8);
  job.idle(1);
  REQUIRE(job.decider.epoch() == 2);
  const bool ending = GENERATE(true, false);
  if (ending) job.on(MemberLost{3, "gone"});
  auto next = MembershipDecider::resume(policy, job.decider.record());
  REQUIRE(next != nullptr);
  CHECK(next->epoch() == 2);
  CHECK(next->seats().size() == 3);
  Time now(std::chrono::seconds(5));  // another machine's clock
  const auto ends = Job::of<EndEpoch>(next->on(Tick{}, now));
  CHECK(ends.size() == (ending ? 1U : 0U));
  const auto enters = [&](MemberId m) {
    wire::Standing s{
        .member = m, .epoch = 2, .cause = EnterCause::kEpochEnded, .has_state = true, .commits = 9};
    return Job::of<Answer>(next->on(MemberEnters{m, s}, now));
  };
  if (!ending) next->on(MemberLost{3, "gone"}, now);
  enters(0);
  enters(1);
  now += std::chrono::seconds(3);
  const auto answers = Job::of<Answer>(next->on(Tick{}, now));
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].common->epoch == 3);
  now += std::chrono::seconds(40);  // b's cooldown, and c's
  const auto starts = Job::of<StartMember>(next->on(Tick{}, now));
  REQUIRE_FALSE(starts.empty());
  CHECK(starts[0].member == 4);
  CHECK(MembershipDecider::resume(policy, "nonsense") == nullptr);
  CHECK(MembershipDecider::resume(policy, job.decider.record().substr(0, 60)) == nullptr);
}

}  // namespace
}  // namespace rueda::launcher::membership
