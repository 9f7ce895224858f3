#include "collectives/host/cgroup.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

namespace rueda::host {
namespace {

const std::string kRoot = "/sys/fs/cgroup";

// Is the word one of "one,two,three"?
bool lists(const std::string& words, const std::string& word) {
  std::istringstream stream(words);
  for (std::string each; std::getline(stream, each, ',');) {
    if (each == word) return true;
  }
  return false;
}

// Calls look(folder, version) for the folder of each of this process's groups that `controller`
// belongs to, and for all above it. process: its folder in /proc.
void for_each_group(const ReadFile& read, const std::string& controller,
                    const std::function<void(const std::string& folder, int version)>& look,
                    const std::string& process = "/proc/self") {
  // Lines "hierarchy:controllers:path"; version 2 is hierarchy 0 without controllers. Inside a
  // container the path may be the host's: then only the root, which is the container's, is there.
  std::istringstream lines(read(process + "/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const int version = controllers.empty() ? 2 : 1;
    if (version == 1 && !lists(controllers, controller)) continue;
    const std::string root = version == 2 ? kRoot : kRoot + "/" + controller;
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    for (;;) {
      look(root + path + "/", version);
      if (path.empty()) break;
      const size_t parent = path.find_last_of('/');
      path.resize(parent == std::string::npos ? 0 : parent);
    }
  }
}

template <typename T>
void lower(std::optional<T>* least, std::optional<T> limit) {
  if (limit) *least = std::min(least->value_or(*limit), *limit);
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<uint64_t> first_number(const std::string& text) {
  const size_t start = text.find_first_not_of(" \t\n");
  if (start == std::string::npos) return std::nullopt;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() + start) return std::nullopt;
  return value;
}

std::optional<uint64_t> cgroup_memory_limit(const ReadFile& read) {
  std::optional<uint64_t> least;
  for_each_group(read, "memory", [&](const std::string& folder, int version) {
    const char* const file = version == 2 ? "memory.max" : "memory.limit_in_bytes";
    lower(&least, first_number(read(folder + file).value_or("")));
  });
  return least;
}

std::optional<double> cgroup_core_limit(const ReadFile& read) {
  std::optional<double> least;
  for_each_group(read, "cpu", [&](const std::string& folder, int version) {
    std::string quota;
    std::string period;
    if (version == 2) {  // "max 100000" or "150000 100000"
      std::istringstream(read(folder + "cpu.max").value_or("")) >> quota >> period;
    } else {  // -1: none
      quota = read(folder + "cpu.cfs_quota_us").value_or("");
      period = read(folder + "cpu.cfs_period_us").value_or("");
    }
    const auto allowed = first_number(quota);
    const auto of = first_number(period);
    if (allowed && of && *of > 0)
      lower(&least, std::optional(static_cast<double>(*allowed) / static_cast<double>(*of)));
  });
  return least;
}

std::optional<uint64_t> cgroup_process_limit(const ReadFile& read) {
  std::optional<uint64_t> least;
  for_each_group(read, "pids", [&](const std::string& folder, int) {
    lower(&least, first_number(read(folder + "pids.max").value_or("")));
  });
  return least;
}

std::optional<FrozenBy> frozen_by(const ReadFile& read, int pid) {
  std::optional<FrozenBy> found;  // the outermost: while it holds, thawing inner ones does not help
  const auto try_file = [&](const std::string& asked, const std::string& file, const char* thaw) {
    if (first_number(read(asked).value_or("")) == 1) found = FrozenBy{file, thaw};
  };
  const auto look = [&](const std::string& folder, int version) {
    if (version == 1)
      return try_file(folder + "freezer.self_freezing", folder + "freezer.state", "THAWED");
    // Where version 1 has the controllers, version 2 lies beside them.
    const std::string beside = kRoot + "/unified" + folder.substr(kRoot.size());
    for (const std::string& place : {folder, beside})
      try_file(place + "cgroup.freeze", place + "cgroup.freeze", "0");
  };
  for_each_group(read, "freezer", look, "/proc/" + std::to_string(pid));
  return found;
}

}  // namespace rueda::host
