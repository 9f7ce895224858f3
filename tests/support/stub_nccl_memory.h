// What the stub of NCCL knows of memory: what ncclMemAlloc has given, what communicators were told
// of, what calls under way touch. Whatever NCCL would take amiss without a word ends the test with
// a text: registering twice, deregistering what is not registered or still used, freeing what is
// registered or still used, using what was freed.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace rueda::stub {

struct Range {
  const std::byte* begin = nullptr;
  size_t bytes = 0;

  Range() = default;
  Range(const void* from, size_t count)
      : begin(static_cast<const std::byte*>(from)), bytes(count) {}
  bool touches(const Range& other) const {
    return bytes > 0 && other.bytes > 0 && begin < other.begin + other.bytes &&
           other.begin < begin + bytes;
  }
};

[[noreturn]] inline void misuse(const std::string& what) {
  std::fprintf(stderr, "stub of NCCL: %s\n", what.c_str());
  std::abort();
}

class Memory {
 public:
  void* allocate(size_t bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    const std::lock_guard lock(mutex_);
    given_[memory] = {memory, bytes};
    return memory;
  }
  void free(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto known = given_.find(memory);
    if (known == given_.end()) misuse("ncclMemFree of what ncclMemAlloc has not given");
    for (const auto& [handle, known_to] : registered_)
      if (known_to.range.touches(known->second)) misuse("ncclMemFree of registered memory");
    for (const auto& [number, call] : under_way_)
      if (call.touches(known->second)) misuse("ncclMemFree of memory that a call uses");
    // Its addresses are never given again, and who touches them is killed.
    if (mmap(memory, known->second.bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
      misuse("mmap");
    freed_.push_back(known->second);
    given_.erase(known);
  }
  // Handles are numbers from 1 on.
  void* add(const void* comm, Range range, bool window) {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, known] : registered_)
      if (known.comm == comm && known.range.touches(range)) misuse("memory is registered twice");
    check_freed(range);
    if (window && !is_given(range)) misuse("a window of memory that ncclMemAlloc has not given");
    void* const handle = reinterpret_cast<void*>(++handles_);
    registered_[handle] = {comm, range, window};
    return handle;
  }
  void remove(const void* comm, void* handle, bool window) {
    const std::lock_guard lock(mutex_);
    const auto known = registered_.find(handle);
    if (known == registered_.end() || known->second.comm != comm || known->second.window != window)
      misuse("deregistering what is not registered");
    for (const auto& [number, call] : under_way_)
      if (call.comm == comm && call.touches(known->second.range))
        misuse("deregistering memory that a call uses");
    registered_.erase(known);
  }
  // The communicator is gone, and what it had under way.
  void forget(const void* comm) {
    const std::lock_guard lock(mutex_);
    std::erase_if(registered_, [comm](const auto& each) { return each.second.comm == comm; });
    std::erase_if(under_way_, [comm](const auto& each) { return each.second.comm == comm; });
  }
  uint64_t begin(const void* comm, const std::vector<Range>& ranges) {
    const std::lock_guard lock(mutex_);
    for (const Range& range : ranges) check_freed(range);
    under_way_[++calls_] = {comm, ranges};
    return calls_;
  }
  void end(uint64_t call) {
    const std::lock_guard lock(mutex_);
    under_way_.erase(call);
  }
  void check(const std::vector<Range>& ranges) {
    const std::lock_guard lock(mutex_);
    for (const Range& range : ranges) check_freed(range);
  }
  int64_t registered_now() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(registered_.size());
  }
  int64_t given_now() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(given_.size());
  }

 private:
  struct Registration {
    const void* comm;
    Range range;
    bool window;
  };
  struct Call {
    const void* comm;
    std::vector<Range> ranges;
    bool touches(const Range& range) const {
      for (const Range& each : ranges)
        if (each.touches(range)) return true;
      return false;
    }
  };
  void check_freed(const Range& range) const {
    for (const Range& old : freed_)
      if (old.touches(range)) misuse("a call uses memory that ncclMemFree has freed");
  }
  bool is_given(const Range& range) const {
    for (const auto& [memory, known] : given_)
      if (known.begin <= range.begin && range.begin + range.bytes <= known.begin + known.bytes)
        return true;
    return false;
  }

  std::mutex mutex_;
  std::map<void*, Range> given_;
  std::vector<Range> freed_;
  std::map<void*, Registration> registered_;
  std::map<uint64_t, Call> under_way_;
  uintptr_t handles_ = 0;
  uint64_t calls_ = 0;
};

}  // namespace rueda::stub
