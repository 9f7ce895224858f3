#include "runtime/engine/disk_use.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

namespace rueda::engine {
namespace {

constexpr int kState = 3, kBlocked = 42;  // fields of /proc/PID/stat, from 1

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::optional<DiskUse> parse_disk_use(const std::string& stat, const std::string& io,
                                      int64_t ticks) {
  const size_t name_end = stat.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos || ticks <= 0) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  for (int field = kState; field < kBlocked; ++field) fields >> skipped;
  int64_t blocked = 0;
  if (!(fields >> blocked)) return std::nullopt;
  DiskUse use;
  use.blocked = blocked * (1'000'000'000 / ticks);
  std::istringstream lines(io);
  std::string key;
  for (int64_t value = 0; lines >> key >> value;) {
    if (key == "read_bytes:" || key == "write_bytes:") use.bytes += value;
  }
  return use;
}

std::optional<DiskUse> disk_use(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  return parse_disk_use(text_of(folder + "/stat"), text_of(folder + "/io"), sysconf(_SC_CLK_TCK));
}

}  // namespace rueda::engine
