// Where a job's hosts come from when flags name none.
#include "launcher/job/found_hosts.h"

#include <catch2/catch.hpp>
#include <map>

using namespace rueda::launcher;
using rueda::Result;

namespace {

using Texts = std::map<std::string, std::string>;

Surroundings made_of(const Texts& variables, const Texts& files, const std::string& flux = "") {
  Surroundings around;
  around.get = [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  around.exists = [&files](const std::string& path) { return files.contains(path); };
  around.read = [&files](const std::string& path) -> Result<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return rueda::unavailable("cannot read the hostfile " + path);
    return found->second;
  };
  around.ask_flux = [flux]() -> std::optional<std::string> {
    return flux.empty() ? std::nullopt : std::optional(flux);
  };
  return around;
}

// "a=4 b=4, from SOURCE", with "found: " in front where no flag says it.
std::string shown(const Result<FoundHosts>& found) {
  if (!found.ok()) return "! " + found.status().message();
  if (found.value().hosts.empty()) return "";
  std::string text = found.value().by_itself ? "found:" : "";
  for (const HostSlots& host : found.value().hosts)
    text += (text.empty() ? "" : " ") + host.host + "=" + std::to_string(host.slots);
  return text + ", from " + found.value().source;
}

std::string found_in(const Texts& variables, const Texts& files, const std::string& flux = "") {
  return shown(find_hosts("", "", made_of(variables, files, flux)));
}

const Texts kFiles = {{"/etc/mpi/hostfile", "w-0.job.ns.svc slots=2\nw-1.job.ns.svc slots=2\n"},
                      {"/ompi", "a slots=3\n"},
                      {"/intel", "b:4\nc:4\n"},
                      {"/bare", "d\ne\n"},
                      {"/nodes", "f\nf\ng\n"}};

}  // namespace

TEST_CASE("hosts are found where an MPI or a scheduler says them", "[found_hosts]") {
  struct Row {
    Texts variables;
    std::string expected;
  };
  const std::vector<Row> table = {
      {{}, "found: w-0.job.ns.svc=2 w-1.job.ns.svc=2, from /etc/mpi/hostfile"},
      {{{"OMPI_MCA_orte_default_hostfile", "/ompi"}, {"HYDRA_HOST_FILE", "/intel"}},
       "found: a=3, from /ompi (OMPI_MCA_orte_default_hostfile)"},
      {{{"I_MPI_HYDRA_HOST_FILE", "/intel"}},
       "found: b=4 c=4, from /intel (I_MPI_HYDRA_HOST_FILE)"},
      {{{"HYDRA_HOST_FILE", "/intel"}}, "found: b=4 c=4, from /intel (HYDRA_HOST_FILE)"},
      {{{"HYDRA_HOST_FILE", "/bare"}}, "found: d=1 e=1, from /bare (HYDRA_HOST_FILE)"},
      {{{"HYDRA_HOST_FILE", "/bare"}, {"I_MPI_PERHOST", "3"}},
       "found: d=3 e=3, from /bare (HYDRA_HOST_FILE)"},
      {{{"HYDRA_HOST_FILE", "/bare"},
        {"I_MPI_PERHOST", "3"},
        {"OMPI_MCA_orte_set_default_slots", "2"}},
       "found: d=2 e=2, from /bare (HYDRA_HOST_FILE)"},
      {{{"HYDRA_HOST_FILE", "/bare"}, {"I_MPI_PERHOST", "allcores"}},
       "found: d=1 e=1, from /bare (HYDRA_HOST_FILE)"},
      {{{"OMPI_MCA_orte_default_hostfile", "/gone"}}, "! cannot read the hostfile /gone"},
      {{{"OMPI_MCA_orte_default_hostfile", ""}},
       "found: w-0.job.ns.svc=2 w-1.job.ns.svc=2, from /etc/mpi/hostfile"},
      {{{"RUEDA_RANK", "0"}, {"OMPI_MCA_orte_default_hostfile", "/ompi"}}, ""},
  };
  for (const Row& row : table) CHECK(found_in(row.variables, kFiles) == row.expected);
}

