// Which SIGKILL is said to have come from the kernel for want of memory.
#include "launcher/agent/oom_watch.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <map>

using rueda::launcher::OomWatch;

namespace {

using Files = std::map<std::string, std::string>;

rueda::host::ReadFile reader_of(const Files* files) {
  return [files](const std::string& path) -> std::optional<std::string> {
    const auto found = files->find(path);
    return found == files->end() ? std::nullopt : std::optional(found->second);
  };
}

constexpr int kKilled = SIGKILL, kTerminated = SIGTERM, kExited = 1 << 8;  // wait statuses

}  // namespace

TEST_CASE("a SIGKILL after which the group's count has risen was for want of memory",
          "[oom_watch]") {
  const bool second = GENERATE(true, false);
  Files files = {{"/proc/vmstat", "pgfault 12\noom_kill 7\n"}};
  std::string events;
  if (second) {
    files["/proc/self/cgroup"] = "0::/job/one\n";
    events = "/sys/fs/cgroup/job/one/memory.events";
    files["/sys/fs/cgroup/job/one/memory.max"] = "4294967296\n";
    files[events] = "low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\n";
  } else {
    files["/proc/self/cgroup"] = "5:cpu,cpuacct:/\n4:memory:/job/one\n";
    events = "/sys/fs/cgroup/memory/job/one/memory.oom_control";
    files["/sys/fs/cgroup/memory/job/one/memory.limit_in_bytes"] = "4294967296\n";
    files[events] = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n";
  }
  OomWatch watch(reader_of(&files));
  CHECK(watch.hint(kKilled).empty());  // by somebody
  files[events].replace(files[events].rfind('2'), 1, "4");
  CHECK(watch.hint(kTerminated).empty());
  CHECK(watch.hint(kExited).empty());
  CHECK(watch.hint(kKilled) ==
        ", probably for want of memory: the kernel's oom_kill count for its control group's memory "
        "limit (4096 MiB) rose by 2");
  CHECK(watch.hint(kKilled).empty());  // has been said
  files["/proc/vmstat"] = "pgfault 13\noom_kill 8\n";
  CHECK(watch.hint(kKilled) ==
        ", probably for want of memory: the kernel's oom_kill count for this host's memory rose by "
        "1");
}

TEST_CASE("without the kernel's counts nothing is said", "[oom_watch]") {
  Files files;
  OomWatch watch(reader_of(&files));
  files["/proc/vmstat"] = "oom_kill 1\n";  // counted from when?
  CHECK(watch.hint(kKilled).empty());
}
