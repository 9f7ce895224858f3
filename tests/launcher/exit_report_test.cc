#include "launcher/job/exit_report.h"

#include <signal.h>

#include <catch2/catch.hpp>

using namespace rueda::launcher;
using Lines = std::vector<std::string>;

namespace {

int exited(int code) { return code << 8; }
int killed(int signal) { return signal; }

JobEnd failed_job(std::vector<RankEnd> ends) {
  JobEnd job;
  job.cause = StopCause::kRankFailed;
  job.ends = std::move(ends);
  return job;
}

}  // namespace

TEST_CASE("a job without failure ends with 0 and says nothing", "[exit_report]") {
  JobEnd job;
  job.ends = {{0, 10, exited(0), 1, false}, {1, 11, exited(0), 2, false}};
  const Verdict verdict = judge(job);
  CHECK(verdict.exit_code == 0);
  CHECK(verdict.lines.empty());
}

TEST_CASE("a rank that was lost is a failure, though its command ends with 0", "[exit_report]") {
  JobEnd job;
  job.ends = {{0, 10, exited(0), 1, false}, {1, 11, exited(0), 2, false}};
  job.lost.emplace();
  job.lost->rank = 1;
  job.lost->operations = 7;
  job.lost->operation.set("allreduce.x");
  job.lost->cause.set("exited with code 0");
  job.lost_inside = true;
  CHECK(judge(job).exit_code == 0);  // when all was done: nobody was hurt
  job.reports = {{0, "allreduce 'x': rank 1 was lost"}};
  job.lost_inside = false;
  CHECK(judge(job).exit_code == 0);  // it says itself that it ended well
  job.lost_inside = true;
  const Verdict verdict = judge(job);
  CHECK(verdict.exit_code == 1);
  CHECK(verdict.culprit == 1);
  CHECK(verdict.lines ==
        Lines{"rank 1 (pid 11) failed: it ended without leaving the job, although its command "
              "exited with code 0",
              "  its last operation was allreduce 'x' (number 7)",
              "rank 0 reported: allreduce 'x': rank 1 was lost", "exit code 1"});
  job.lost->cause.set("stopped for 5 s, then killed");
  CHECK(judge(job).lines.front() ==
        "rank 1 (pid 11) failed: stopped for 5 s, then killed, although its command exited with "
        "code 0");
}

TEST_CASE("the first rank to fail by time decides, not the lowest", "[exit_report]") {
  const Verdict verdict = judge(failed_job(
      {{2, 12, exited(3), 1, false}, {0, 10, exited(1), 2, false}, {1, 11, exited(1), 2, false}}));
  CHECK(verdict.exit_code == 3);
  CHECK(verdict.culprit == 2);
  CHECK(verdict.lines == Lines{"rank 2 (pid 12) failed: exited with code 3",
                               "ranks 0, 1 then exited with code 1; exit code 3"});
}

TEST_CASE("of deaths noticed together the killed one comes first", "[exit_report]") {
  const Verdict verdict =
      judge(failed_job({{0, 10, exited(1), 4, false}, {3, 13, killed(SIGKILL), 4, false}}));
  CHECK(verdict.exit_code == 137);
  CHECK(verdict.culprit == 3);
}

TEST_CASE("of deaths noticed together the one that blamed nobody comes first", "[exit_report]") {
  JobEnd job = failed_job({{0, 10, exited(1), 4, false}, {1, 11, exited(7), 4, false}});
  job.reports = {{0, "allreduce 'x': rank 1 was lost"}};
  const Verdict verdict = judge(job);
  CHECK(verdict.exit_code == 7);
  CHECK(verdict.lines == Lines{"rank 1 (pid 11) failed: exited with code 7",
                               "rank 0 reported: allreduce 'x': rank 1 was lost",
                               "rank 0 then exited with code 1; exit code 7"});
}

TEST_CASE("a rank that blamed a peer comes after the peer, though it ended first",
          "[exit_report]") {
  JobEnd job = failed_job({{0, 10, exited(1), 1, false}, {1, 11, exited(4), 2, false}});
  job.reports = {{0, "rank 1 has been shut down"}};
  const Verdict verdict = judge(job);
  CHECK(verdict.exit_code == 4);
  CHECK(verdict.culprit == 1);
}

TEST_CASE("ranks that we stopped are told apart, and so are last words", "[exit_report]") {
  JobEnd job = failed_job({{1, 11, killed(SIGSEGV), 1, false},
                           {0, 10, killed(SIGTERM), 2, true},
                           {2, 12, exited(0), 3, true},
                           {3, 13, exited(0), 0, false}});
  job.last_words[1] = {"one", "two"};
  const Verdict verdict = judge(job);
  CHECK(verdict.exit_code == 139);
  CHECK(verdict.lines ==
        Lines{"rank 1 (pid 11) failed: killed by signal 11 (SIGSEGV, invalid memory access)",
              "its last words:", "  | one", "  | two", "ranks 0, 2 were stopped; exit code 139"});
}

TEST_CASE("a rank that fails while we clear up is still a failure", "[exit_report]") {
  JobEnd job;
  job.ends = {{0, 10, exited(5), 1, false}};
  CHECK(judge(job).exit_code == 5);
}

