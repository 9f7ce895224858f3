// What is said of a slow rank: the cause where there is one, and what balancing would save.
#include "runtime/engine/slow_rank.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include "runtime/engine/disk_use.h"

namespace rueda::engine {
namespace {

Stragglers::Finding finding_of(Rank rank, double share) {
  Stragglers::Finding finding;
  finding.rank = rank;
  finding.times = 195;
  finding.cost = static_cast<Stragglers::Nanos>(share * Stragglers::kWindow);
  finding.share = share;
  return finding;
}

TEST_CASE("balancing saves what moving samples one by one would", "[slow_rank]") {
  for (const Rank size : {2, 3, 8, 64}) {
    for (const double slower : {1.15, 1.2, 2.0, 5.0}) {  // the slow rank's time for a sample
      constexpr double kEach = 1e6;                      // samples of a rank
      double low = 0, high = kEach;                      // samples that the slow rank keeps
      for (int i = 0; i < 100; ++i) {
        const double keeps = (low + high) / 2;
        const double others = (size * kEach - keeps) / (size - 1);
        (keeps * slower > others ? high : low) = keeps;
      }
      const double before = kEach * slower, after = low * slower;
      INFO(size << " ranks, one takes " << slower << " times as long");
      CHECK(saved_by_balancing((before - kEach) / before, size) ==
            Approx((before - after) / before));
    }
  }
}

TEST_CASE("a slow rank's report names its cause where there is one", "[slow_rank]") {
  const auto said = [](Stragglers::Finding finding) {
    return slow_rank_text("rank 0 (pid 4713 on node2)", finding, 4);
  };
  const std::string begin =
      "rank 0 (pid 4713 on node2) is slow: of the last 10 s the others waited 3.9 s for it (39 %, "
      "195 times). ";
  const std::string end =
      ". rueda top and ruedarun --summary show more; RUEDA_NAME_SLOW_RANKS=0 silences this";
  const std::string balance =
      ". If it just computes slower, hvd.balance would make steps about 32 % shorter "
      "(docs/data.md#slow-ranks)";
  const std::string hint =
      "Look there for a busier host, more ranks than cores, slower data loading, or work that it "
      "alone does (checkpoints, evaluation)";
  const std::string of_root = "; rank 0 often writes files, logs and lists folders for all";
  auto finding = finding_of(0, 0.39);
  CHECK(said(finding) == begin + hint + of_root + balance + end);
  finding.rank = 1;
  CHECK(said(finding) == begin + hint + balance + end);
  finding.rank = 0;
  finding.disk_bytes = 120e6;
  finding.own_disk_bytes = 70e6;  // so have the others
  CHECK(said(finding) == begin + hint + of_root + balance + end);
  finding.own_disk_bytes = 0;
  CHECK(said(finding) ==
        begin +
            "It alone reads or writes files: 120 MB each second, where another rank had 0. What is "
            "written less often, or in the background, costs less (docs/checkpoints.md)" +
            balance + end);
  finding.disk_bytes = 9e6;  // too little to matter
  CHECK(said(finding) == begin + hint + of_root + balance + end);
  finding.disk = 0.31;
  CHECK(said(finding) == begin +
                             "The cause is a disk: that blocked it for 31 % of its time. Write "
                             "less often, or in the background (docs/checkpoints.md)" +
                             end);
  finding.data = 0.36;
  CHECK(said(finding) == begin +
                             "The cause is its data: it waited for that for 36 % of its time. More "
                             "workers, a larger prefetch or another disk help (docs/data.md)" +
                             end);
  finding.data = finding.disk = 0.09;  // less than a quarter of what it cost
  CHECK(said(finding) == begin + hint + of_root + balance + end);
}

TEST_CASE("what a process has to do with disks is read from the kernel's files", "[slow_rank]") {
  // Field 42 is 250; the name holds a bracket and spaces.
  const std::string stat =
      "77 (a) b (c) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 100 1000 200 "
      "18446744073709551615 "
      "1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 0 250 0 0 0 0 0 0 0 0 0 0\n";
  const std::string io =
      "rchar: 9\nwchar: 9\nsyscr: 9\nsyscw: 9\nread_bytes: 4096\nwrite_bytes: 8192\n"
      "cancelled_write_bytes: 9\n";
  const auto use = parse_disk_use(stat, io, 100);
  REQUIRE(use);
  CHECK(use->blocked == 2'500'000'000);
  CHECK(use->bytes == 12288);
  REQUIRE(parse_disk_use(stat, "", 100));  // of another user
  CHECK(parse_disk_use(stat, "", 100)->bytes == 0);
  for (const char* none : {"", "77", "77 (a) S 1 2 3"}) CHECK_FALSE(parse_disk_use(none, io, 100));
  CHECK(disk_use(getpid()));
  CHECK_FALSE(disk_use(-1));
}

}  // namespace
}  // namespace rueda::engine
