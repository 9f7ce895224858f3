// What an elastic job answers while a decision of it is not kept by the agents yet.
#include "launcher/controller/elastic_members.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace rueda;
using namespace rueda::launcher;

namespace {

constexpr const char* kGone = "the host is gone";

// Three hosts with a rank each; a decision is kept when the test says so.
class Members {
 public:
  Members() : store_(rendezvous::StoreServer::start("").value()) {
    plan_.policy.elastic = true;
    plan_.policy.start_np = 3;
    plan_.policy.min_np = 1;
    plan_.hosts = {{"a", 1, "", 0}, {"b", 1, "", 0}, {"c", 1, "", 0}};
    ElasticMembers::Doors doors;
    doors.tell = [](const std::string&, const Order&) {};
    doors.say = [](const std::string&) {};
    doors.ready_hosts = [](const std::vector<HostSlots>& found) { return ReadyHosts{found}; };
    doors.address_of = [](const std::string&) { return std::string(); };
    doors.begin_epoch = [](const std::map<MemberId, Rank>&) {};
    doors.keep = [this](const std::string&) { ++kept; };
    members.emplace(plan_, store_.get(), std::move(doors));
    work();
    members->record_is_kept();  // they are started
  }
  void work() { members->work(std::chrono::steady_clock::now()); }

 private:
  std::unique_ptr<rendezvous::StoreServer> store_;
  ElasticPlan plan_;

 public:
  int kept = 0;
  std::optional<ElasticMembers> members;
};

}  // namespace

TEST_CASE("who drains a host is answered with losses in view that are not decided yet",
          "[elastic_members]") {
  Members job;
  REQUIRE(job.kept == 1);
  REQUIRE(job.members->drain("c").ok());
  REQUIRE(job.kept == 2);  // and nothing is decided before it is
  CHECK_FALSE(job.members->drains_are_kept());
  job.members->host_lost("b", kGone, {}, false);
  const Result<std::string> last = job.members->drain("a");
  REQUIRE_FALSE(last.ok());
  CHECK(last.status().message().find("is the only one that the job can use") != std::string::npos);
  job.members->record_is_kept();
  CHECK(job.members->drains_are_kept());
  job.work();
  CHECK_FALSE(job.members->is_drained("a"));
}

TEST_CASE("of two hosts that are drained one after the other the second is the last",
          "[elastic_members]") {
  Members job;
  job.members->host_lost("b", kGone, {}, false);
  job.work();
  CHECK(job.members->drain("c").ok());
  CHECK_FALSE(job.members->drain("a").ok());
}
