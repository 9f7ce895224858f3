#include "collectives/transport/heap_size.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RUEDA_HEAP_UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RUEDA_HEAP_UNDER_SANITIZER 1
#endif
#endif

namespace rueda::transport {
namespace {

#ifdef RUEDA_HEAP_UNDER_SANITIZER
constexpr uint64_t kMost = uint64_t{256} << 20;
#else
constexpr uint64_t kMost = uint64_t{1} << 45;  // of all ranks: a quarter of what x86-64 can address
#endif

std::optional<uint64_t> number_at(const std::string& text) {
  const size_t start = text.find_first_not_of(" \t\n");
  if (start == std::string::npos) return std::nullopt;
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() + start) return std::nullopt;  // "max"
  return value;
}

// Of the folder `path` under `root` and every folder above it.
std::optional<uint64_t> smallest(const ReadFile& read, const std::string& root, std::string path,
                                 const char* file) {
  std::optional<uint64_t> least;
  for (;;) {
    if (const auto text = read(root + path + "/" + file)) {
      if (const auto limit = number_at(*text)) least = std::min(least.value_or(*limit), *limit);
    }
    if (path.empty()) return least;
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
}

uint64_t soft_limit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                             : UINT64_MAX;
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<uint64_t> cgroup_memory_limit(const ReadFile& read) {
  // Lines "hierarchy:controllers:path"; version 2 is hierarchy 0 without controllers. Inside a
  // container the path may be the host's: then only the root, which is the container's, is there.
  std::istringstream lines(read("/proc/self/cgroup").value_or(""));
  std::optional<uint64_t> least;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    std::optional<uint64_t> limit;
    if (controllers == ",,") {
      limit = smallest(read, "/sys/fs/cgroup", path, "memory.max");
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit = smallest(read, "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
    }
    if (limit) least = std::min(least.value_or(*limit), *limit);
  }
  return least;
}

std::optional<uint64_t> available_memory(const ReadFile& read) {
  const std::string text = read("/proc/meminfo").value_or("");
  const std::string name = "MemAvailable:";
  const size_t at = text.find(name);
  if (at == std::string::npos) return std::nullopt;
  const auto kibibytes = number_at(text.substr(at + name.size()));
  if (!kibibytes) return std::nullopt;
  return *kibibytes << 10;
}

size_t heap_size(int64_t configured, Rank ranks_of_host) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t bytes = static_cast<uint64_t>(configured);
  if (configured == 0) {
    const auto ranks = static_cast<uint64_t>(std::max<Rank>(ranks_of_host, 1));
    bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page;
    bytes = std::min(bytes, cgroup_memory_limit(read_small_file).value_or(bytes));
    bytes = std::min({bytes, kMost / ranks, soft_limit(RLIMIT_AS) / (4 * ranks),
                      soft_limit(RLIMIT_FSIZE)});
#ifdef RUEDA_HEAP_UNDER_SANITIZER
    bytes = std::min(soft_limit(RLIMIT_FSIZE), kMost);
#endif
  }
  return static_cast<size_t>((std::max(bytes, page) + page - 1) / page * page);
}

}  // namespace rueda::transport
