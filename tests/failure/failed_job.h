// A job of rank_program that is to fail, and what must hold afterwards.
#pragma once

#include <string>
#include <vector>

#include "tests/failure/holdings.h"
#include "tests/launcher/job.h"

namespace rueda::testing {

struct Death {
  std::string scene;         // of rank_program
  std::string how = "kill";  // kill, abort, exit3, leave
  int size = 2;
  int victim = 1;
  // "": shared memory; "tcp"; "hybrid": every second rank on another host.
  std::string transport = {};
  std::vector<std::string> more = {};  // further options of the scene

  std::string describe() const;
};

// ruedarun's arguments for a job of rank_program.
std::vector<std::string> job_of(int size, const std::string& transport,
                                const std::vector<std::string>& scene);
Job::Setup setup_of(const std::string& transport);

// Runs it and checks everything the promise "a failure names its culprit" says: every survivor was
// told UNAVAILABLE with the victim's name, ruedarun's code and last lines are the victim's, nothing
// is left. Prints how long the news took.
void check_death(const Death& death);

// What a job leaves in the world. Compare before and after.
struct World {
  World();
  void check_unchanged() const;

 private:
  std::set<std::string> shared_memory_, temporary_;
};

// The whole line that contains the text; "" if there is none.
std::string line_with(const std::string& output, const std::string& text);
// Behind `text` in the output: a number; -1 if there is none.
double number_after(const std::string& output, const std::string& text);
// As the rank has said it ("rank 1 pid 77"); -1: not yet.
pid_t pid_of_rank(const Job& job, int rank);

}  // namespace rueda::testing