TEST_CASE("an interrupted job ends with the signal's code", "[exit_report]") {
  JobEnd job;
  job.cause = StopCause::kSignal;
  job.signal = SIGINT;
  job.ends = {{0, 10, exited(1), 1, true}, {1, 11, exited(0), 1, true}};
  const Verdict verdict = judge(job);
  CHECK(verdict.exit_code == 130);
  CHECK(verdict.lines == Lines{"interrupted by SIGINT", "ranks 0, 1 were stopped; exit code 130"});
  job.signal = SIGTERM;
  CHECK(judge(job).exit_code == 143);
  job.cause = StopCause::kOutputClosed;
  CHECK(judge(job).exit_code == 141);
}

TEST_CASE("a report of several lines stays readable", "[exit_report]") {
  JobEnd job = failed_job({{0, 10, exited(1), 1, false}});
  job.reports = {{0, "first\nsecond\n"}};
  CHECK(judge(job).lines == Lines{"rank 0 (pid 10) failed: exited with code 1",
                                  "it reported: first", "  | second", "exit code 1"});
  job.last_words[0] = {"Traceback", "E: first", "second"};  // is not repeated
  CHECK(judge(job).lines == Lines{"rank 0 (pid 10) failed: exited with code 1",
                                  "its last words:", "  | Traceback", "  | E: first",
                                  "it reported: first", "  | second", "exit code 1"});
}

TEST_CASE("who leaves with code 0 while others need it is named first, by whom it hurt",
          "[exit_report]") {
  JobEnd job = failed_job(
      {{1, 11, exited(0), 1, false}, {0, 10, exited(1), 2, false}, {2, 12, exited(1), 3, false}});
  const std::string report = "allreduce 'x': rank 1 (pid 11 on a) has left (it called shutdown)";
  job.reports = {{0, report}};
  CHECK(judge(job).culprit == 2);  // it blames nobody
  job.reports.emplace_back(2, report);
  const Verdict verdict = judge(job);
  CHECK(verdict.culprit == 1);
  CHECK(verdict.exit_code == 1);
  CHECK(verdict.lines == Lines{"rank 1 (pid 11) exited with code 0 while others still needed it",
                               "rank 0 (pid 10) then failed: exited with code 1",
                               "it reported: " + report,
                               "rank 2 then exited with code 1; exit code 1"});
  job.ends[0].stopped = true;
  CHECK(judge(job).lines.front() ==
        "rank 1 (pid 11) is whom the others waited for; it was stopped");
  job.reports = {{0, "rank 1 has not called init after 6 s (RUEDA_START_TIMEOUT)"}};
  CHECK(judge(job).culprit == 2);  // who blames nobody
  job.reports.emplace_back(2, job.reports.front().second);
  CHECK(judge(job).lines.front() ==
        "rank 1 (pid 11) is whom the others waited for; it was stopped");
  job.ends[0] = {11, 11, exited(0), 1, false};
  CHECK(judge(job).culprit == 0);  // "rank 1 (pid" is not rank 11
}

TEST_CASE("several ranks are lost with their host", "[exit_report]") {
  JobEnd job = failed_job({{0, 10, exited(1), 1, false}});
  for (const int rank : {2, 3}) {
    job.ends.push_back({rank, 12, 0, 2, false});
    job.ends.back().lost = "lost with its host b";
  }
  CHECK(judge(job).lines.back() == "ranks 2, 3 then were lost with their host b; exit code 1");
}

TEST_CASE("ranks are named briefly", "[exit_report]") {
  CHECK(name_ranks({4}) == "rank 4");
  CHECK(name_ranks({1, 0}) == "ranks 0, 1");
  CHECK(name_ranks({5, 0, 1, 2, 7}) == "ranks 0-2, 5, 7");
}

TEST_CASE("codes that shells give a meaning are put in words", "[exit_report]") {
  CHECK(describe_wait_status(exited(127)) == "exited with code 127 (command not found)");
  CHECK(describe_wait_status(killed(SIGKILL)) == "killed by signal 9 (SIGKILL)");
  CHECK(exit_code_of(killed(SIGKILL)) == 137);
}

TEST_CASE("a rank that we killed is no culprit, though it blamed nobody", "[exit_report]") {
  JobEnd job = failed_job({{0, 10, killed(SIGKILL), 2, true}, {1, 11, exited(4), 2, false}});
  job.reports = {{1, "rank 0 does not answer"}};
  const Verdict verdict = judge(job);
  CHECK(verdict.exit_code == 4);
  CHECK(verdict.culprit == 1);
}

TEST_CASE("of an elastic job what was decided counts, whoever had failed before", "[exit_report]") {
  JobEnd job;
  job.cause = StopCause::kRankFailed;
  job.decided = {124, "only 1 ranks were there for 9 s, and --min-np is 2"};
  CHECK(judge(job).exit_code == 124);
  CHECK(judge(job).lines == Lines{job.decided->text, "exit code 124"});

  job.decided = {137, "rank 2 on b: killed by signal 9 (SIGKILL)", 5};
  job.ends = {{2, 12, killed(SIGKILL), 1, false}};
  job.last_words[2] = {"no more memory"};
  CHECK(judge(job).culprit == 2);
  CHECK(judge(job).lines == Lines{"rank 2 (pid 12) failed: killed by signal 9 (SIGKILL)",
                                  "its last words: no more memory", "exit code 137"});
  job.decided->text = "every host has failed: rank 2 on b: killed";
  CHECK(judge(job).lines.front() == job.decided->text);

  job.decided = DecidedEnd{};
  CHECK(judge(job).exit_code == 0);
  CHECK(judge(job).lines.empty());
  job.cause = StopCause::kSignal;
  job.signal = SIGTERM;
  CHECK(judge(job).exit_code == 128 + SIGTERM);
}
