#include "runtime/membership/launchers/claims.h"

#include <algorithm>
#include <charconv>
#include <functional>

namespace rueda::launchers {
namespace {

constexpr int kMasterPort = 29500;                         // torch's default
constexpr int kLargestStep = 0x7fffffff;                   // step ids above it mean "not by srun"
constexpr int kFirstStepPort = 20000, kStepPorts = 12000;  // below the kernel's own range

Result<std::optional<Number>> number(const GetEnv& get_env, const char* variable) {
  const char* value = get_env(variable);
  if (value == nullptr) return std::optional<Number>();
  const std::string_view text(value);
  Number found{0, variable};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), found.value);
  if (error != std::errc() || rest != text.data() + text.size() || found.value < 0) {
    return failed_precondition(std::string(variable) + "='" + value +
                               "' is not a number: unset it, or start the job with ruedarun");
  }
  return std::optional<Number>(found);
}

std::string text_of(const GetEnv& get_env, const char* variable) {
  const char* value = get_env(variable);
  return value == nullptr ? "" : value;
}

// Whether `variable` holds the same number as the claim's size: then all ranks are here.
bool all_here(const GetEnv& get_env, const char* variable, const Claim& claim) {
  const auto local = number(get_env, variable);
  return claim.size && local.ok() && local.value() && local.value()->value == claim.size->value;
}

Result<Claim> read_claim(const GetEnv& get_env, const char* launcher, const char* rank,
                         const char* size) {
  Claim claim;
  claim.launcher = launcher;
  claim.rank_variable = rank;
  claim.size_variable = size;
  RUEDA_ASSIGN_OR_RETURN(claim.rank, number(get_env, rank));
  RUEDA_ASSIGN_OR_RETURN(claim.size, number(get_env, size));
  return claim;
}

bool is_torchrun(const GetEnv& get_env) { return get_env("TORCHELASTIC_RUN_ID") != nullptr; }
bool is_deepspeed(const GetEnv& get_env) {
  return get_env("CROSS_SIZE") != nullptr && get_env("LOCAL_SIZE") != nullptr;
}

// RANK, WORLD_SIZE, MASTER_ADDR: at least two of them make a claim.
Status add_torch(const GetEnv& get_env, std::vector<Claim>* claims) {
  const char* launcher = is_torchrun(get_env)    ? "torchrun"
                         : is_deepspeed(get_env) ? "deepspeed"
                                                 : "whoever set RANK and WORLD_SIZE";
  RUEDA_ASSIGN_OR_RETURN(Claim claim, read_claim(get_env, launcher, "RANK", "WORLD_SIZE"));
  claim.root_host = text_of(get_env, "MASTER_ADDR");
  const int present =
      (claim.rank ? 1 : 0) + (claim.size ? 1 : 0) + (claim.root_host.empty() ? 0 : 1);
  if (present < 2) return {};
  claim.root_port = kMasterPort;
  RUEDA_ASSIGN_OR_RETURN(const auto port, number(get_env, "MASTER_PORT"));
  if (port) claim.root_port = port->value;
  claim.one_host = all_here(get_env, "LOCAL_WORLD_SIZE", claim) ||
                   (is_deepspeed(get_env) && all_here(get_env, "LOCAL_SIZE", claim));
  if (claim.root_host.empty()) {
    claims->push_back(std::move(claim));
    return {};
  }
  claim.job = "torch/" + claim.root_host + "/" + std::to_string(claim.root_port) + "/" +
              text_of(get_env, "TORCHELASTIC_RUN_ID") + "/" +
              text_of(get_env, "TORCHELASTIC_RESTART_COUNT");
  claims->push_back(std::move(claim));
  return {};
}

