#include "collectives/host/heap_size.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "collectives/base/rounding.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RUEDA_HEAP_UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RUEDA_HEAP_UNDER_SANITIZER 1
#endif
#endif

namespace rueda::host {
namespace {

#ifdef RUEDA_HEAP_UNDER_SANITIZER
constexpr uint64_t kMost = uint64_t{256} << 20;
#else
constexpr uint64_t kMost = uint64_t{1} << 45;  // of all ranks: a quarter of what x86-64 can address
#endif

uint64_t soft_limit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                             : UINT64_MAX;
}

}  // namespace

std::optional<uint64_t> available_memory(const ReadFile& read) {
  const std::string text = read("/proc/meminfo").value_or("");
  const std::string name = "MemAvailable:";
  const size_t at = text.find(name);
  if (at == std::string::npos) return std::nullopt;
  const auto kibibytes = first_number(text.substr(at + name.size()));
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
    bytes = std::min(
        {bytes, kMost / ranks, soft_limit(RLIMIT_AS) / (4 * ranks), soft_limit(RLIMIT_FSIZE)});
#ifdef RUEDA_HEAP_UNDER_SANITIZER
    bytes = std::min(soft_limit(RLIMIT_FSIZE), kMost);
#endif
  }
  return static_cast<size_t>(round_up(std::max(bytes, page), page));
}

}  // namespace rueda::host
