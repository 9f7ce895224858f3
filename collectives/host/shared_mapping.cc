#include "collectives/host/shared_mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <mutex>

namespace rueda::host {

// Mappings of this process by file. An entry dies with the last holder.
struct SharedMapping::Registry {
  std::mutex mutex;
  std::map<File, std::weak_ptr<SharedMapping>> mappings;
};

SharedMapping::Registry& SharedMapping::registry() {
  static Registry* const instance = new Registry;  // outlives every thread
  return *instance;
}

Result<std::shared_ptr<SharedMapping>> SharedMapping::of(int fd, size_t bytes, Options options) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return errno_status("cannot look at shared memory", errno);
  if (static_cast<size_t>(info.st_size) != bytes) {
    return failed_precondition("shared memory has " + std::to_string(info.st_size) +
                               " bytes, expected " + std::to_string(bytes) +
                               ": ranks run different versions or settings");
  }
  const File file{info.st_dev, info.st_ino};
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (const auto it = all.mappings.find(file); it != all.mappings.end()) {
    if (auto mapping = it->second.lock()) return mapping;
  }
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (address == MAP_FAILED)
    return errno_status("cannot map " + std::to_string(bytes) + " bytes of shared memory", errno);
  if (!options.inherited) madvise(address, bytes, MADV_DONTFORK);
  if (!options.dumped) madvise(address, bytes, MADV_DONTDUMP);
  std::shared_ptr<SharedMapping> mapping(
      new SharedMapping(static_cast<std::byte*>(address), bytes, file));
  all.mappings[file] = mapping;
  return mapping;
}

SharedMapping::~SharedMapping() {
  {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto it = all.mappings.find(file_);
    if (it != all.mappings.end() && it->second.expired()) all.mappings.erase(it);
  }
  munmap(base_, bytes_);
}

}  // namespace rueda::host
