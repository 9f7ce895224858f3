#include "launcher/agent/oom_watch.h"

#include <signal.h>
#include <sys/wait.h>

#include <sstream>
#include <utility>

namespace rueda::launcher {
namespace {

// The number behind "oom_kill " in a file; -1: there is none.
int64_t read_count(const host::ReadFile& read, const std::string& path) {
  std::istringstream file(read(path).value_or(""));
  std::string word;
  int64_t value = 0;
  while (file >> word >> value) {
    if (word == "oom_kill") return value;
  }
  return -1;
}

std::string read_limit(const host::ReadFile& read, const std::string& path) {
  std::istringstream file(read(path).value_or(""));
  int64_t bytes = -1;
  if (!(file >> bytes) || bytes < 0 || bytes > (int64_t{1} << 60)) return "";
  return " (" + std::to_string(bytes >> 20) + " MiB)";
}

struct Group {
  std::string folder;
  bool v2 = false;
};

// The control groups for memory that this process, and so its ranks, are in.
std::vector<Group> memory_groups(const host::ReadFile& read) {
  std::vector<Group> groups;
  std::istringstream file(read("/proc/self/cgroup").value_or(""));
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = ",";
    controllers.append(line, first + 1, second - first - 1).append(",");
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      groups.push_back({"/sys/fs/cgroup" + path, true});
    } else if (controllers.find(",memory,") != std::string::npos) {
      groups.push_back({"/sys/fs/cgroup/memory" + path, false});
      groups.push_back({"/sys/fs/cgroup/memory", false});  // a container sees its own as the root
    }
  }
  return groups;
}

}  // namespace

OomWatch::OomWatch(host::ReadFile read) : read_(std::move(read)) {
  for (const Group& group : memory_groups(read_)) {
    const std::string count = group.folder + (group.v2 ? "/memory.events" : "/memory.oom_control");
    const std::string limit =
        read_limit(read_, group.folder + (group.v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const int64_t seen = read_count(read_, count);
    if (seen >= 0) counters_.push_back({count, "its control group's memory limit" + limit, seen});
  }
  const int64_t host = read_count(read_, "/proc/vmstat");
  if (host >= 0) counters_.push_back({"/proc/vmstat", "this host's memory", host});
}

std::string OomWatch::hint(int wait_status) {
  if (!WIFSIGNALED(wait_status) || WTERMSIG(wait_status) != SIGKILL) return "";
  std::string text;
  for (Counter& counter : counters_) {
    const int64_t now = read_count(read_, counter.path);
    if (now > counter.seen && text.empty()) {
      text = ", probably for want of memory: the kernel's oom_kill count for " + counter.whose +
             " rose by " + std::to_string(now - counter.seen);
    }
    if (now > counter.seen) counter.seen = now;
  }
  return text;
}

}  // namespace rueda::launcher
