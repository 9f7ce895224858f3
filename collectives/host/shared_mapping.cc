#include "collectives/host/shared_mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>
#include <vector>

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
      new SharedMapping(static_cast<std::byte*>(address), bytes, file, options));
  all.mappings[file] = mapping;
  return mapping;
}

Status SharedMapping::become(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return errno_status("cannot look at shared memory", errno);
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  // "start-end perms offset major:minor inode name", in numbers of base 16 but for the inode.
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(fopen("/proc/self/maps", "re"), fclose);
  if (maps == nullptr) return errno_status("cannot read /proc/self/maps", errno);
  struct Part {
    uintptr_t start, end, offset;
  };
  std::vector<Part> parts;
  char line[4096];
  while (fgets(line, sizeof(line), maps.get()) != nullptr) {
    Part part{};
    unsigned long inode = 0;
    unsigned major = 0, minor = 0;
    if (sscanf(line, "%lx-%lx %*s %lx %x:%x %lu", &part.start, &part.end, &part.offset, &major,
               &minor, &inode) == 6 &&
        inode == file_.inode && makedev(major, minor) == file_.device)
      parts.push_back(part);
  }
  const auto first = reinterpret_cast<uintptr_t>(base_);
  for (const Part& part : parts) {
    void* const at = reinterpret_cast<void*>(part.start);
    const size_t size = part.end - part.start;
    if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
             static_cast<off_t>(part.offset)) == MAP_FAILED)
      return errno_status("cannot move shared memory", errno);
    const bool own = part.start >= first && part.end <= first + bytes_;
    if (!own || !options_.inherited) madvise(at, size, MADV_DONTFORK);
    if (!own || !options_.dumped) madvise(at, size, MADV_DONTDUMP);
  }
  const auto me = all.mappings.extract(file_);
  file_ = {info.st_dev, info.st_ino};
  if (!me.empty()) all.mappings[file_] = me.mapped();
  return {};
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
