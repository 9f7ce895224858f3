#include "runtime/bootstrap/place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <fstream>

namespace rueda::bootstrap {
namespace {

Result<int> parse(const char* name, const char* value) {
  const std::string_view text(value);
  int number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size() || text.empty() || number < 0) {
    return failed_precondition(std::string(name) + "='" + value +
                               "' is not a number: start the job with ruedarun");
  }
  return number;
}

// Another launcher's idea of the number of ranks.
struct Foreign {
  const char* launcher;
  const char* size;
  const char* also;  // must be set too for the variable to mean a job
};
const Foreign kForeign[] = {{"Horovod's own launcher", "HOROVOD_SIZE", "HOROVOD_RANK"},
                            {"torchrun", "WORLD_SIZE", "MASTER_ADDR"},
                            {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                            {"MPICH or Intel MPI", "PMI_SIZE", "PMI_RANK"},
                            {"Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};

}  // namespace

Result<Place> read_place(const GetEnv& get_env) {
  const char* const names[] = {"RUEDA_RANK", "RUEDA_SIZE", "RUEDA_AGENT_FD", "RUEDA_KEY_FD"};
  int values[4] = {0, 1, -1, -1};
  int found = 0;
  std::string missing;
  for (int i = 0; i < 4; ++i) {
    const char* value = get_env(names[i]);
    if (value == nullptr) {
      missing += std::string(missing.empty() ? "" : ", ") + names[i];
      continue;
    }
    RUEDA_ASSIGN_OR_RETURN(values[i], parse(names[i], value));
    ++found;
  }
  Place place;
  if (const char* value = get_env("RUEDA_FLIGHT_FD")) {
    RUEDA_ASSIGN_OR_RETURN(place.flight_fd, parse("RUEDA_FLIGHT_FD", value));
  }
  if (found == 0) {
    for (const Foreign& foreign : kForeign) {
      const char* size = get_env(foreign.size);
      if (size == nullptr || get_env(foreign.also) == nullptr) continue;
      RUEDA_ASSIGN_OR_RETURN(const int ranks, parse(foreign.size, size));
      if (ranks > 1) {
        return failed_precondition(
            std::string(foreign.size) + "=" + size + " says that " + foreign.launcher +
            " started this process as one of " + size +
            ", but rueda does not join its jobs yet: start the script with `ruedarun -np " + size +
            "`, or unset " + foreign.size + " for a job of one rank");
      }
    }
    return place;
  }
  if (found != 4)
    return failed_precondition("some of ruedarun's variables are missing: " + missing);
  if (values[1] < 1 || values[0] >= values[1]) {
    return failed_precondition("RUEDA_RANK=" + std::to_string(values[0]) +
                               " does not fit RUEDA_SIZE=" + std::to_string(values[1]));
  }
  place.rank = values[0];
  place.size = values[1];
  place.agent_fd = values[2];
  place.key_fd = values[3];
  const char* job = get_env("RUEDA_JOB_ID");
  place.job_id = job != nullptr ? job : "";
  place.source = "ruedarun (RUEDA_RANK, RUEDA_SIZE)";
  return place;
}

std::string host_identity(const std::string& override_id) {
  if (!override_id.empty()) return "override:" + override_id;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat network {};
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return boot + ":" + std::to_string(network.st_ino) + ":" + std::to_string(geteuid());
}

}  // namespace rueda::bootstrap