// As Kubeflow's JAX runtime and jax.distributed.initialize() have them: at least two of three make
// a claim. The address is "host:port"; the port itself is that of JAX's own coordinator.
Status add_jax(const GetEnv& get_env, std::vector<Claim>* claims) {
  RUEDA_ASSIGN_OR_RETURN(Claim claim, read_claim(get_env, "whoever set JAX_PROCESS_ID",
                                                 "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"));
  const std::string address = text_of(get_env, "JAX_COORDINATOR_ADDRESS");
  const int present = (claim.rank ? 1 : 0) + (claim.size ? 1 : 0) + (address.empty() ? 0 : 1);
  if (present < 2) return {};
  if (!address.empty()) {
    const size_t colon = address.rfind(':');
    const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
    const auto [rest, error] =
        std::from_chars(port.data(), port.data() + port.size(), claim.root_port);
    if (error != std::errc() || rest != port.data() + port.size() || claim.root_port < 1 ||
        claim.root_port > 65535 || colon == 0) {
      return failed_precondition("JAX_COORDINATOR_ADDRESS='" + address +
                                 "' is not host:port: unset it, or start the job with ruedarun");
    }
    claim.root_host = address.substr(0, colon);
    if (claim.root_host.front() == '[' && claim.root_host.back() == ']')
      claim.root_host = claim.root_host.substr(1, claim.root_host.size() - 2);
    claim.job = "jax/" + address;
  }
  claims->push_back(std::move(claim));
  return {};
}

Status add_slurm(const GetEnv& get_env, Claims* found) {
  RUEDA_ASSIGN_OR_RETURN(
      Claim claim, read_claim(get_env, "Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"));
  if (!claim.size) {
    claim.size_variable = "SLURM_NTASKS";
    RUEDA_ASSIGN_OR_RETURN(claim.size, number(get_env, "SLURM_NTASKS"));
  }
  std::string step = text_of(get_env, "SLURM_STEP_ID");
  if (step.empty()) step = text_of(get_env, "SLURM_STEPID");
  // In a batch script and in salloc's shell SLURM_PROCID is 0 as well, but nobody started tasks.
  int64_t id = -1;
  const auto [rest, error] = std::from_chars(step.data(), step.data() + step.size(), id);
  const bool numeric = error == std::errc() && rest == step.data() + step.size();
  if (!numeric || id < 0 || id > kLargestStep) {
    const bool tasks = claim.size && claim.size->value > 1;
    if (tasks && get_env("SLURM_JOB_ID") != nullptr && found->claims.empty()) {
      found->remark = "this process runs inside Slurm job " + text_of(get_env, "SLURM_JOB_ID") +
                      " of " + std::to_string(claim.size->value) +
                      " tasks but no srun started it, so it is a job of one rank; for one rank per "
                      "task say `srun python ...`";
    }
    return {};
  }
  if (!claim.rank && !claim.size) return {};
  const std::string nodes = text_of(get_env, "SLURM_STEP_NUM_NODES");
  claim.one_host = (nodes.empty() ? text_of(get_env, "SLURM_NNODES") : nodes) == "1";
  const std::string list = text_of(get_env, "SLURM_STEP_NODELIST");
  claim.root_host = first_host(list.empty() ? text_of(get_env, "SLURM_JOB_NODELIST") : list);
  claim.job = "slurm/" + text_of(get_env, "SLURM_JOB_ID") + "." + step + "/" +
              text_of(get_env, "SLURM_RESTART_COUNT");
  claim.root_port =
      kFirstStepPort + static_cast<int>(std::hash<std::string>()(claim.job) % kStepPorts);
  found->claims.push_back(std::move(claim));
  return {};
}

struct Plain {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_size;
  const char* job;
};
const Plain kPlain[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    // Hydra gives a job no name; meeting.cc finds the proxy that started its ranks.
    {"MPICH's or Intel's mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_JOBID"},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "", "FLUX_JOB_ID"},
    {"LSF's jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE",
     "LSB_JOBID"},
    {"Horovod's launcher", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE",
     "HOROVOD_GLOO_RENDEZVOUS_PORT"},
};

