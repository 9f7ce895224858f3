#include "tests/failure/failed_job.h"
#include "tests/support/built.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>

namespace rueda::testing {
namespace {

const std::map<std::string, int> kExitCodes = {{"kill", 137}, {"abort", 134}, {"exit3", 3},
                                               {"leave", 1},  {"segv", 139},  {"bus", 135},
                                               {"fpe", 136},  {"ill", 132}};
const std::map<std::string, std::string> kEnds = {{"kill", "killed by signal 9 (SIGKILL)"},
                                                  {"abort", "killed by signal 6 (SIGABRT)"},
                                                  {"segv", "killed by signal 11 (SIGSEGV, "},
                                                  {"bus", "killed by signal 7 (SIGBUS, "},
                                                  {"fpe", "killed by signal 8 (SIGFPE)"},
                                                  {"ill", "killed by signal 4 (SIGILL)"},
                                                  {"exit3", "exited with code 3"}};

// Sockets of ranks that no process has open any more would be the kernel's fault; ones that a
// process of ours still has would be found with the process. So: none may be new and unowned.
bool no_orphaned_sockets() {
  std::set<unsigned long> owned;
  for (const std::string& name : names_in("/proc", "")) {
    if (const pid_t pid = atoi(name.c_str()); pid > 0) owned.merge(socket_inodes(pid));
  }
  const auto sockets = abstract_sockets("rueda-");
  return std::all_of(sockets.begin(), sockets.end(),
                     [&](const UnixSocket& s) { return s.inode == 0 || owned.count(s.inode) > 0; });
}

void check_survivors(const Death& death, const std::string& out) {
  const std::string victim = "rank " + std::to_string(death.victim);
  const double died = number_after(out, victim + " dies at ");
  CHECK(died > 0);
  double longest = 0;
  for (int rank = 0; rank < death.size; ++rank) {
    if (rank == death.victim) continue;
    const std::string who = "rank " + std::to_string(rank);
    if (death.scene == "shutdown" && !line_with(out, who + " left at ").empty()) {
      longest = std::max(longest, number_after(out, who + " left at ") - died);
      continue;
    }
    const std::string told = line_with(out, who + " told at ");
    INFO("rank " << rank << " said: " << told);
    CHECK_THAT(told, Catch::Contains(": unavailable: "));
    const std::string message = told.substr(std::min(told.size(), told.find("unavailable")));
    CHECK_THAT(message, Catch::Contains(victim + " ") || Catch::Contains(victim + ":"));
    longest = std::max(longest, number_after(told, "told at ") - died);
  }
  std::printf("  %-60s news after %6.1f ms\n", death.describe().c_str(), longest * 1e3);
}

void check_launcher(const Death& death, const Job& job) {
  const std::string victim = "rank " + std::to_string(death.victim);
  const std::string text = job.err();
  if (death.how == "leave") {
    // To the launcher this rank ended well; the survivors' reports name it.
    if (death.scene != "shutdown") {
      CHECK_THAT(text, Catch::Contains(" reported: ") && Catch::Contains(victim + " "));
    }
    return;
  }
  CHECK_THAT(text, Catch::Contains("ruedarun: " + victim + " (pid ") &&
                       Catch::Contains(") failed: " + kEnds.at(death.how)));
}

}  // namespace

std::string Death::describe() const {
  std::string text =
      scene + " " + how + ", rank " + std::to_string(victim) + " of " + std::to_string(size);
  text += transport.empty() ? ", shm" : ", " + transport;
  for (const std::string& option : more) text += ", " + option;
  return text;
}

std::vector<std::string> job_of(int size, const std::string& transport,
                                const std::vector<std::string>& scene) {
  std::vector<std::string> arguments = {"-np", std::to_string(size)};
  if (transport == "hybrid") {
    arguments.insert(arguments.end(),
                     {"sh", "-c", "RUEDA_HOST_ID=h$((RUEDA_RANK%2)) exec \"$0\" \"$@\""});
  }
  // What is started is not what joins: a shell that has more to do waits for it.
  if (transport == "below a shell")
    arguments.insert(arguments.end(), {"sh", "-c", "\"$0\" \"$@\"; exit $?"});
  arguments.emplace_back(built::kRankProgram);
  arguments.insert(arguments.end(), scene.begin(), scene.end());
  return arguments;
}

Job::Setup setup_of(const std::string& transport) {
  Job::Setup setup;
  // On a machine with few cores the ranks are late by chance; these tests look at what a job says.
  setup.environment.emplace_back("RUEDA_NAME_SLOW_RANKS=0");
  if (transport == "tcp") setup.environment.emplace_back("RUEDA_TRANSPORT=tcp");
  return setup;
}

void check_death(const Death& death) {
  INFO(death.describe());
  const World before;
  std::vector<std::string> scene = {death.scene, "victim=" + std::to_string(death.victim),
                                    "how=" + death.how};
  scene.insert(scene.end(), death.more.begin(), death.more.end());
  Job job(job_of(death.size, death.transport, scene), setup_of(death.transport));
  const int code = job.wait();
  INFO("stdout:\n" << job.out() << "stderr:\n" << job.err());
  // A rank that leaves while the others shut down harms nobody who was through the last barrier.
  const bool harmless = death.scene == "shutdown" && death.how == "leave" &&
                        job.out().find(" told at ") == std::string::npos;
  CHECK(code == (harmless ? 0 : kExitCodes.at(death.how)));
  check_survivors(death, job.out());
  check_launcher(death, job);
  CHECK(job.wait_until_gone());
  before.check_unchanged();
}

World::World()
    : shared_memory_(names_in("/dev/shm", "rueda")), temporary_(names_in("/tmp", "rueda")) {}

void World::check_unchanged() const {
  // Other tests may run at the same time, with scratch files of their own; their names begin with
  // "test-of-".
  for (const auto& [directory, known] :
       {std::pair{"/dev/shm", &shared_memory_}, std::pair{"/tmp", &temporary_}}) {
    for (const std::string& name : names_in(directory, "rueda-")) {
      if (name.rfind("test-of-", 0) == 0) continue;
      INFO(directory << "/" << name);
      CHECK(known->count(name) == 1);
    }
  }
  CHECK(eventually(no_orphaned_sockets));
}

std::string line_with(const std::string& output, const std::string& text) {
  for (const std::string& line : lines_of(output)) {
    if (line.find(text) != std::string::npos) return line;
  }
  return "";
}

double number_after(const std::string& output, const std::string& text) {
  const size_t at = output.find(text);
  return at == std::string::npos ? -1 : atof(output.c_str() + at + text.size());
}

pid_t pid_of_rank(const Job& job, int rank) {
  return static_cast<pid_t>(number_after(job.out(), "rank " + std::to_string(rank) + " pid "));
}

}  // namespace rueda::testing
