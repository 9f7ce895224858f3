// What the parts of libstub_nccl.so share: a communicator, where its ranks meet, a call of a group.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/nccl/functions.h"
#include "tests/support/stub_nccl_memory.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using rueda::nccl::Op;
using rueda::nccl::ResultCode;
using rueda::nccl::Type;
using rueda::stub::Range;
using Stream = rueda::nccl::Stream;

constexpr ResultCode kSystemError = 2;
constexpr ResultCode kInvalidArgument = 4;
constexpr ResultCode kInvalidUsage = 5;
constexpr ResultCode kRemoteError = 6;
constexpr size_t kMostRanks = 8;
constexpr size_t kBox = 64 << 10;  // bytes that a rank shows at once

// What the ranks of a communicator share.
struct Meeting {
  std::atomic<int> joined;
  std::atomic<uint64_t> arrivals;
  std::atomic<uint64_t> splitting;  // arrivals
  int colors[kMostRanks];
  int keys[kMostRanks];
  std::atomic<uint64_t> windowing;  // arrivals
  size_t window_bytes[kMostRanks];
  std::atomic<int> busy;  // calls that some rank's stream has not done
  std::byte boxes[kMostRanks][kBox];
};

struct ncclComm {
  int rank = 0;
  int size = 1;
  std::string name;
  Meeting* meeting = nullptr;
  std::atomic<ResultCode> state{0};
  std::atomic<bool> aborted{false};
  bool blocking = false;
  bool launched = false;
  uint64_t round = 0;  // of its stream alone
  uint64_t splits = 0;
  uint64_t windows = 0;
  std::atomic<int> under_way{0};  // in streams
  std::thread starter;
  std::mutex mutex;
  std::map<Op, double> factors;

  ~ncclComm() {
    if (starter.joinable()) starter.join();
    if (meeting != nullptr) munmap(meeting, sizeof(Meeting));
  }
  // False: aborted.
  bool wait(const std::function<bool()>& come) const {
    for (int turns = 0; !come(); ++turns) {
      if (aborted.load()) return false;
      if (turns < 100)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }
  bool barrier() {
    meeting->arrivals.fetch_add(1);
    const uint64_t all = ++round * static_cast<uint64_t>(size);
    return wait([&] { return meeting->arrivals.load() >= all; });
  }
  // Everybody shows `bytes`; look(rank, data, offset, count) sees each rank's, piece by piece.
  bool exchange(const void* mine, size_t bytes,
                const std::function<void(int, const std::byte*, size_t, size_t)>& look) {
    for (size_t offset = 0; offset < bytes; offset += kBox) {
      const size_t count = std::min(kBox, bytes - offset);
      std::memcpy(meeting->boxes[rank], static_cast<const std::byte*>(mine) + offset, count);
      if (!barrier()) return false;
      for (int peer = 0; peer < size; ++peer) look(peer, meeting->boxes[peer], offset, count);
      if (!barrier()) return false;
    }
    return true;
  }
};
using Comm = std::shared_ptr<ncclComm>;

Comm find(ncclComm* comm);
ResultCode refuse(ResultCode code, const std::string& why);

// One call between group start and end.
struct Call {
  Comm comm;
  Stream stream;
  std::function<void(ncclComm*)> work;  // of a collective
  const void* in = nullptr;             // send
  void* out = nullptr;                  // recv
  size_t bytes = 0;
  int peer = -1;  // a send or a receive
  std::vector<Range> touches;
};
// Gives it to the group, or to the stream where there is none.
ResultCode add(const char* name, ncclComm* handle, Stream stream, Call call);

extern rueda::stub::Memory& memory_known;
