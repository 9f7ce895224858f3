#include "launcher/job/summary_report.h"

#include <catch2/catch.hpp>

#include <limits>

using namespace rueda;
using launcher::summary_report;

namespace {

wire::RankSummary summary(double seconds, std::vector<wire::Waited> waited = {}) {
  wire::RankSummary result;
  result.seconds = 10;
  result.stages = {{"backward", seconds, 100}, {"queued", 0, 0}, {"on the wire", 1, 200}};
  result.busy_seconds = 2;
  result.overlapped_seconds = 1.5;
  result.batches = 200;
  result.planned_batches = 150;
  result.bytes = 4'000'000'000;
  result.waited = std::move(waited);
  result.resident_peak = 400'000'000 + static_cast<uint64_t>(seconds * 1e6);
  result.heap_peak = 50'000'000;
  result.host_name = "node1";
  return result;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  INFO(part);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

TEST_CASE("the summary says where the time went and who was slow", "[summary]") {
  const auto lines = summary_report({{0, summary(4, {{1, 1.5, 30}, {2, 0.1, 3}})},
                                     {1, summary(6)},
                                     {2, summary(5, {{1, 2.0, 40}})}},
                                    3);
  const std::string text = text_of(lines);
  has(text, "summary of 3 ranks, 10.00 s");
  has(text,
      "backward             5.000   50 %       100   50.000 ms   4.000 (rank 0)     6.000 (rank "
      "1)");
  has(text, "queued                   -");
  has(text,
      "2.000 s under way, 75 % of it while backward ran; 4.0 GB in 200 batches (150 of the step "
      "plan)");
  has(text, "2.0 GB/s while under way");
  has(text, "rank 1: others slept 2.000 s until it came, 20 % of the time");
  CHECK(lines.size() <= 20);
}

TEST_CASE("ranks that sent nothing are named, and nobody is slow without a reason", "[summary]") {
  const std::string text = text_of(summary_report({{1, summary(4, {{0, 0.01, 1}})}}, 4));
  has(text, "summary of 1 rank,");
  has(text, "none: no rank was waited for");
  has(text, "nothing was heard of ranks 0, 2, 3");
  CHECK(text_of(summary_report({}, 2)).find("no rank has sent one") != std::string::npos);
}

TEST_CASE("the summary says what memory ranks and hosts had", "[summary]") {
  std::map<Rank, wire::RankSummary> ranks = {{0, summary(4)}, {1, summary(6)}, {2, summary(5)}};
  ranks[2].host = 1;
  ranks[2].host_name = "node2";
  launcher::RankEnd silent{.rank = 3};
  silent.resident_peak = 10'000'000;
  const std::string text = text_of(summary_report(ranks, 4, {silent}));
  has(text, "memory          resident, at most: 10.0 MB (rank 3) to 406.0 MB (rank 1)");
  has(text, "; of the shared heap: 50.0 MB (rank 0) to 50.0 MB (rank 0)");
  has(text, "  node1           2 ranks: 810.0 MB together");
  has(text, "  node2           1 rank: 405.0 MB together");
  has(text_of(summary_report({}, 1, {silent})), "resident, at most: 10.0 MB (rank 3)\n");
  for (int host = 0; host < 100; ++host) ranks[host].host = host;
  for (auto& [rank, one] : ranks) one.resident_peak = 1;
  CHECK(summary_report(ranks, 100).size() <= 26);
}

TEST_CASE("nonsense of a rank does no harm", "[summary]") {
  wire::RankSummary odd;
  odd.seconds = std::numeric_limits<double>::quiet_NaN();
  odd.stages.assign(64, {"x\n", std::numeric_limits<double>::infinity(), 1});
  odd.waited = {{-5, 1e300, 1}, {0, std::numeric_limits<double>::quiet_NaN(), 1}};
  const auto lines = summary_report({{0, summary(1)}, {1, odd}}, 2);
  CHECK(lines.size() <= 24);
}