Status add_plain(const GetEnv& get_env, const Plain& plain, std::vector<Claim>* claims) {
  RUEDA_ASSIGN_OR_RETURN(Claim claim, read_claim(get_env, plain.launcher, plain.rank, plain.size));
  if (!claim.rank && !claim.size) return {};
  claim.one_host = plain.local_size[0] != '\0' && all_here(get_env, plain.local_size, claim);
  const std::string job = text_of(get_env, plain.job);
  if (!job.empty()) claim.job = std::string(plain.job) + "/" + job;
  claims->push_back(std::move(claim));
  return {};
}

std::string shown(const std::optional<Number>& number) {
  return number ? number->variable + "=" + std::to_string(number->value) : "";
}

std::string shown(const Claim& claim) {
  std::string text = claim.launcher + " says ";
  if (claim.rank) text += shown(claim.rank) + (claim.size ? " and " : "");
  return text + shown(claim.size);
}

bool differ(const std::optional<Number>& a, const std::optional<Number>& b) {
  return a && b && a->value != b->value;
}

}  // namespace

std::string first_host(const std::string& list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const size_t end = list.find(']', at);
    if (end == std::string::npos) return "";
    host += list.substr(at + 1, std::min(list.find_first_of("-,]", at), end) - at - 1);
    at = end;
  }
  return host;
}

Result<Claims> find_claims(const GetEnv& get_env) {
  Claims found;
  std::vector<Claim> torch;
  RUEDA_RETURN_IF_ERROR(add_torch(get_env, &torch));
  const bool marked = is_torchrun(get_env) || is_deepspeed(get_env);
  if (marked) found.claims = torch;
  for (const Plain& plain : kPlain) RUEDA_RETURN_IF_ERROR(add_plain(get_env, plain, &found.claims));
  RUEDA_RETURN_IF_ERROR(add_slurm(get_env, &found));
  if (!marked) found.claims.insert(found.claims.end(), torch.begin(), torch.end());
  RUEDA_RETURN_IF_ERROR(add_jax(get_env, &found.claims));
  return found;
}

Result<std::optional<Claim>> settle(const Claims& found) {
  if (found.claims.empty()) return std::optional<Claim>();
  const auto whole = std::find_if(found.claims.begin(), found.claims.end(),
                                  [](const Claim& claim) { return claim.complete(); });
  if (whole == found.claims.end()) {
    const Claim& half = found.claims.front();
    const std::string& missing = half.rank ? half.size_variable : half.rank_variable;
    return failed_precondition(
        shown(half) + ", but " + missing +
        " is not set, so this process does not know its place in the job: set it too, or unset " +
        (half.rank ? half.rank_variable : half.size_variable) +
        " for a job of one rank, or start the job with ruedarun");
  }
  Claim chosen = *whole;
  for (const Claim& other : found.claims) {
    if (&other == &*whole) continue;
    const bool outer = other.launcher == "Slurm's srun" || chosen.launcher == "torchrun" ||
                       chosen.launcher == "deepspeed";
    if (!outer && (differ(chosen.size, other.size) || differ(chosen.rank, other.rank))) {
      return failed_precondition(
          "two launchers disagree about this process: " + shown(chosen) + ", but " + shown(other) +
          "; unset those of the one that did not start this job (`env -u " +
          (differ(chosen.size, other.size) ? other.size : other.rank)->variable + " ...`)");
    }
    if (differ(chosen.size, other.size)) continue;
    // Of the same job: it may know what the other does not.
    if (chosen.job.empty()) chosen.job = other.job;
    chosen.one_host = chosen.one_host || other.one_host;
    if (chosen.root_host.empty()) {
      chosen.root_host = other.root_host;
      chosen.root_port = other.root_port;
    }
  }
  if (chosen.size->value < 1 || chosen.rank->value >= chosen.size->value) {
    return failed_precondition(shown(chosen) + ": the rank must be below the size");
  }
  return std::optional<Claim>(std::move(chosen));
}

}  // namespace rueda::launchers
