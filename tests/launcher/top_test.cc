// `rueda top`: rates between two moments, who is slow and why, and lines that fit.
#include <catch2/catch.hpp>

#include "launcher/observe/vitals_json.h"
#include "launcher/tools/top/table.h"

namespace rueda::top {
namespace {

size_t columns_of(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

RankSample rank_at(Rank rank, double now) {
  RankSample one;
  one.rank = rank;
  one.pid = 1000 + rank;
  one.host = "node" + std::to_string(rank / 2);
  one.life = "running";
  one.state = "computing";
  one.transport = "shm+tcp";
  one.has_joined = true;
  one.now = now;
  one.steps = one.timed_steps = 100 * now;
  one.step_seconds = now;
  one.bytes = 1e9 * now;
  one.batches = one.planned_batches = 50 * now;
  one.cpu_seconds = now;
  one.resident_bytes = 3e9;
  return one;
}

Sample job_at(double now, Rank ranks = 4) {
  Sample job;
  job.job = "0123456789abcdef";
  job.command = "python train.py";
  job.size = ranks;
  for (Rank rank = 0; rank < ranks; ++rank) job.ranks.push_back(rank_at(rank, now));
  return job;
}

TEST_CASE("rates are of the time in between", "[top]") {
  Rates rates;
  rates.take(job_at(10));
  CHECK(rates.rows()[0].step_seconds == Approx(0.01));
  CHECK(rates.rows()[0].bytes_per_second == 0);
  Sample next = job_at(12);
  next.ranks[1].step_seconds = 10 + 4;  // of 200 steps
  next.ranks[1].late_seconds = 1;       // one other on its host, two seconds
  next.ranks[0].waiting_seconds = 1;
  rates.take(next);
  CHECK(rates.rows()[1].step_seconds == Approx(0.02));
  CHECK(rates.rows()[1].late == Approx(0.5));
  CHECK(rates.rows()[0].waiting == Approx(0.5));
  CHECK(rates.rows()[0].bytes_per_second == Approx(1e9));
  CHECK(rates.rows()[0].cores == Approx(1));
  CHECK(rates.planned_share() == Approx(1));
  CHECK(rates.rows()[1].history == std::vector<double>{0.02});
}

TEST_CASE("another process in a rank's place begins anew", "[top]") {
  Rates rates;
  rates.take(job_at(10));
  rates.take(job_at(11));
  Sample next = job_at(12);
  next.ranks[2] = rank_at(2, 1);  // its counters are smaller
  next.ranks[2].pid = 77;
  rates.take(next);
  CHECK(rates.rows()[2].bytes_per_second == 0);
  CHECK(rates.rows()[2].history.empty());
}

TEST_CASE("the slowest rank is named with its cause", "[top]") {
  const auto said = [](auto change) {
    Rates rates;
    rates.take(job_at(10));
    Sample next = job_at(11);
    next.ranks[3].late_seconds = 0.5;
    change(&next.ranks[3]);
    rates.take(next);
    return slowest(rates.rows());
  };
  const std::string begin = "rank 3 on node1: the others waited for it for 50 % of their time; ";
  CHECK(said([](RankSample*) {}) == begin + "it computes longer than the others (100 % of a core)");
  CHECK(said([](RankSample* one) { one->data_wait_seconds = 0.6; }) ==
        begin + "it waits for data for 60 % of its time");
  CHECK(said([](RankSample* one) { one->delayed_seconds = 0.4; }) ==
        begin + "it waits for a core for 40 % of its time: its host has more to do than cores");
  CHECK(said([](RankSample* one) {
          one->delayed_seconds = 0.4;
          one->host_cpu_seconds = 2.9;  // two ranks have had a second each
        }) ==
        begin + "it waits for a core for 40 % of its time: other processes use 0.9 cores there");
  CHECK(said([](RankSample* one) {
          one->late_seconds = 0;
          one->delayed_seconds = 0.5;
          one->host_cpu_seconds = 2.9;
        }) ==
        "the ranks on node1 wait for a core for 25 % of their time: other processes use "
        "0.9 cores there");
  CHECK(said([](RankSample* one) {
          one->cpu_seconds = 10.1;
          one->state = "blocked in read of descriptor 5";
        }) == begin + "it does not compute (10 % of a core): blocked in read of descriptor 5");
  CHECK(said([](RankSample* one) {
          one->cpu_seconds = 12.5;
          one->delayed_seconds = 0.4;
        }) == begin +
                  "it computes longer than the others (250 % of a core, they 100 %) and waits "
                  "for a core for 40 % of its time: its host has more to do than cores");
  CHECK(said([](RankSample* one) {
          one->cpu_seconds = 10.1;
          one->state = "computes";  // at that moment
        }) == begin +
                  "it does not compute (10 % of a core), nor wait for data: it sleeps, or is "
                  "stopped now and then");
  CHECK(said([](RankSample* one) { one->state = "stopped by a signal"; }) ==
        begin + "it is stopped by a signal");
  CHECK(said([](RankSample* one) { one->late_seconds = 0; }).empty());
}

TEST_CASE("late is of the time of the ranks that share the host", "[top]") {
  Rates rates;
  Sample before = job_at(10, 64), next = job_at(11, 64);
  for (Sample* sample : {&before, &next}) {
    for (RankSample& one : sample->ranks) one.host = "node" + std::to_string(one.rank / 8);
  }
  next.ranks[13].late_seconds = 7 * 0.9;  // as the seven others of its host have seen it
  rates.take(before);
  rates.take(next);
  CHECK(rates.rows()[13].late == Approx(0.9));
  CHECK(slowest(rates.rows()).starts_with("rank 13 on node1: the others waited for it for 90 %"));
}

TEST_CASE("where nobody is seen to be late, who waits least is waited for", "[top]") {
  const auto said = [](std::vector<double> waiting, auto change) {
    Rates rates;
    Sample before = job_at(10, static_cast<Rank>(waiting.size()));
    Sample next = job_at(11, static_cast<Rank>(waiting.size()));
    for (size_t rank = 0; rank < waiting.size(); ++rank) {
      before.ranks[rank].host = next.ranks[rank].host =
          std::string(1, static_cast<char>('a' + rank));
      next.ranks[rank].waiting_seconds = waiting[rank];
    }
    change(&before, &next);
    rates.take(before);
    rates.take(next);
    return slowest(rates.rows());
  };
  const auto nothing = [](Sample*, Sample*) {};
  CHECK(said({0.99, 0}, nothing) ==
        "rank 1 on b waits for nobody, the others wait 99 % of the time; it computes longer than "
        "the others (100 % of a core)");
  CHECK(said({0.4, 0.2, 0.5, 0.6}, nothing) ==
        "rank 1 on b waits least, 20 % of its time, the others wait 50 % of the time; it computes "
        "longer than the others (100 % of a core)");
  CHECK(said({0.99, 0}, [](Sample*, Sample* next) { next->ranks[1].data_wait_seconds = 0.8; }) ==
        "rank 1 on b waits for nobody, the others wait 99 % of the time; it waits for data for "
        "80 % of its time");
  CHECK(said({0.3, 0.25, 0.35}, nothing).empty());
  CHECK(said({0.9}, nothing).empty());
  // Of who was not there, or has ended, it is not known what it waits for.
  CHECK(said({0.9, 0.9, 0}, [](Sample* before, Sample*) { before->ranks.pop_back(); }).empty());
  CHECK(said({0.9, 0.9, 0}, [](Sample*, Sample* next) { next->ranks[2].life = "dead"; }).empty());
  // Who is seen to be late comes first.
  CHECK(said({0.9, 0, 0.9}, [](Sample*, Sample* next) {
          next->ranks[2].late_seconds = 0.1;
        }).starts_with("rank 2 on c: the others waited for it for 10 %"));
}

TEST_CASE("hosts fold their ranks, and rows sort", "[top]") {
  Rates rates;
  rates.take(job_at(10));
  Sample next = job_at(11);
  next.ranks[2].late_seconds = 0.3;
  rates.take(next);
  auto hosts = fold_by_host(rates.rows());
  REQUIRE(hosts.size() == 2);
  CHECK(hosts[0].ranks == 2);
  CHECK(hosts[0].bytes_per_second == Approx(2e9));
  CHECK(hosts[1].late == Approx(0.3));
  auto rows = rates.rows();
  sort_rows(&rows, Order::kLate);
  CHECK(rows[0].rank == 2);
  sort_rows(&rows, Order::kRank);
  CHECK(rows[0].rank == 0);
}

TEST_CASE("lines fit the columns, whatever is in them", "[top]") {
  Rates rates;
  rates.take(job_at(10, 3));
  Sample next = job_at(11, 3);
  next.ranks[0].host = "a-host-with-a-very-long-name.of.a.cluster";
  next.ranks[0].state = "blocked in write of descriptor 1234567";
  next.ranks[1].host = "r\u00e4dchen";
  next.ranks[1].steps = 1e12;
  next.ranks[1].late_seconds = 2;
  next.ranks[2].life = "dead";
  next.ranks[2].state = "killed by signal 9 (SIGKILL)";
  next.health =
      "rank 2 is lost: killed by signal 9 (SIGKILL) and a long story about that which goes on and "
      "on";
  next.command = std::string(300, 'x');
  rates.take(next);
  for (const size_t columns : {size_t{40}, size_t{80}, size_t{109}, size_t{110}, size_t{200}}) {
    for (const bool by_host : {false, true}) {
      const Look look{columns, true, by_host};
      INFO(columns);
      CHECK(columns_of(table_head(look)) == columns);
      for (const Row& row : by_host ? fold_by_host(rates.rows()) : rates.rows())
        CHECK(columns_of(table_row(row, look)) == columns);
      for (const std::string& line : heading(rates, look)) CHECK(columns_of(line) <= columns);
    }
  }
}

TEST_CASE("three hundred ranks scroll, and who is chosen is shown", "[top]") {
  Rates rates;
  rates.take(job_at(10, 300));
  rates.take(job_at(11, 300));
  const int count = static_cast<int>(rates.rows().size());
  REQUIRE(count == 300);
  Window window;
  window.room = 20;
  const auto choose = [&](int chosen) {
    window.chosen = chosen;
    window.keep_within(count);
    CHECK((window.first <= window.chosen && window.chosen < window.first + window.room));
    CHECK((window.first >= 0 && window.first + window.room <= count));
    return std::pair(window.chosen, window.first);
  };
  CHECK(choose(19) == std::pair(19, 0));
  CHECK(choose(20) == std::pair(20, 1));
  CHECK(choose(1 << 20) == std::pair(299, 280));
  CHECK(choose(280) == std::pair(280, 280));
  CHECK(choose(279) == std::pair(279, 279));
  CHECK(choose(-5) == std::pair(0, 0));
  for (int chosen = 0; chosen < count; ++chosen) choose(chosen);
  const std::string last = table_row(rates.rows()[299], Look{80, true, false});
  CHECK((last.starts_with(" 299 node149") && columns_of(last) == 80));
  window.keep_within(0);
  CHECK((window.chosen == 0 && window.first == 0));
}

TEST_CASE("numbers are short", "[top]") {
  CHECK(short_time(0) == "-");
  CHECK(short_time(12e-6) == "12us");
  CHECK(short_time(0.0123) == "12.3ms");
  CHECK(short_time(0.123) == "123ms");
  CHECK(short_time(1.5) == "1.50s");
  CHECK(short_time(1234) == "1234s");
  CHECK(short_bytes(999) == "999B");
  CHECK(short_bytes(1e6) == "1.0MB");
  CHECK(short_bytes(123e9) == "123GB");
  CHECK(sparkline({1, 2, 4, 8}, 6, false) == "  _.=#");
  CHECK(sparkline({}, 3, true) == "   ");
  CHECK(sparkline({1, 1}, 1, true) == "\u2588");
}

TEST_CASE("the job's answer is understood; another is refused", "[top]") {
  launcher::JobVitals job{"0123456789abcdef", "python \"a\\b\" \u00e4", {}, {}, 2};
  launcher::RankVitals one;
  one.rank = 1;
  one.host = "node";
  one.pid = 7;
  one.state = "blocked in read";
  one.now_ns = 5'000'000'000;
  one.flight.emplace();
  one.flight->size = 3;
  one.flight->stats.steps = 12;
  one.flight->stats.bytes[0] = 1'000'000;
  one.use.cpu_ns = 2'500'000'000;
  job.ranks = {one, launcher::RankVitals{}};
  const auto sample = parse_sample(launcher::vitals_json(job));
  REQUIRE(sample.ok());
  CHECK(sample.value().command == job.command);
  CHECK(sample.value().size == 3);
  CHECK(sample.value().ranks_lost == 2);
  REQUIRE(sample.value().ranks.size() == 2);
  const RankSample& read = sample.value().ranks[0];
  CHECK(read.rank == 1);
  CHECK(read.host == "node");
  CHECK(read.pid == 7);
  CHECK(read.steps == 12);
  CHECK(read.bytes == 1e6);
  CHECK(read.cpu_seconds == Approx(2.5));
  CHECK(read.now == Approx(5));
  CHECK(read.has_joined);
  CHECK_FALSE(sample.value().ranks[1].has_joined);
  for (const char* other : {"", "{}", "[1]", "{\"job\":", "no json at all: ["})
    CHECK_FALSE(parse_sample(other).ok());
}

}  // namespace
}  // namespace rueda::top
