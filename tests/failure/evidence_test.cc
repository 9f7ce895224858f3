// What is known before a verdict is complete: a crash while its core is written, and a lost
// connection of which the agent says nothing.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

#include "tests/failure/failed_job.h"
#include "tests/support/built.h"
#include "tests/support/folder.h"

using rueda::testing::eventually;
using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::line_with;
using rueda::testing::number_after;
using rueda::testing::pid_of_rank;
using rueda::testing::setup_of;

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool dumps_core(pid_t pid) {
  return text_of("/proc/" + std::to_string(pid) + "/status").find("CoreDumping:\t1") !=
         std::string::npos;
}

// Ended, and not reaped.
bool is_over(pid_t pid) {
  const std::string stat = text_of("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat.compare(name_end + 2, 1, "Z") == 0;
}

// A job of three whose rank 1 is about to dump a core, in this folder; nothing where none is
// written.
struct DumpingJob {
  explicit DumpingJob(bool handlers) {
    Job::Setup setup = setup_of("");
    if (!handlers) setup.environment.emplace_back("RUEDA_CRASH_HANDLERS=0");
    std::vector<std::string> words =
        job_of(3, "",
               {"dumps", "victim=1", "how=segv",
                "folder=" + std::filesystem::absolute(folder.file(".")).string()});
    words.insert(words.begin(), {"--grace-period", "60"});
    job.emplace(words, setup);
    found = job->wait_for_output("rank 1 pid ");
    pid = pid_of_rank(*job, 1);
    found = found && pid > 0 && job->out().find("cannot dump") == std::string::npos;
  }
  rueda::testing::Folder folder;
  std::optional<Job> job;
  pid_t pid = 0;
  bool found = false;
};

// A pattern that names a file: a program that takes cores may be quick, or refuse.
bool cores_are_files() {
  const std::string pattern = text_of("/proc/sys/kernel/core_pattern");
  return !pattern.empty() && pattern[0] != '|' && pattern[0] != '@' && pattern[0] != '\n';
}

}  // namespace

TEST_CASE("a crash is told while its core is still being written", "[failure][crash]") {
  if (!cores_are_files()) {
    WARN("cores are not written to files here");
    return;
  }
  DumpingJob dumping(true);
  REQUIRE(dumping.found);
  Job& job = *dumping.job;
  REQUIRE(job.wait_for_output(" told at ", 2));
  // The handler tells before it lets the kernel begin.
  const bool still_dumping =
      rueda::testing::eventually([&dumping] { return dumps_core(dumping.pid); });
  CHECK(job.wait() == 139);
  INFO(job.out() << job.err());
  CHECK(still_dumping);
  for (const char* rank : {"rank 0", "rank 2"}) {
    CHECK_THAT(line_with(job.out(), std::string(rank) + " told at "),
               Catch::Contains("rank 1 (pid ") && Catch::Contains("crashed with SIGSEGV") &&
                   Catch::Contains("[cause pending]"));
  }
  CHECK_THAT(job.err(), Catch::Contains("ruedarun: rank 1 (pid ") && Catch::Contains("(SIGSEGV"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a rank that dumps its core without our handlers is named and waited for",
          "[failure][crash]") {
  if (!cores_are_files()) {
    WARN("cores are not written to files here");
    return;
  }
  DumpingJob dumping(false);
  REQUIRE(dumping.found);
  Job& job = *dumping.job;
  REQUIRE(job.wait_for_output(") is dumping core; the others wait for it"));
  const bool still_dumping = dumps_core(dumping.pid);
  const bool nobody_told = job.out().find(" told at ") == std::string::npos;
  CHECK(job.wait() == 139);
  INFO(job.out() << job.err());
  CHECK(still_dumping);
  CHECK(nobody_told);
  CHECK_THAT(line_with(job.out(), "rank 0 told at "), Catch::Contains("rank 1 (pid "));
  CHECK(job.wait_until_gone());
}

TEST_CASE("too few descriptors are told with how many it takes", "[failure]") {
#ifndef __SANITIZE_ADDRESS__  // whose checks take descriptors themselves
  Job rank({"-np", "2", "sh", "-c", "ulimit -n 12; exec \"$0\" steps steps=1 mib=1",
            built::kRankProgram},
           setup_of(""));
  CHECK(rank.wait() != 0);
  INFO(rank.out() << rank.err());
  CHECK_THAT(rank.out(),
             Catch::Contains("Too many open files; this process may have 12 descriptors "
                             "open (ulimit -n); rueda needs up to 13 in a job of 2 ranks"));
#endif
  Job::Setup shell;
  shell.program = "/bin/sh";
  Job agent({"-c", std::string("ulimit -n 40; exec ") + built::kRuedarun + " -np 16 true"}, shell);
  CHECK(agent.wait() == 70);
  INFO(agent.err());
  CHECK_THAT(agent.err(),
             Catch::Contains("this process may have 40 descriptors open (ulimit -n); the "
                             "agent needs about 148 for 16 ranks"));
  CHECK(agent.wait_until_gone());
}

TEST_CASE("a lost connection is told after a second when the agent says nothing of it",
          "[failure]") {
  for (const std::string transport : {"", "tcp"}) {
    Job job(job_of(3, transport, {"summoned", "victim=1", "how=kill"}), setup_of(transport));
    REQUIRE(job.wait_for_output(" is there", 3));
    std::vector<pid_t> pids;
    for (int rank = 0; rank < 3; ++rank) pids.push_back(pid_of_rank(job, rank));
    const pid_t agent = job.agent();
    REQUIRE(agent > 0);
    kill(agent, SIGSTOP);  // whoever decides is not there: the ranks must not wait for it for ever
    kill(pids[1], SIGUSR1);
    for (const int rank : {0, 2})
      CHECK(eventually([&] { return is_over(pids[static_cast<size_t>(rank)]); }));
    kill(agent, SIGCONT);
    CHECK(job.wait() == 137);
    INFO(job.out() << job.err());
    const double died = number_after(job.out(), "rank 1 dies at ");
    for (const char* rank : {"rank 0", "rank 2"}) {
      const std::string told = line_with(job.out(), std::string(rank) + " told at ");
      CHECK_THAT(told, Catch::Contains("rank 1 (pid ") && Catch::Contains("was lost: "));
      CHECK(number_after(told, "told at ") - died >= 0.9);
      // Nor is the launcher waited for as patiently as in init (StoreClient::kGrace, 30 s).
      CHECK(number_after(told, "told at ") - died <= 20);
    }
    // The agent knows who was first, although all had ended when it looked again.
    CHECK_THAT(job.err(),
               Catch::Contains("ruedarun: rank 1 (pid ") && Catch::Contains("(SIGKILL)"));
    CHECK(job.wait_until_gone());
  }
}