TEST_CASE("hosts of an allocation", "[found_hosts]") {
  Texts files = kFiles;
  files.erase("/etc/mpi/hostfile");
  CHECK(found_in({}, files).empty());
  CHECK(found_in({{"SLURM_JOB_ID", "7"},
                  {"SLURM_JOB_NODELIST", "n[1-2]"},
                  {"SLURM_TASKS_PER_NODE", "4(x2)"}},
                 files) == "found: n1=4 n2=4, from SLURM_JOB_NODELIST n[1-2]");
  CHECK(found_in({{"PBS_NODEFILE", "/nodes"}, {"I_MPI_PERHOST", "9"}}, files) ==
        "found: f=2 g=1, from PBS_NODEFILE /nodes");
  CHECK(found_in({{"LSB_DJOB_HOSTFILE", "/nodes"}, {"LSB_MCPU_HOSTS", "x 1"}}, files) ==
        "found: f=2 g=1, from LSB_DJOB_HOSTFILE /nodes");
  CHECK(found_in({{"LSB_MCPU_HOSTS", "hostA 4 hostB 2"}}, files) ==
        "found: hostA=4 hostB=2, from LSB_MCPU_HOSTS hostA 4 hostB 2");
  CHECK(found_in({{"LSB_MCPU_HOSTS", "hostA 4 hostB"}}, files) ==
        "! LSB_MCPU_HOSTS 'hostA 4 hostB': expected hosts and slots in turn");
  CHECK(found_in({{"FLUX_URI", "local:///x"}}, files, "2 16 4 n[1-2]\n1 8 0 n3\n") ==
        "found: n1=2 n2=2 n3=8, from flux resource list");
  CHECK(found_in({{"FLUX_URI", "local:///x"}}, files).empty());
  CHECK(found_in({}, files, "2 16 4 n[1-2]\n").empty());
  CHECK(found_in({{"FLUX_URI", "local:///x"}}, files, "no such table\n") ==
        "! flux resource list: 'no such table' is not understood");
}

TEST_CASE("flags win over everything that could be found", "[found_hosts]") {
  const Texts variables = {{"OMPI_MCA_orte_default_hostfile", "/ompi"},
                           {"SLURM_JOB_ID", "7"},
                           {"SLURM_JOB_NODELIST", "n[1-2]"},
                           {"SLURM_TASKS_PER_NODE", "4(x2)"},
                           {"I_MPI_PERHOST", "9"}};
  const Surroundings around = made_of(variables, kFiles);
  const auto named = find_hosts("h:2", "", around);
  CHECK(shown(named) == "h=2, from -H h:2");
  CHECK(named.value().slurm);
  CHECK(shown(find_hosts("", "/bare", around)) == "d=1 e=1, from --hostfile /bare");
}

TEST_CASE("an MPIJob's launcher without its hostfile is no place for ranks", "[found_hosts]") {
  CHECK_THAT(found_in({{"K_MPI_JOB_ROLE", "launcher"}}, {}),
             Catch::Contains("hostfile is not there: /etc/mpi/hostfile"));
  CHECK(found_in({{"K_MPI_JOB_ROLE", "worker"}}, {}).empty());
}

TEST_CASE("who can be told nothing is told what to do", "[found_hosts]") {
  const Texts none, worker = {{"K_MPI_JOB_ROLE", "worker"}};
  const std::string text = no_ranks_said(made_of(none, {}).get);
  for (const char* part :
       {"number of ranks is missing", "-np N", "-np auto", "-H", "/etc/mpi/hostfile"})
    CHECK_THAT(text, Catch::Contains(part));
  CHECK_THAT(text, !Catch::Contains("worker"));
  CHECK_THAT(no_ranks_said(made_of(worker, {}).get), Catch::Contains("its command is sshd"));
}

TEST_CASE("the slots of all hosts are the ranks", "[found_hosts]") {
  FoundHosts found;
  CHECK(found.slots() == 0);
  found.hosts = {{"a", 3, "", 0}, {"b", 2, "", 0}};
  CHECK(found.slots() == 5);
}
