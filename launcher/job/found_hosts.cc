#include "launcher/job/found_hosts.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "collectives/base/number_text.h"
#include "launcher/command/options.h"
#include "launcher/job/rank_environment.h"

namespace rueda::launcher {
namespace {

constexpr const char* kHostfileVariables[] = {"OMPI_MCA_orte_default_hostfile",
                                              "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE"};
constexpr const char* kSlotVariables[] = {"OMPI_MCA_orte_set_default_slots", "I_MPI_PERHOST"};

bool is_role(const GetEnv& get, const char* role) {
  const char* own = non_empty(get, "K_MPI_JOB_ROLE");
  return own != nullptr && std::strcmp(own, role) == 0;
}

// Of a host whose line has none. Words (Intel MPI's "allcores") say nothing here.
int default_slots(const GetEnv& get) {
  for (const char* name : kSlotVariables) {
    const char* value = non_empty(get, name);
    int slots = 0;
    if (value != nullptr && parse_number(value, 1, kMaxRanks, &slots)) return slots;
  }
  return 1;
}

Result<FoundHosts> from_file(const Surroundings& around, const std::string& path,
                             const std::string& source, int slots) {
  FoundHosts found;
  RUEDA_ASSIGN_OR_RETURN(const std::string text, around.read(path));
  RUEDA_ASSIGN_OR_RETURN(found.hosts, parse_hostfile(text, path, slots));
  found.source = source;
  return found;
}

Result<FoundHosts> from_mpi(const Surroundings& around) {
  const int slots = default_slots(around.get);
  for (const char* name : kHostfileVariables) {
    if (const char* path = non_empty(around.get, name))
      return from_file(around, path, std::string(path) + " (" + name + ")", slots);
  }
  if (around.exists(kMpiHostfile)) return from_file(around, kMpiHostfile, kMpiHostfile, slots);
  if (is_role(around.get, "launcher")) {
    return invalid_argument(
        std::string("this is the launcher of a Kubernetes MPIJob (K_MPI_JOB_ROLE), but its "
                    "hostfile is not there: ") +
        kMpiHostfile + "; name hosts with -H or --hostfile");
  }
  return FoundHosts();
}

Result<FoundHosts> from_slurm(const GetEnv& get) {
  FoundHosts found;
  const char* nodes = non_empty(get, "SLURM_JOB_NODELIST");
  const char* tasks = non_empty(get, "SLURM_TASKS_PER_NODE");
  if (nodes == nullptr || tasks == nullptr) return found;
  RUEDA_ASSIGN_OR_RETURN(found.hosts, parse_slurm(nodes, tasks));
  found.source = "SLURM_JOB_NODELIST " + std::string(nodes);
  return found;
}

// "hostA 4 hostB 2": LSF.
Result<std::vector<HostSlots>> parse_pairs(const std::string& text) {
  std::istringstream words(text);
  std::string lines, host, slots;
  while (words >> host) {
    if (!(words >> slots))
      return invalid_argument("LSB_MCPU_HOSTS '" + text + "': expected hosts and slots in turn");
    lines += host + " slots=" + slots + "\n";
  }
  return parse_hostfile(lines, "LSB_MCPU_HOSTS");
}

Result<FoundHosts> from_lsf(const Surroundings& around) {
  if (const char* path = non_empty(around.get, "LSB_DJOB_HOSTFILE"))
    return from_file(around, path, "LSB_DJOB_HOSTFILE " + std::string(path), 1);
  FoundHosts found;
  const char* pairs = non_empty(around.get, "LSB_MCPU_HOSTS");
  if (pairs == nullptr) return found;
  RUEDA_ASSIGN_OR_RETURN(found.hosts, parse_pairs(pairs));
  found.source = "LSB_MCPU_HOSTS " + std::string(pairs);
  return found;
}

// A line for each kind of node, all of one kind alike: "2 16 4 node[1-2]" has 2 nodes, 16 cores and
// 4 GPUs. A rank for each GPU, else for each core.
Result<FoundHosts> from_flux(const std::string& text) {
  FoundHosts found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int nodes = 0, cores = 0, gpus = 0;
    std::string names;
    if (!(words >> nodes >> cores >> gpus >> names) || nodes < 1 || cores < 0 || gpus < 0)
      return invalid_argument("flux resource list: '" + line + "' is not understood");
    const int slots = std::max(1, (gpus > 0 ? gpus : cores) / nodes);
    RUEDA_ASSIGN_OR_RETURN(auto hosts, parse_hosts(names));
    for (HostSlots& host : hosts) {
      host.slots = slots;
      found.hosts.push_back(std::move(host));
    }
  }
  found.source = "flux resource list";
  return found;
}

Result<FoundHosts> from_scheduler(const Surroundings& around) {
  const GetEnv& get = around.get;
  if (non_empty(get, "SLURM_JOB_ID") != nullptr &&
      non_empty(get, "SLURM_JOB_NODELIST") != nullptr) {
    RUEDA_ASSIGN_OR_RETURN(FoundHosts found, from_slurm(get));
    found.slurm = true;
    return found;
  }
  if (const char* path = non_empty(get, "PBS_NODEFILE"))
    return from_file(around, path, "PBS_NODEFILE " + std::string(path), 1);
  RUEDA_ASSIGN_OR_RETURN(FoundHosts found, from_lsf(around));
  if (!found.hosts.empty() || non_empty(get, "FLUX_URI") == nullptr) return found;
  const std::optional<std::string> said = around.ask_flux();
  return said ? from_flux(*said) : FoundHosts();
}

}  // namespace

int FoundHosts::slots() const {
  int64_t sum = 0;
  for (const HostSlots& host : hosts) sum += host.slots;
  return static_cast<int>(std::min<int64_t>(sum, kMaxRanks));
}

Result<FoundHosts> find_hosts(const std::string& hosts, const std::string& hostfile,
                              const Surroundings& around) {
  FoundHosts found;
  if (!hosts.empty()) {
    RUEDA_ASSIGN_OR_RETURN(found.hosts, parse_hosts(hosts));
    found.source = "-H " + hosts;
  } else if (!hostfile.empty()) {
    RUEDA_ASSIGN_OR_RETURN(found, from_file(around, hostfile, "--hostfile " + hostfile, 1));
  } else if (non_empty(around.get, "RUEDA_RANK") != nullptr) {
    return found;  // a rank's own job is here: its host is one of those that are found
  } else {
    RUEDA_ASSIGN_OR_RETURN(found, from_mpi(around));
    if (found.hosts.empty()) {
      RUEDA_ASSIGN_OR_RETURN(found, from_scheduler(around));
      found.allocation = true;
    }
    found.by_itself = !found.hosts.empty();
    return found;
  }
  found.slurm = non_empty(around.get, "SLURM_JOB_ID") != nullptr &&
                non_empty(around.get, "SLURM_JOB_NODELIST") != nullptr;
  return found;
}

std::string no_ranks_said(const GetEnv& get) {
  std::string text =
      "the number of ranks is missing: ruedarun -np N COMMAND, or -np auto for one rank per GPU, "
      "or "
      "per core where there is none. Without -np there must be hosts (-H, --hostfile), a hostfile "
      "of "
      "an MPI (";
  for (const char* name : kHostfileVariables) text += std::string(name) + ", ";
  text += std::string(kMpiHostfile) + ") or an allocation of Slurm, PBS, LSF or Flux";
  if (is_role(get, "worker")) {
    text +=
        ". This is a worker of a Kubernetes MPIJob (K_MPI_JOB_ROLE): its command is sshd, ruedarun "
        "belongs into the launcher's";
  }
  return text;
}

}  // namespace rueda::launcher
