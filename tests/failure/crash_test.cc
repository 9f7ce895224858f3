// A rank crashes, or has much memory: the others are told at once, before its core is written and
// its memory freed.
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/failure/failed_job.h"

using rueda::testing::check_death;
using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::line_with;
using rueda::testing::number_after;
using rueda::testing::setup_of;

namespace {

// Of all survivors, in seconds.
double latest_news(const Job& job, int victim, int size) {
  const double died = number_after(job.out(), "rank " + std::to_string(victim) + " dies at ");
  double latest = -1;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    latest =
        std::max(latest, number_after(job.out(), "rank " + std::to_string(rank) + " told at "));
  }
  return latest - died;
}

}  // namespace

TEST_CASE("a rank that crashes is named with its signal", "[failure][crash]") {
  check_death({"waiting", "segv", 3, 1});
  check_death({"waiting", "bus", 2, 0});
  check_death({"waiting", "fpe", 2, 1, "tcp"});
  check_death({"waiting", "ill", 2, 1});
}

TEST_CASE("the verdict says who, where, what it did last, and why", "[failure][crash]") {
  Job job(job_of(3, "", {"waiting", "victim=1", "how=segv"}), setup_of(""));
  CHECK(job.wait() == 139);
  INFO(job.out() << job.err());
  for (const char* rank : {"rank 0", "rank 2"}) {
    const std::string told = line_with(job.out(), std::string(rank) + " told at ");
    CHECK_THAT(told, Catch::Contains("rank 1 (pid ") && Catch::Contains(") was lost: ") &&
                         Catch::Contains("SIGSEGV") &&
                         Catch::Contains("its last operation was barrier 'noname.0' (number 1"));
    CHECK_THAT(line_with(job.out(), std::string(rank) + " asked: "),
               Catch::Contains("lost_rank 1, ") && Catch::Contains(" 1 operations, last barrier."));
  }
  CHECK_THAT(job.err(), Catch::Contains("its last operation was barrier 'noname.0'"));
}

TEST_CASE("a rank with much memory is known to be dead before it is freed", "[failure][crash]") {
  Job job(job_of(3, "", {"large", "victim=1", "how=kill", "ballast=1024"}), setup_of(""));
  CHECK(job.wait() == 137);
  INFO(job.out() << job.err());
  for (const char* rank : {"rank 0", "rank 2"}) {
    const std::string told = line_with(job.out(), std::string(rank) + " told at ");
    // The signal is known only once 1 GiB has been given back; nobody waited for that.
    CHECK_THAT(told, Catch::Contains("rank 1 (pid ") && Catch::Contains("[cause pending]"));
  }
  CHECK_THAT(job.err(), Catch::Contains("rank 1 (pid ") && Catch::Contains("(SIGKILL)"));
  std::printf("  1 GiB killed: news after %.1f ms\n", latest_news(job, 1, 3) * 1e3);
}

TEST_CASE("an earlier handler has the last word", "[failure][crash]") {
  SECTION("one that ends the process") {
    Job job(job_of(2, "", {"handled", "victim=1", "how=segv"}), setup_of(""));
    CHECK(job.wait() == 139);
    INFO(job.out() << job.err());
    CHECK_THAT(job.out(), Catch::Contains("handler of signal 11"));
    CHECK_THAT(line_with(job.out(), "rank 0 told at "), Catch::Contains("rank 1 (pid "));
  }
  SECTION("one that returns, before an end of another kind") {
    Job job(job_of(2, "", {"handled", "victim=1", "handler=returns", "how=kill"}), setup_of(""));
    CHECK(job.wait() == 137);
    INFO(job.out() << job.err());
    const std::string told = line_with(job.out(), "rank 0 told at ");
    CHECK_THAT(told, Catch::Contains("rank 1 (pid ") && !Catch::Contains("SIGFPE"));
  }
  SECTION("one that goes on") {
    Job job(job_of(2, "", {"handled", "victim=1", "handler=recovers"}), setup_of(""));
    CHECK(job.wait() == 0);
    INFO(job.out() << job.err());
    CHECK_THAT(job.out(), Catch::Contains("rank 1 survived") &&
                              Catch::Contains("rank 0 finished") &&
                              Catch::Contains("rank 1 finished"));
  }
}

TEST_CASE("a handler that comes later is not disturbed", "[failure][crash]") {
  Job job(job_of(2, "", {"recovers"}), setup_of(""));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK_THAT(job.out(), Catch::Contains("rank 1 survived 3"));
}

TEST_CASE("without handlers a crash is known all the same", "[failure][crash]") {
  Job::Setup setup = setup_of("");
  setup.environment.emplace_back("RUEDA_CRASH_HANDLERS=0");
  Job job(job_of(2, "", {"waiting", "victim=1", "how=segv"}), setup);
  CHECK(job.wait() == 139);
  CHECK_THAT(line_with(job.out(), "rank 0 told at "), Catch::Contains("rank 1 (pid "));
}
