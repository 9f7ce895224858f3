#include "collectives/nccl/search.h"

#include <algorithm>

namespace rueda::nccl {
namespace {

constexpr std::string_view kName = "libnccl.so";
constexpr const char* kSystem = "libnccl.so.2";
constexpr const char* kOfPip = "nvidia/nccl/lib/libnccl.so.2";

// Files called libnccl.so* that are mapped, in the order of their addresses, each once.
std::vector<std::string> loaded(std::string_view maps) {
  std::vector<std::string> paths;
  while (!maps.empty()) {
    const size_t end = std::min(maps.find('\n'), maps.size());
    const std::string_view line = maps.substr(0, end);
    maps.remove_prefix(std::min(end + 1, maps.size()));
    const size_t slash = line.find('/');
    if (slash == std::string_view::npos) continue;
    const std::string_view path = line.substr(slash);
    const std::string_view file = path.substr(path.rfind('/') + 1);
    if (file.substr(0, kName.size()) != kName || path.find(" (deleted)") != path.npos) continue;
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.emplace_back(path);
  }
  return paths;
}

}  // namespace

std::vector<Candidate> candidates(std::string_view maps, const std::string& named,
                                  const std::string& own_folder) {
  if (!named.empty()) return {{named, "named by RUEDA_NCCL_LIBRARY", false}};
  std::vector<Candidate> found;
  for (const std::string& path : loaded(maps))
    found.push_back({path, "already loaded by this process", true});
  // site-packages/rueda/lib/ and site-packages/rueda/ are both possible.
  std::string folder = own_folder;
  for (int up = 0; up < 2 && folder.size() > 1; ++up) {
    if (folder.back() == '/') folder.pop_back();
    folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/') + 1);
    if (!folder.empty()) found.push_back({folder + kOfPip, "installed by pip", false});
  }
  found.push_back({kSystem, "the system's", false});
  return found;
}

}  // namespace rueda::nccl
