// Metrics as text: what Prometheus reads, how much of it, and who is well.
#include "launcher/observe/metrics_text.h"
#include "launcher/observe/metrics_pages.h"

#include <catch2/catch.hpp>
#include <map>
#include <regex>
#include <sstream>

#include "launcher/observe/vitals_json.h"

namespace rueda::launcher {
namespace {

RankVitals vitals_of(Rank rank) {
  RankVitals one;
  one.rank = rank;
  one.host = "node";
  one.pid = 100 + rank;
  one.now_ns = 10'000'000'000;
  one.flight.emplace();
  one.flight->rank = rank;
  one.flight->size = 2;
  one.flight->submitted = 7;
  one.flight->ended = 5;
  stats::Numbers& numbers = one.flight->stats;
  for (size_t kind = 0; kind < stats::kKinds; ++kind) {
    numbers.operations[kind] = 2;
    numbers.bytes[kind] = 100;
    numbers.batches[kind] = 1;
  }
  numbers.waiting_ns = 1'000'000'000;
  numbers.waiting_since = 9'000'000'000;
  for (const int64_t ns : {int64_t{5'000}, int64_t{1'000'000}, int64_t{3'000'000'000}}) {
    ++numbers.collective.buckets[stats::Buckets::of(ns)];
    numbers.collective.nanoseconds += ns;
  }
  numbers.late_of[0] = 1 - rank + 1;
  numbers.late[0] = 500'000'000;
  return one;
}

std::map<std::string, double> samples(const std::string& text) {
  std::map<std::string, double> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#")) continue;
    const size_t space = line.rfind(' ');
    REQUIRE(space != std::string::npos);
    CHECK(out.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second);
  }
  return out;
}

TEST_CASE("metrics say what was counted, in base units", "[metrics]") {
  JobVitals job{"0123456789abcdef", "python \"x\"", {vitals_of(0), vitals_of(1)}, {}, 3};
  const auto found = samples(metrics_text(job, "0.1.0"));
  CHECK(found.at("rueda_world_size") == 2);
  CHECK(found.at("rueda_ranks_lost_total") == 3);
  CHECK(found.at("rueda_bytes_total{rank=\"1\"}") == 1600);
  CHECK(found.at("rueda_batches_total{rank=\"0\",kind=\"allreduce\"}") == 1);
  CHECK(found.at("rueda_batches_total{rank=\"0\",kind=\"other\"}") == 10);
  CHECK(found.at("rueda_wait_seconds_total{rank=\"0\"}") == Approx(2));  // one lasts
  CHECK(found.at("rueda_pending_operations{rank=\"0\"}") == 2);
  CHECK(found.at("rueda_late_seconds_total{rank=\"0\"}") == Approx(0.5));
  CHECK(found.at("rueda_collective_seconds_count{rank=\"0\"}") == 3);
  CHECK(found.at("rueda_collective_seconds_sum{rank=\"0\"}") == Approx(3.001005));
  CHECK(found.at("rueda_collective_seconds_bucket{rank=\"0\",le=\"8.192e-06\"}") == 1);
  CHECK(found.at("rueda_collective_seconds_bucket{rank=\"0\",le=\"0.004194304\"}") == 2);
  CHECK(found.at("rueda_collective_seconds_bucket{rank=\"0\",le=\"+Inf\"}") == 3);
}

TEST_CASE("a rank's host has so many ranks, which alone can see it be late", "[metrics]") {
  JobVitals job{"j", "c", {vitals_of(0), vitals_of(1), vitals_of(2)}, {}, 0};
  job.ranks[2].host = "other";
  const auto found = samples(metrics_text(job, "v"));
  CHECK(found.at("rueda_local_size{rank=\"1\"}") == 2);
  CHECK(found.at("rueda_local_size{rank=\"2\"}") == 1);
}

TEST_CASE("a rank has 40 series at most, whatever it does", "[metrics]") {
  JobVitals job{"j", "c", {}, {}, 0};
  for (Rank rank = 0; rank < 10; ++rank) job.ranks.push_back(vitals_of(rank));
  std::map<std::string, int> by_rank;
  const std::regex label("rank=\"(\\d+)\"");
  for (const auto& [name, value] : samples(metrics_text(job, "v"))) {
    std::smatch match;
    if (std::regex_search(name, match, label)) ++by_rank[match[1]];
  }
  REQUIRE(by_rank.size() == 10);
  for (const auto& [rank, count] : by_rank) CHECK(count <= 40);
}

TEST_CASE("a rank that has not begun has no numbers yet, and labels are escaped", "[metrics]") {
  JobVitals job{"a\"b\\c\nd", "c", {RankVitals{}}, {}, 0};
  const std::string text = metrics_text(job, "v");
  CHECK(text.find("job=\"a\\\"b\\\\c") != std::string::npos);
  const auto found = samples(text);
  CHECK(found.at("rueda_rank_up{rank=\"0\"}") == 1);
  CHECK(found.count("rueda_bytes_total{rank=\"0\"}") == 0);
}

TEST_CASE("the health page says who is lost or stalls", "[metrics]") {
  JobVitals job{"j", "c", {vitals_of(0), vitals_of(1)}, {}, 0};
  CHECK(metrics_page("/healthz", job).code == 200);
  CHECK(metrics_page("/metrics", job).code == 200);
  CHECK(metrics_page("/", job).code == 404);
  job.ranks[1].stalled = 2;
  HttpPage page = metrics_page("/healthz", job);
  CHECK(page.code == 503);
  CHECK(page.body == "stalled: rank 1 waits for others (rueda status says for whom)\n");
  job.ranks[0].life = RankRecord::Life::kDead;
  job.ranks[0].state = "killed by signal 9 (SIGKILL)";
  page = metrics_page("/healthz", job);
  CHECK(page.code == 503);
  CHECK(page.body == "rank 0 is lost: killed by signal 9 (SIGKILL)\n");
}

TEST_CASE("questions about a rank name one", "[metrics]") {
  CHECK(asked_rank("rank 12") == Rank{12});
  for (const char* other :
       {"rank", "rank ", "rank x", "rank 1 2", "rank -1", "rank 99999999999", "status"})
    CHECK_FALSE(asked_rank(other).has_value());
}

TEST_CASE("what memory says cannot do harm", "[metrics]") {
  RankVitals one = vitals_of(0);
  one.flight->stats.transport = 0x2220202020223c3e;  // no letters
  JobVitals job{"j", "c", {one}, {}, 0};
  CHECK(metrics_text(job, "v").find("transport=\"\"") != std::string::npos);
}

}  // namespace
}  // namespace rueda::launcher
