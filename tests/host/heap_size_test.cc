#include "collectives/host/heap_size.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <map>

namespace rueda::host {
namespace {

host::ReadFile from(const std::map<std::string, std::string>& files) {
  return [&files](const std::string& path) -> std::optional<std::string> {
    const auto it = files.find(path);
    if (it == files.end()) return std::nullopt;
    return it->second;
  };
}

TEST_CASE("the cgroup's limit is the smallest on the way up, in both versions", "[heap]") {
  const std::map<std::string, std::string> none;
  CHECK(host::cgroup_memory_limit(from(none)) == std::nullopt);
  const std::map<std::string, std::string> second = {
      {"/proc/self/cgroup", "0::/jobs/mine\n"},
      {"/sys/fs/cgroup/jobs/mine/memory.max", "max\n"},
      {"/sys/fs/cgroup/jobs/memory.max", "4096000\n"},
      {"/sys/fs/cgroup/memory.max", "8192000\n"}};
  CHECK(host::cgroup_memory_limit(from(second)) == 4096000);
  const std::map<std::string, std::string> first = {
      {"/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/a1\n0::/\n"},
      // Inside the container the path of the host does not exist.
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n"}};
  CHECK(host::cgroup_memory_limit(from(first)) == 1048576);
  const std::map<std::string, std::string> tasks = {
      {"/proc/self/cgroup", "7:pids:/docker/a1\n0::/jobs/mine\n"},
      {"/sys/fs/cgroup/pids/docker/a1/pids.max", "max\n"},
      {"/sys/fs/cgroup/jobs/mine/pids.max", "96\n"},
      {"/sys/fs/cgroup/jobs/pids.max", "12\n"}};
  CHECK(host::cgroup_process_limit(from(tasks)) == 12);
  const std::map<std::string, std::string> odd = {{"/proc/self/cgroup", "what\n0::relative\n\n"},
                                                  {"/sys/fs/cgroup/memory.max", ""}};
  CHECK(host::cgroup_memory_limit(from(odd)) == std::nullopt);
}

TEST_CASE("so is the limit on cores", "[waiting]") {
  const std::map<std::string, std::string> none = {{"/proc/self/cgroup", "0::/\n"},
                                                   {"/sys/fs/cgroup/cpu.max", "max 100000\n"}};
  CHECK(host::cgroup_core_limit(from(none)) == std::nullopt);
  const std::map<std::string, std::string> second = {
      {"/proc/self/cgroup", "0::/jobs/mine\n"},
      {"/sys/fs/cgroup/jobs/mine/cpu.max", "400000 100000\n"},
      {"/sys/fs/cgroup/jobs/cpu.max", "150000 100000\n"}};
  CHECK(host::cgroup_core_limit(from(second)) == 1.5);
  const std::map<std::string, std::string> first = {
      {"/proc/self/cgroup", "5:cpu,cpuacct:/x\n"},
      {"/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n"},
      {"/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}};
  CHECK(host::cgroup_core_limit(from(first)) == 2.0);
}

TEST_CASE("a frozen process is told with what thaws it", "[heap]") {
  const auto file = [](const std::map<std::string, std::string>& files) {
    const auto found = host::frozen_by(from(files), 7);
    return found ? "echo " + found->thaw + " > " + found->file : "";
  };
  std::map<std::string, std::string> second = {{"/proc/7/cgroup", "0::/jobs/mine\n"},
                                               {"/sys/fs/cgroup/jobs/mine/cgroup.freeze", "0\n"},
                                               {"/sys/fs/cgroup/jobs/cgroup.freeze", "0\n"}};
  CHECK(file(second) == "");
  second["/sys/fs/cgroup/jobs/mine/cgroup.freeze"] = "1\n";
  CHECK(file(second) == "echo 0 > /sys/fs/cgroup/jobs/mine/cgroup.freeze");
  second["/sys/fs/cgroup/jobs/cgroup.freeze"] = "1\n";
  CHECK(file(second) == "echo 0 > /sys/fs/cgroup/jobs/cgroup.freeze");
  CHECK(file({{"/proc/7/cgroup", "6:freezer:/\n0::/x\n"},
              {"/sys/fs/cgroup/unified/x/cgroup.freeze", "1\n"}}) ==
        "echo 0 > /sys/fs/cgroup/unified/x/cgroup.freeze");
  CHECK(file({{"/proc/7/cgroup", "6:freezer:/x\n0::/\n"},
              {"/sys/fs/cgroup/freezer/x/freezer.self_freezing", "1\n"}}) ==
        "echo THAWED > /sys/fs/cgroup/freezer/x/freezer.state");
  CHECK(file({}) == "");
}

TEST_CASE("available memory is read in bytes", "[heap]") {
  const std::map<std::string, std::string> files = {
      {"/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    2048 kB\nBuffers: 7 kB\n"}};
  CHECK(available_memory(from(files)) == 2048 * 1024);
  const std::map<std::string, std::string> none;
  CHECK(available_memory(from(none)) == std::nullopt);
}

TEST_CASE("a configured size is rounded up to pages, the automatic one fits the host", "[heap]") {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  CHECK(heap_size(1, 1) == page);
  CHECK(heap_size(static_cast<int64_t>(3 * page), 64) == 3 * page);
  const size_t automatic = heap_size(0, 1);
  CHECK(automatic % page == 0);
  CHECK(automatic >= page);
  CHECK(automatic <= static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page);
  CHECK(heap_size(0, 1024) <= automatic);
}

}  // namespace
}  // namespace rueda::host
