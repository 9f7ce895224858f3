// Thousands of seeds of membership_world.h. One that fails is replayed as the others here.
#include <catch2/catch.hpp>

#include <time.h>

#include <iostream>

#include "tests/simulation/membership_world.h"
#include "tests/simulation/seeds.h"

namespace rueda::testing {
namespace {

TEST_CASE("no fault makes the decider lose, tear or double a commit", "[membership][seeds]") {
  const Seeds seeds(1000);
  uint64_t epochs = 0, faults = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    MembershipWorld world(seed);
    const std::string broken = world.run();
    epochs += static_cast<uint64_t>(world.epochs());
    faults += static_cast<uint64_t>(world.faults());
    INFO("seed " << seed << " epochs " << world.epochs() << " commits " << world.acknowledged());
    REQUIRE(broken == "");
  }
  std::cout << seeds.count << " jobs, " << faults << " faults, " << epochs << " epochs\n";
  CHECK(epochs > seeds.count);
}

TEST_CASE("the simulation finds planted mistakes of members", "[membership]") {
  for (const MemberBug bug :
       {MemberBug::kAcknowledgesAlone, MemberBug::kClaimsState, MemberBug::kAppliesEarly}) {
    int found = 0;
    for (uint64_t seed = 0; seed < 400 && found == 0; ++seed)
      found += MembershipWorld(seed, bug).run() != "";
    INFO(static_cast<int>(bug));
    CHECK(found == 1);
  }
}

TEST_CASE("and of the decider", "[membership]") {
  const auto [bug, rule] = GENERATE(table<DeciderBug, const char*>({
      {DeciderBug::kOldNumber, "an epoch's number was given again"},
      {DeciderBug::kOldRecord, "given"},
      {DeciderBug::kLastIsRoot, "rank 0"},
      {DeciderBug::kAllAreSources, "a source"},
      {DeciderBug::kTargetIsOlder, "target"},
      {DeciderBug::kBeginsAnew, "begin anew"},
      {DeciderBug::kNoFreshMemory, "a lost rank may write into memory that is in use"},
      {DeciderBug::kFencesAtOnce, "while its old threads run"},
      {DeciderBug::kDoesNotWait, "an epoch began while a member trained in the one before"},
  }));
  bool found = false;
  std::string first;
  for (uint64_t seed = 0; seed < 1000 && !found; ++seed) {
    const std::string broken = MembershipWorld(seed, MemberBug::kNone, bug).run();
    if (first.empty()) first = broken;
    found = broken.find(rule) != std::string::npos;
  }
  INFO(static_cast<int>(bug) << ": " << first);
  CHECK(found);
}

TEST_CASE("a decision about 10,000 ranks on 1,250 hosts", "[membership]") {
  const auto cpu = [] {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
  };
  ms::Policy policy;
  policy.elastic = true;
  policy.start_np = 10'000;
  policy.on_failure = ms::OnFailure::kBlacklist;
  ms::MembershipDecider decider(policy);
  ms::HostsFound found;
  for (int h = 0; h < 1250; ++h) found.hosts.push_back({"host" + std::to_string(h), 8, "", 0});
  ms::Time now{std::chrono::seconds(1)};
  double before = cpu();
  REQUIRE(decider.on(found, now).size() == 10'000);
  std::cout << "first decision about 10,000 ranks: " << cpu() - before << " ms of CPU\n";
  const auto enter = [&](ms::MemberId id, wire::EnterCause cause, uint64_t epoch) {
    wire::Standing s;
    s.member = id;
    s.cause = cause;
    s.epoch = epoch;
    s.has_state = epoch > 0;
    s.commits = epoch;
    return decider.on(ms::MemberEnters{id, s}, now);
  };
  for (ms::MemberId id = 0; id < 10'000; ++id) enter(id, wire::EnterCause::kFirst, 0);
  before = cpu();
  decider.on(ms::HostLost{"host7", "cut"}, now);
  std::cout << "a host is lost: " << cpu() - before << " ms of CPU\n";
  now += std::chrono::seconds(1);
  before = cpu();
  double longest = 0;
  size_t answers = 0;
  for (ms::MemberId id = 0; id < 10'000; ++id) {
    if (id / 8 == 7) continue;
    const double begin = cpu();
    answers = enter(id, wire::EnterCause::kEpochEnded, 1).size();
    longest = std::max(longest, cpu() - begin);
  }
  CHECK(answers >= 9'992);
  std::cout << "9,992 survivors enter: " << cpu() - before << " ms of CPU, the decision among them "
            << longest << " ms\n";
  before = cpu();
  const std::string record = decider.record();
  std::cout << "its record: " << cpu() - before << " ms of CPU, " << record.size() << " bytes; ";
  before = cpu();
  auto next = ms::MembershipDecider::resume(policy, record);
  REQUIRE(next != nullptr);
  next->on(ms::Tick{}, now);
  std::cout << "taken over: " << cpu() - before << " ms of CPU\n";
  CHECK(next->seats().size() == 9'992);
}

}  // namespace
}  // namespace rueda::testing
