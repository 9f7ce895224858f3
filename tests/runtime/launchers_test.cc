// Which launcher's variables count, and where its ranks meet.
#include <catch2/catch.hpp>

#include <map>

#include "runtime/membership/launchers/claims.h"
#include "runtime/membership/launchers/meeting.h"
#include "runtime/membership/place.h"

namespace rueda::testing {
namespace {

using Environment = std::map<std::string, std::string>;

Result<membership::Place> found_in(const Environment& environment) {
  return membership::read_place([&](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

void check_refused(const Status& status, const std::vector<std::string>& fragments) {
  INFO(status.to_string());
  CHECK_FALSE(status.ok());
  for (const std::string& fragment : fragments)
    CHECK(status.message().find(fragment) != std::string::npos);
}

Environment with(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

const Environment kTorchrun = {{"RANK", "3"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "3"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "h1"},
                               {"MASTER_PORT", "29400"},
                               {"TORCHELASTIC_RUN_ID", "none"},
                               {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Environment kDeepspeed = {{"RANK", "1"},
                                {"WORLD_SIZE", "2"},
                                {"LOCAL_RANK", "1"},
                                {"MASTER_ADDR", "127.0.0.1"},
                                {"MASTER_PORT", "29500"},
                                {"CROSS_RANK", "0"},
                                {"CROSS_SIZE", "1"},
                                {"LOCAL_SIZE", "2"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                              {"PMIX_NAMESPACE", "113324"},
                              {"PMIX_RANK", "1"}};
const Environment kMpich = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}};
const Environment kSrun = {{"SLURM_JOB_ID", "77"},
                           {"SLURM_STEP_ID", "2"},
                           {"SLURM_PROCID", "5"},
                           {"SLURM_NTASKS", "8"},
                           {"SLURM_STEP_NUM_TASKS", "8"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_NODELIST", "node[03-04]"}};
const Environment kJax = {{"JAX_PROCESS_ID", "2"},
                          {"JAX_NUM_PROCESSES", "4"},
                          {"JAX_COORDINATOR_ADDRESS", "job-node-0-0.job:6666"}};
const Environment kBatch = {{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}};

TEST_CASE("each launcher's variables give the place", "[launchers]") {
  struct Row {
    Environment environment;
    const char* launcher;
    Rank rank, size;
    bool one_host;
    std::string job;
  };
  for (const Row& row :
       {Row{kTorchrun, "torchrun", 3, 8, false, "torch/h1/29400/none/0"},
        Row{kDeepspeed, "deepspeed", 1, 2, true, "torch/127.0.0.1/29500//"},
        Row{kOpenMpi, "Open MPI", 1, 4, true, "PMIX_NAMESPACE/113324"},
        Row{kMpich, "MPICH", 1, 4, true, ""}, Row{kSrun, "srun", 5, 8, false, "slurm/77.2/"},
        Row{kJax, "JAX_PROCESS_ID", 2, 4, false, "jax/job-node-0-0.job:6666"}}) {
    CAPTURE(row.launcher);
    auto place = found_in(row.environment);
    REQUIRE(place.ok());
    CHECK(place->rank == row.rank);
    CHECK(place->size == row.size);
    CHECK(place->one_host == row.one_host);
    CHECK(place->agentless);
    CHECK(place->job_id == row.job);
    CHECK(place->source.find(row.launcher) != std::string::npos);
    auto named = found_in(with(row.environment, {{"RUEDA_JOB_ID", "mine"}}));
    REQUIRE(named.ok());
    CHECK(named->job_id == "mine");
  }
}

TEST_CASE("JAX's variables say where rank 0 is, and what is wrong with them", "[launchers]") {
  auto place = found_in(kJax);
  REQUIRE(place.ok());
  CHECK(place->root_host == "job-node-0-0.job");
  CHECK(place->root_port == 6666);
  place = found_in(with(kJax, {{"JAX_COORDINATOR_ADDRESS", "[fd00::7]:6666"}}));
  REQUIRE(place.ok());
  CHECK(place->root_host == "fd00::7");
  for (const char* address : {"h1", "h1:", ":6666", "h1:x", "h1:0", "h1:70000"})
    check_refused(found_in(with(kJax, {{"JAX_COORDINATOR_ADDRESS", address}})).status(),
                  {"JAX_COORDINATOR_ADDRESS", "is not host:port"});
  // An address alone is for JAX, which then asks the cluster.
  place = found_in({{"JAX_COORDINATOR_ADDRESS", "h1:6666"}});
  REQUIRE(place.ok());
  CHECK(place->size == 1);
  check_refused(
      found_in({{"JAX_NUM_PROCESSES", "4"}, {"JAX_COORDINATOR_ADDRESS", "h1:6666"}}).status(),
      {"JAX_PROCESS_ID is not set"});
  check_refused(found_in(with(kMpich, kJax)).status(), {"disagree", "JAX_PROCESS_ID=2"});
  // Whoever really started the process comes first.
  place = found_in(with(kMpich, {{"JAX_PROCESS_ID", "1"}, {"JAX_NUM_PROCESSES", "4"}}));
  REQUIRE(place.ok());
  CHECK(place->source.find("MPICH") != std::string::npos);
}

TEST_CASE("an inner launcher counts, whatever the outer one's numbers are", "[launchers]") {
  auto torch = found_in(with(with(kSrun, kOpenMpi), kTorchrun));
  REQUIRE(torch.ok());
  CHECK(torch->rank == 3);
  CHECK(torch->job_id.starts_with("torch/"));
  auto mpi = found_in(with(kSrun, kOpenMpi));
  REQUIRE(mpi.ok());
  CHECK(mpi->rank == 1);
  CHECK(mpi->job_id == "PMIX_NAMESPACE/113324");
}

TEST_CASE("srun with its PMI-2 gives one place, and the job's name comes from Slurm",
          "[launchers]") {
  auto place = found_in(with(kSrun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}));
  REQUIRE(place.ok());
  CHECK(place->rank == 5);
  CHECK(place->job_id == "slurm/77.2/");
  CHECK(place->root_host == "node03");
}

TEST_CASE("launchers that disagree are an error that names both values", "[launchers]") {
  const Environment left_over = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}};
  check_refused(found_in(with(kMpich, left_over)).status(),
                {"PMI_SIZE=4", "WORLD_SIZE=2", "env -u WORLD_SIZE"});
  check_refused(found_in(with(kSrun, left_over)).status(),
                {"SLURM_STEP_NUM_TASKS=8", "WORLD_SIZE=2"});
  check_refused(
      found_in(with(kOpenMpi, kMpich)).ok()
          ? found_in(with(kOpenMpi, with(kMpich, {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}}))).status()
          : Status(),
      {"OMPI_COMM_WORLD_SIZE=4", "PMI_SIZE=1"});
  // The same size but another rank: RANK was exported once for all ranks.
  check_refused(
      found_in(with(kMpich, {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}})).status(),
      {"PMI_RANK=1", "RANK=0"});
}

TEST_CASE("a gap names the variable that is missing", "[launchers]") {
  check_refused(found_in({{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}}).status(),
                {"WORLD_SIZE=4", "RANK is not set", "ruedarun"});
  check_refused(found_in({{"RANK", "1"}, {"MASTER_ADDR", "h"}}).status(),
                {"WORLD_SIZE is not set"});
  check_refused(found_in({{"OMPI_COMM_WORLD_RANK", "1"}}).status(),
                {"OMPI_COMM_WORLD_SIZE is not set"});
  check_refused(found_in({{"PMI_SIZE", "2"}}).status(), {"PMI_RANK is not set"});
  check_refused(found_in({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}}).status(),
                {"SLURM_NTASKS is not set"});
  check_refused(found_in({{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}}).status(), {"PMI_RANK=4"});
  check_refused(found_in({{"PMI_RANK", "x"}, {"PMI_SIZE", "4"}}).status(), {"PMI_RANK='x'"});
}

TEST_CASE("what a gap in RANK leaves open, Slurm may know", "[launchers]") {
  // The usual batch script: it exports WORLD_SIZE and MASTER_ADDR, and srun numbers the tasks.
  auto place = found_in(with(kSrun, {{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "h"}}));
  REQUIRE(place.ok());
  CHECK(place->rank == 5);
  check_refused(found_in(with(kSrun, {{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}})).status(),
                {"WORLD_SIZE=2", "SLURM_STEP_NUM_TASKS=8"});
}

TEST_CASE("a batch script or salloc's shell is no task of srun, which is said", "[launchers]") {
  for (const char* step : {"", "batch", "4294967291"}) {
    auto place = found_in(with(kBatch, {{"SLURM_STEP_ID", step}}));
    REQUIRE(place.ok());
    CHECK(place->size == 1);
    CHECK(place->remark.find("srun python") != std::string::npos);
  }
  auto alone = found_in(with(kBatch, {{"SLURM_NTASKS", "1"}}));
  REQUIRE(alone.ok());
  CHECK(alone->remark.empty());
}

TEST_CASE("one variable alone, or another launcher's job of one rank, is a job of one rank",
          "[launchers]") {
  for (const Environment& environment :
       {Environment{{"WORLD_SIZE", "4"}}, Environment{{"MASTER_ADDR", "h"}},
        Environment{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
        Environment{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}}) {
    auto place = found_in(environment);
    REQUIRE(place.ok());
    CHECK(place->size == 1);
    CHECK_FALSE(place->agentless);
  }
}

TEST_CASE("the first host of Slurm's lists", "[launchers]") {
  for (const auto& [list, host] :
       std::map<std::string, std::string>{{"node03", "node03"},
                                          {"a,b", "a"},
                                          {"node[03-08,12],x", "node03"},
                                          {"r[1-2]n[07,9]-ib,x", "r1n07-ib"},
                                          {"n[5]", "n5"},
                                          {"", ""},
                                          {"n[1", ""}}) {
    CHECK(launchers::first_host(list) == host);
  }
}

TEST_CASE("a program may say itself which rank it is", "[launchers]") {
  const auto read = [](const Environment& environment, const membership::GivenPlace& given) {
    return membership::read_place(
        [&](const char* name) -> const char* {
          const auto it = environment.find(name);
          return it == environment.end() ? nullptr : it->second.c_str();
        },
        given);
  };
  membership::GivenPlace given{1, 2, "mine", false, false};
  for (const Environment& others : {Environment{}, kTorchrun, kOpenMpi}) {
    auto place = read(others, given);
    REQUIRE(place.ok());
    CHECK(place->rank == 1);
    CHECK(place->size == 2);
    CHECK(place->job_id == "mine");
    CHECK(place->agentless);
    CHECK(place->one_host);
  }
  given.by_address = true;
  CHECK_FALSE(read({}, given)->one_host);
  const Environment ours = {{"RUEDA_RANK", "1"},
                            {"RUEDA_SIZE", "2"},
                            {"RUEDA_AGENT_FD", "3"},
                            {"RUEDA_KEY_FD", "4"},
                            {"RUEDA_MEMBER", "1"}};
  CHECK_FALSE(read(ours, given)->agentless);
  given.rank = 0;
  check_refused(read(ours, given).status(), {"rank 0 of 2", "RUEDA_RANK=1", "RUEDA_SIZE=2"});
  given.job = "";
  check_refused(read({}, given).status(), {"rank 0 of 2", "of which job"});
  given.rank = 2;
  check_refused(read({}, given).status(), {"rank 2 of 2", "no such rank"});
}

TEST_CASE("where ranks meet follows from settings and place", "[launchers]") {
  membership::Place place;
  place.size = 4;
  place.source = "somebody";
  Config config;
  check_refused(launchers::plan_meeting(place, config).status(), {"RUEDA_RENDEZVOUS", "somebody"});
  place.root_host = "h1";
  place.root_port = 29500;
  check_refused(launchers::plan_meeting(place, config).status(), {"RUEDA_KEY_FILE", "umask 077"});
  config.key_file = "/k";
  auto meeting = launchers::plan_meeting(place, config);
  REQUIRE(meeting.ok());
  CHECK(meeting->host == "h1");
  CHECK(meeting->first_port == 29501);
  config.rendezvous = "[fd00::1]:4711";
  meeting = launchers::plan_meeting(place, config);
  REQUIRE(meeting.ok());
  CHECK(meeting->host == "fd00::1");
  CHECK(meeting->first_port == 4711);
  CHECK(meeting->ports == 1);
  for (const char* bad : {"h", ":1", "h:", "h:0", "h:65536", "h:1x", "[]:1", "[fd00::1:1"}) {
    config.rendezvous = bad;
    check_refused(launchers::plan_meeting(place, config).status(), {"RUEDA_RENDEZVOUS", bad});
  }
  config = {};
  place.one_host = true;
  meeting = launchers::plan_meeting(place, config);
  REQUIRE(meeting.ok());
  CHECK(meeting->one_host);
}

}  // namespace
}  // namespace rueda::testing
