#include "launcher/surroundings.h"

#include <errno.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "collectives/base/number_text.h"
#include "launcher/binding/host_binding.h"
#include "launcher/hosts/machine.h"
#include "launcher/job/auto_ranks.h"
#include "launcher/job/rank_environment.h"
#include "launcher/processes/capture.h"

namespace rueda::launcher {
namespace {

// The text of a hostfile.
Result<std::string> read_file(const std::string& path) {
  constexpr size_t kMaxBytes = 4 << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_status("cannot read the hostfile " + path, errno);
  if (std::error_code error; std::filesystem::is_directory(path, error))
    return errno_status("cannot read the hostfile " + path, EISDIR);
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxBytes) return invalid_argument(path + " is too long for a hostfile");
  return text;
}

Surroundings surroundings(const std::vector<std::string>& environment) {
  Surroundings around;
  around.get = [&environment](const char* name) { return find_variable(environment, name); };
  around.exists = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
  };
  around.read = read_file;
  around.ask_flux = [] {
    return capture({"flux", "resource", "list", "-n", "-s", "up", "-o", kFluxFormat, nullptr});
  };
  return around;
}

// PET_*: no flag says how many ranks there are, or where, and this is not a rank of such a job.
Result<std::optional<TorchNodes>> find_nodes(const Options& options, const GetEnv& get) {
  const bool said = options.num_proc != 0 || !options.hosts.empty() || !options.hostfile.empty() ||
                    !options.token_file.empty() || get("RUEDA_RANK") != nullptr;
  if (said || get("PET_NNODES") == nullptr) return std::optional<TorchNodes>();
  return read_torch_nodes(get, count_gpu_devices(), count_cores_here());
}

// A scheduler may write a node with its domain where the node itself knows none.
std::vector<std::string> names_in_allocation(const std::vector<HostSlots>& hosts) {
  std::vector<std::string> names = own_names();
  const std::string own = host_name();
  for (const HostSlots& host : hosts) {
    if (host.host.substr(0, host.host.find('.')) == own.substr(0, own.find('.')))
      names.push_back(host.host);
  }
  return names;
}

// Ranks fill one host after the other.
size_t hosts_used(int ranks, const std::vector<HostSlots>& hosts) {
  size_t used = 0;
  for (int left = ranks; used < hosts.size() && left > 0; ++used) left -= hosts[used].slots;
  return used;
}

std::string ranks_text(const Options& options) {
  return counted(static_cast<size_t>(options.num_proc), "rank");
}

// RUEDA_RANKS_PER_GPU, with what options say. Settings that are wrong are refused later.
int ranks_per_gpu(const Options& options, const GetEnv& get) {
  const auto config = load_config([&](const char* name) {
    const char* text = get(name);
    for (const Setting& setting : options.settings) {
      if (setting.variable == name) text = setting.value.c_str();
    }
    return text;
  });
  return config.ok() ? static_cast<int>(config.value().ranks_per_gpu) : 1;
}

// Of ranks on this host alone.
Status share_gpus(const GetEnv& get, const Options& options, std::string* said) {
  const int per_gpu = ranks_per_gpu(options, get);
  if (per_gpu == 1) return {};
  RUEDA_ASSIGN_OR_RETURN(
      const std::string text,
      describe_sharing(get, count_gpu_devices(), options.num_proc, per_gpu, mps_is_running(get)));
  if (!text.empty()) *said += (said->empty() ? "" : "; ") + text;
  return {};
}

}  // namespace

Result<Standing> look_around(const std::vector<std::string>& environment, Options* options) {
  const Surroundings around = surroundings(environment);
  Standing out;
  RUEDA_ASSIGN_OR_RETURN(const auto nodes, find_nodes(*options, around.get));
  if (nodes && options->elastic.elastic())
    return invalid_argument(options->elastic_words.front().origin +
                            ": an elastic job is started by one ruedarun, not by one on each node "
                            "(PET_NNODES)");
  if (nodes) {
    options->num_proc = nodes->ranks();
    out.said = ranks_text(*options) +
               (nodes->nodes == 1 ? " here"
                                  : " on " + counted(static_cast<size_t>(nodes->nodes), "node")) +
               ", found in PET_NNODES and PET_NPROC_PER_NODE";
    if (nodes->nodes > 1) {
      out.nodes = nodes;
      out.hosts.hosts = nodes->hosts();
      out.hosts.source = "PET_NNODES";
      out.own_names = {node_name(nodes->rank)};  // made up: no other means this machine
    }
    RUEDA_RETURN_IF_ERROR(check_ranks(*options));
    return out;
  }
  FoundHosts& found = out.hosts;
  if (!options->elastic.discovery_script.empty()) {  // it alone says where the job may be
    found.source = "--host-discovery-script " + options->elastic.discovery_script;
    out.own_names = own_names();
    RUEDA_RETURN_IF_ERROR(check_ranks(*options));
    return out;
  }
  RUEDA_ASSIGN_OR_RETURN(found, find_hosts(options->hosts, options->hostfile, around));
  const bool counted_here = options->num_proc == 0;
  if (counted_here && !found.hosts.empty()) {
    const int most = options->elastic.max_np;
    options->num_proc = most > 0 ? std::min(found.slots(), most) : found.slots();
  } else if (counted_here && options->auto_ranks) {
    const AutoRanks ranks = auto_ranks(around.get, count_gpu_devices(), count_cores_here(),
                                       ranks_per_gpu(*options, around.get));
    options->num_proc = ranks.count;
    out.said = ranks_text(*options) + " here: " + ranks.why;
  } else if (counted_here) {
    return invalid_argument(no_ranks_said(around.get));
  }
  RUEDA_RETURN_IF_ERROR(check_ranks(*options));
  const bool one = found.allocation && found.hosts.size() == 1;
  if (found.by_itself && (counted_here || !one)) {
    out.said =
        ranks_text(*options) +
        (one ? " here" : " on " + counted(hosts_used(options->num_proc, found.hosts), "host")) +
        ", found in " + found.source;
  }
  if (one) found.hosts.clear();
  if (found.hosts.empty()) RUEDA_RETURN_IF_ERROR(share_gpus(around.get, *options, &out.said));
  out.own_names = found.allocation ? names_in_allocation(found.hosts) : own_names();
  return out;
}

}  // namespace rueda::launcher
