// ruedarun without -np: what it finds, what it says of it, and that flags win.
#include <sched.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "tests/launcher/job.h"
#include "tests/support/built.h"

using namespace rueda::testing;

namespace {

using Lines = std::vector<std::string>;

struct File {
  explicit File(const std::string& text) {
    close(mkstemp(path));
    std::ofstream(path) << text;
  }
  ~File() { unlink(path); }
  char path[32] = "/tmp/ruedarun_found.XXXXXX";
};

Job::Setup with(const Lines& environment) {
  Job::Setup setup;
  setup.environment = environment;
  return setup;
}

}  // namespace

TEST_CASE("without flags the slots of a hostfile that an MPI is told of are the ranks",
          "[ruedarun]") {
  const File hosts("localhost slots=3\n");
  Job job({"--no-prefix", "sh", "-c", "echo $RUEDA_SIZE"},
          with({"OMPI_MCA_orte_default_hostfile=" + std::string(hosts.path)}));
  CHECK(job.wait() == 0);
  CHECK(job.out_lines() == Lines{"3", "3", "3"});
  CHECK(job.err_lines() == Lines{"ruedarun: 3 ranks on 1 host, found in " +
                                 std::string(hosts.path) + " (OMPI_MCA_orte_default_hostfile)"});
}

TEST_CASE("an allocation of one host is this machine", "[ruedarun]") {
  const File nodes("far-away\nfar-away\n");
  const Lines variables = {"PBS_NODEFILE=" + std::string(nodes.path)};
  Job job({"--no-prefix", "sh", "-c", "echo $RUEDA_SIZE"}, with(variables));
  CHECK(job.wait() == 0);
  CHECK(job.out_lines() == Lines{"2", "2"});
  CHECK(job.err_lines() ==
        Lines{"ruedarun: 2 ranks here, found in PBS_NODEFILE " + std::string(nodes.path)});
  Job asked({"-np", "3", "--no-prefix", "sh", "-c", "echo $RUEDA_SIZE"}, with(variables));
  CHECK(asked.wait() == 0);
  CHECK(asked.out_lines() == Lines{"3", "3", "3"});
  CHECK(asked.err().empty());
}

TEST_CASE("an allocation's first host is this machine, also where it is written with its domain",
          "[ruedarun]") {
  char own[256] = {};
  REQUIRE(gethostname(own, sizeof(own) - 1) == 0);
  const std::string name = std::string(own).substr(0, std::string(own).find('.')) + ".no.such.lab";
  const File nodes(name + "\n" + name + "\nfar-away\n");
  // It would have to be reached by ssh, and has no address.
  Job job({"-np", "2", "--start-timeout", "1", "--no-prefix", "sh", "-c", "echo $RUEDA_SIZE"},
          with({"PBS_NODEFILE=" + std::string(nodes.path)}));
  CHECK(job.wait() == 0);
  CHECK(job.out_lines() == Lines{"2", "2"});
  CHECK(job.err_lines() ==
        Lines{"ruedarun: 2 ranks on 1 host, found in PBS_NODEFILE " + std::string(nodes.path)});
}

TEST_CASE("flags win, and nothing is said", "[ruedarun]") {
  const File hosts("localhost slots=3\n");
  Job job({"-H", "localhost:2", "--no-prefix", "sh", "-c", "echo $RUEDA_SIZE"},
          with({"OMPI_MCA_orte_default_hostfile=" + std::string(hosts.path)}));
  CHECK(job.wait() == 0);
  CHECK(job.out_lines() == Lines{"2", "2"});
  CHECK(job.err().empty());
}

TEST_CASE("-np auto is a rank per GPU, or per core", "[ruedarun]") {
  Job gpus({"-np", "auto", "--no-prefix", "sh", "-c", "echo $RUEDA_SIZE"},
           with({"CUDA_VISIBLE_DEVICES=0,1,5"}));
  CHECK(gpus.wait() == 0);
  CHECK(gpus.out_lines() == Lines{"3", "3", "3"});
  CHECK(gpus.err_lines() == Lines{"ruedarun: 3 ranks here: 3 GPUs, from CUDA_VISIBLE_DEVICES"});
  cpu_set_t cpus;
  REQUIRE(sched_getaffinity(0, sizeof(cpus), &cpus) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &cpus)) ++first;
  Job bound({"-c", std::to_string(first), built::kRuedarun, "-np", "auto", "--no-prefix", "sh",
             "-c", "echo $RUEDA_SIZE"},
            [] {
              Job::Setup setup = with({"CUDA_VISIBLE_DEVICES="});
              setup.program = "/usr/bin/taskset";
              return setup;
            }());
  CHECK(bound.wait() == 0);
  CHECK(bound.err_lines() == Lines{"ruedarun: 1 rank here: 1 core"});
}

TEST_CASE("where nothing is found, what to do is said", "[ruedarun]") {
  Job job({"true"});
  CHECK(job.wait() == 2);
  CHECK_THAT(job.err(), Catch::Contains("the number of ranks is missing: ruedarun -np N COMMAND, "
                                        "or -np auto"));
}
