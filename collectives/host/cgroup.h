// What the control groups of a process, most often this one, allow it, versions 1 and 2. A limit
// may lie in the group itself or in any above it; the smallest counts. Pure, apart from what `read`
// does.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace rueda::host {

// Whole text of a file, or nothing.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_small_file(const std::string& path);

// The first number of a text; nothing for words such as "max".
std::optional<uint64_t> first_number(const std::string& text);

// Bytes of memory; nothing where there is no limit.
std::optional<uint64_t> cgroup_memory_limit(const ReadFile& read);
// Cores' worth of time; nothing where there is no limit.
std::optional<double> cgroup_core_limit(const ReadFile& read);
// Processes and threads; nothing where there is no limit.
std::optional<uint64_t> cgroup_process_limit(const ReadFile& read);

// The file that thaws this process, and what to write into it; nothing: it is not frozen.
struct FrozenBy {
  std::string file, thaw;
};
std::optional<FrozenBy> frozen_by(const ReadFile& read, int pid);

}  // namespace rueda::host
