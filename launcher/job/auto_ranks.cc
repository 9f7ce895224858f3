#include "launcher/job/auto_ranks.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "collectives/base/number_text.h"

namespace rueda::launcher {
namespace {

// "0,1", "GPU-5a,GPU-7b", "MIG-1f"; nothing counts after "-1".
int count_listed(const std::string& text) {
  int count = 0;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    part.erase(0, std::min(part.find_first_not_of(' '), part.size()));
    if (part.empty() || part[0] == '-' || part == "NoDevFiles") break;
    ++count;
  }
  return count;
}

AutoRanks gpus(int count, const std::string& source) {
  return {count, counted(static_cast<size_t>(count), "GPU") + ", from " + source};
}

int count_entries(const std::string& folder, const std::string& begins) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begins)) continue;
    const std::string rest = name.substr(begins.size());
    const bool number = !rest.empty() && std::all_of(rest.begin(), rest.end(), [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    if (begins.empty() || number) ++count;
  }
  return count;
}

}  // namespace

AutoRanks visible_gpus(const GetEnv& get, int devices) {
  if (const char* listed = get("CUDA_VISIBLE_DEVICES"))
    return gpus(count_listed(listed), "CUDA_VISIBLE_DEVICES");
  if (const char* given = get("NVIDIA_VISIBLE_DEVICES")) {
    const std::string text = given;
    if (text.empty() || text == "none" || text == "void") return gpus(0, "NVIDIA_VISIBLE_DEVICES");
    if (text != "all") return gpus(count_listed(text), "NVIDIA_VISIBLE_DEVICES");
  }
  return gpus(devices, "the driver's files");
}

AutoRanks auto_ranks(const GetEnv& get, int devices, int cores, int per_gpu) {
  AutoRanks found = visible_gpus(get, devices);
  if (found.count > 0) {
    if (per_gpu > 1) found.why = std::to_string(per_gpu) + " for each of " + found.why;
    found.count *= per_gpu;
    return found;
  }
  return {cores, counted(static_cast<size_t>(cores), "core")};
}

Result<std::string> describe_sharing(const GetEnv& get, int devices, int ranks, int per_gpu,
                                     bool mps) {
  const AutoRanks gpus = visible_gpus(get, devices);
  if (gpus.count == 0) return std::string();
  if (ranks > gpus.count * per_gpu) {
    return invalid_argument("--ranks-per-gpu " + std::to_string(per_gpu) + ": " +
                            std::to_string(ranks) + " ranks are too many for " + gpus.why +
                            "; start " + std::to_string(gpus.count * per_gpu) +
                            " at most (-np auto), or let more share each");
  }
  return std::to_string(per_gpu) + " ranks share " + (gpus.count > 1 ? "each of " : "") + gpus.why +
         (mps ? ", under MPS"
              : ", without MPS: their kernels take turns (nvidia-cuda-mps-control -d starts it)");
}

bool mps_is_running(const GetEnv& get, const std::string& root) {
  const char* const named = get("CUDA_MPS_PIPE_DIRECTORY");
  const std::string folder = root + (named == nullptr ? "/tmp/nvidia-mps" : named) + "/";
  std::error_code error;
  if (!std::filesystem::exists(folder + "control", error)) return false;
  int64_t pid = 0;
  std::ifstream file(folder + "nvidia-cuda-mps-control.pid");
  return !(file >> pid) || std::filesystem::exists("/proc/" + std::to_string(pid), error);
}

int count_gpu_devices(const std::string& root) {
  const int known = count_entries(root + "/proc/driver/nvidia/gpus", "");
  const int nodes = count_entries(root + "/dev", "nvidia");
  return known > 0 && nodes > 0 ? std::min(known, nodes) : std::max(known, nodes);
}

}  // namespace rueda::launcher
