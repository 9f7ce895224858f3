#include "launcher/job/torch_nodes.h"

#include "collectives/base/number_text.h"
#include "launcher/command/options.h"
#include "launcher/job/auto_ranks.h"
#include "launcher/job/rank_environment.h"

namespace rueda::launcher {
namespace {

Status wrong(const char* name, const std::string& value, const std::string& expected) {
  return invalid_argument(std::string(name) + "='" + value + "': expected " + expected);
}

Result<int> read_nodes(const std::string& text) {
  const size_t colon = text.find(':');
  int least = 0, most = 0;
  if (!parse_number(text.substr(0, colon), 1, kMaxRanks, &least))
    return wrong("PET_NNODES", text, "a number of nodes");
  if (colon != std::string::npos &&
      (!parse_number(text.substr(colon + 1), 1, kMaxRanks, &most) || most != least)) {
    return wrong("PET_NNODES", text,
                 "one number of nodes: it cannot change while a job runs (no elastic membership)");
  }
  return least;
}

Result<int> read_ranks_per_node(const GetEnv& get, int gpu_devices, int cores) {
  const char* value = non_empty(get, "PET_NPROC_PER_NODE");
  const std::string text = value == nullptr ? "1" : value;
  if (text == "auto") return auto_ranks(get, gpu_devices, cores).count;
  if (text == "cpu") return cores;
  int count = 0;
  if (text == "gpu") {
    count = visible_gpus(get, gpu_devices).count;
    if (count > 0) return count;
    return invalid_argument("PET_NPROC_PER_NODE=gpu, but no GPU is visible here; auto takes cores");
  }
  if (!parse_number(text, 1, kMaxRanks, &count))
    return wrong("PET_NPROC_PER_NODE", text, "a number of ranks, auto, gpu or cpu");
  return count;
}

}  // namespace

std::string node_name(int rank) { return "node" + std::to_string(rank); }

std::vector<HostSlots> TorchNodes::hosts() const {
  std::vector<HostSlots> out;
  for (int i = 0; i < nodes; ++i) out.push_back({node_name(i), ranks_per_node, "", 0});
  return out;
}

std::string TorchNodes::terms() const {
  return "nodes/" + std::to_string(nodes) + "x" + std::to_string(ranks_per_node);
}

Result<std::optional<TorchNodes>> read_torch_nodes(const GetEnv& get, int gpu_devices, int cores) {
  const char* count = non_empty(get, "PET_NNODES");
  if (count == nullptr) return std::optional<TorchNodes>();
  TorchNodes found;
  RUEDA_ASSIGN_OR_RETURN(found.nodes, read_nodes(count));
  RUEDA_ASSIGN_OR_RETURN(found.ranks_per_node, read_ranks_per_node(get, gpu_devices, cores));
  if (static_cast<int64_t>(found.nodes) * found.ranks_per_node > kMaxRanks) {
    return invalid_argument(found.terms() + ": more than " + std::to_string(kMaxRanks) +
                            " ranks (PET_NNODES, PET_NPROC_PER_NODE)");
  }
  if (found.nodes == 1) return std::optional(found);
  for (const char* name : {"PET_NODE_RANK", "PET_MASTER_ADDR"}) {
    if (non_empty(get, name) == nullptr) {
      return invalid_argument("PET_NNODES=" + std::to_string(found.nodes) + ", but " + name +
                              " is not set: a node does not know its place; -np N starts ranks "
                              "here alone");
    }
  }
  if (!parse_number(get("PET_NODE_RANK"), 0, found.nodes - 1, &found.rank)) {
    return wrong("PET_NODE_RANK", get("PET_NODE_RANK"),
                 "0 to " + std::to_string(found.nodes - 1) + " (PET_NNODES)");
  }
  found.address = get("PET_MASTER_ADDR");
  if (!is_host_name(found.address)) return wrong("PET_MASTER_ADDR", found.address, "a host");
  const char* port = non_empty(get, "PET_MASTER_PORT");
  if (port != nullptr && !parse_number(port, 1, 65535, &found.port))
    return wrong("PET_MASTER_PORT", port, "a port");
  return std::optional(found);
}

std::string no_key_for_nodes(const TorchNodes& nodes) {
  return "PET_NNODES=" + std::to_string(nodes.nodes) +
         ": nodes prove with a key that they belong to one job, and RUEDA_KEY_FILE is not set. In "
         "Kubernetes make a Secret, kubectl create secret generic " +
         kKeySecret +
         " --from-literal=key=\"$(head -c 32 /dev/urandom | base64)\", mount it and set "
         "RUEDA_KEY_FILE to its file (docs/kubernetes.md)";
}

void set_torch_variables(const TorchNodes& nodes, std::vector<std::string>* environment) {
  std::erase_if(*environment, [](const std::string& entry) {
    const std::string name = entry.substr(0, entry.find('='));
    return name == "RANK" || name == "WORLD_SIZE" || name == "LOCAL_RANK" ||
           name == "LOCAL_WORLD_SIZE";
  });
  if (nodes.address.empty()) return;
  if (find_variable(*environment, "MASTER_ADDR") == nullptr)
    set_variable(environment, "MASTER_ADDR", nodes.address);
  if (find_variable(*environment, "MASTER_PORT") == nullptr)
    set_variable(environment, "MASTER_PORT", std::to_string(nodes.port));
}

}  // namespace rueda::launcher
