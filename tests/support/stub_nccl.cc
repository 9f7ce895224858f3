// libstub_nccl.so: NCCL's interface on host memory, for tests on the fake CUDA driver: ranks are
// threads or processes of one machine, which meet in shared memory, and the work is done in
// streams. This: communicators and groups; stub_nccl_calls.cc, stub_nccl_windows.cc the rest.
//
// Like NCCL: communicators may be made without blocking, the first group of one ends with "in
// progress", a rank whose peer does not come waits for ever, abort ends all waiting, and an error
// in a stream shows in ncclCommGetAsyncError alone. What it is told of memory is checked
// (stub_nccl_memory.h). Unlike it: all ranks take part in a group of
// sends and receives. Faults: stub_nccl_fault.h. STUB_NCCL_VERSION overrides the version.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/host_work.h"
#include "tests/support/stub_nccl_comm.h"
#include "tests/support/stub_nccl_fault.h"

using rueda::nccl::Config;
using rueda::nccl::UniqueId;
using rueda::stub::Fault;

namespace {

// Meetings whose ranks never came all; their names go with the process that made them.
struct Names {
  std::mutex mutex;
  std::vector<std::string> made;
  ~Names() {
    for (const std::string& name : made) shm_unlink(name.c_str());
  }
};
Names names;

thread_local std::string last_error;
[[maybe_unused]] std::atomic<int64_t> begun{0};
[[maybe_unused]] std::atomic<int64_t> splits{0};
[[maybe_unused]] std::atomic<int64_t> splits_without_color{0};
std::atomic<int64_t> torn{0};

std::mutex comms_mutex;
auto& comms = *new std::map<ncclComm*, Comm>;  // an abort may outlive the tests

}  // namespace

rueda::stub::Memory& memory_known = *new rueda::stub::Memory;  // as may this

Comm find(ncclComm* comm) {
  const std::lock_guard lock(comms_mutex);
  const auto it = comms.find(comm);
  return it == comms.end() ? nullptr : it->second;
}

ResultCode refuse(ResultCode code, const std::string& why) {
  last_error = "stub: " + why;
  return code;
}

namespace {

thread_local std::vector<Call> calls;
thread_local int depth = 0;

void launch(Stream stream, std::function<void()> work) {
  rueda::testing::run_in_stream(stream, std::move(work));
}

// All sends and receives of a group as one exchange: sizes first, then the data end to end.
void exchange_pairs(ncclComm* comm, const std::vector<Call>& pairs) {
  const auto size = static_cast<size_t>(comm->size);
  std::vector<uint64_t> row(size, 0);
  std::vector<std::byte> sent;
  for (size_t peer = 0; peer < size; ++peer) {
    for (const Call& call : pairs) {
      if (call.in == nullptr || call.peer != static_cast<int>(peer)) continue;
      row[peer] += call.bytes;
      const auto* const data = static_cast<const std::byte*>(call.in);
      sent.insert(sent.end(), data, data + call.bytes);
    }
  }
  std::vector<uint64_t> table(size * size, 0);
  if (!comm->exchange(row.data(), size * 8, [&](int peer, const std::byte* data, size_t, size_t n) {
        std::memcpy(table.data() + static_cast<size_t>(peer) * size, data, n);
      })) {
    return;
  }
  uint64_t most = 0;
  for (size_t peer = 0; peer < size; ++peer) {
    uint64_t sum = 0;
    for (size_t to = 0; to < size; ++to) sum += table[peer * size + to];
    most = std::max(most, sum);
  }
  sent.resize(most);
  std::vector<std::vector<std::byte>> all(size, std::vector<std::byte>(most));
  if (!comm->exchange(sent.data(), most, [&](int peer, const std::byte* data, size_t at, size_t n) {
        std::memcpy(all[static_cast<size_t>(peer)].data() + at, data, n);
      })) {
    return;
  }
  for (size_t peer = 0; peer < size; ++peer) {
    uint64_t at = 0;
    for (int before = 0; before < comm->rank; ++before)
      at += table[peer * size + static_cast<size_t>(before)];
    uint64_t left = table[peer * size + static_cast<size_t>(comm->rank)];
    for (const Call& call : pairs) {
      if (call.out == nullptr || call.peer != static_cast<int>(peer)) continue;
      if (call.bytes > left) {
        comm->state = kInvalidUsage;
        return;
      }
      std::memcpy(call.out, all[peer].data() + at, call.bytes);
      at += call.bytes;
      left -= call.bytes;
    }
    if (left != 0) comm->state = kInvalidUsage;
  }
}

// What the call touches is in use until the work behind it has been done. Of a graph that is not
// known, and streams that do nothing (FAKE_CUDA_IDLE) never come to it.
std::function<void()> use(const Comm& comm, Stream stream, const std::vector<Range>& touches) {
  if (std::getenv("FAKE_CUDA_IDLE") != nullptr) return [] {};
  if (rueda::testing::is_captured(stream)) {
    memory_known.check(touches);
    return [] {};
  }
  return [number = memory_known.begin(comm.get(), touches)] { memory_known.end(number); };
}

void launch_all(const std::vector<Call>& group) {
  std::map<Comm, std::vector<Call>> pairs;
  for (const Call& call : group) {
    if (call.peer >= 0) {
      pairs[call.comm].push_back(call);
      continue;
    }
    ++call.comm->under_way;
    ++call.comm->meeting->busy;
    launch(call.stream,
           [comm = call.comm, work = call.work, end = use(call.comm, call.stream, call.touches)] {
             work(comm.get());
             end();
             --comm->meeting->busy;
             --comm->under_way;
           });
  }
  for (const auto& [comm, list] : pairs) {
    ++comm->under_way;
    std::vector<Range> touches;
    for (const Call& call : list)
      touches.insert(touches.end(), call.touches.begin(), call.touches.end());
    launch(list.front().stream,
           [comm = comm, list = list, end = use(comm, list.front().stream, touches)] {
             exchange_pairs(comm.get(), list);
             end();
             --comm->under_way;
           });
  }
}

ResultCode end_group() {
  std::vector<Call> group;
  group.swap(calls);
  if (group.empty()) return 0;
  const Comm comm = group.front().comm;
  const bool first = !std::exchange(comm->launched, true);
  if (comm->blocking || !first) {
    launch_all(group);
    return 0;
  }
  // Connections are made with the first group.
  if (comm->starter.joinable()) comm->starter.join();
  comm->state = rueda::nccl::kInProgress;
  comm->starter = std::thread([comm = comm.get(), group = std::move(group)]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    launch_all(group);
    group.clear();
    ResultCode expected = rueda::nccl::kInProgress;
    comm->state.compare_exchange_strong(expected, 0);
  });
  return rueda::nccl::kInProgress;
}

}  // namespace

ResultCode add(const char* name, ncclComm* handle, Stream stream, Call call) {
  const Comm comm = find(handle);
  if (comm == nullptr)
    return refuse(kInvalidArgument, std::string(name) + " of an unknown communicator");
  const auto fault = rueda::stub::fault(name, comm->rank);
  if (fault == Fault::kError) return refuse(kSystemError, std::string("injected error of ") + name);
  if (comm->state == rueda::nccl::kInProgress)
    return refuse(kInvalidUsage, std::string(name) + " while the communicator is in progress");
  call.comm = comm;
  call.stream = stream;
  if (fault == Fault::kHang || fault == Fault::kAsync) {
    call.peer = -1;
    call.work = [fault](ncclComm* c) {
      if (fault == Fault::kAsync) c->state = kRemoteError;
      c->wait([] { return false; });
    };
  }
  if (fault == Fault::kSlow) {
    call.work = [work = call.work](ncclComm* c) {
      work(c);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    };
  }
  calls.push_back(std::move(call));
  return depth == 0 ? end_group() : 0;
}

namespace {

[[maybe_unused]] void join(ncclComm* comm) {
  comm->meeting->joined.fetch_add(1);
  if (comm->wait([&] { return comm->meeting->joined.load() >= comm->size; }))
    shm_unlink(comm->name.c_str());
}

}  // namespace

EXPORT ResultCode ncclGetVersion(int* version) {
  const char* const text = std::getenv("STUB_NCCL_VERSION");
  *version = text == nullptr ? 22809 : std::atoi(text);
  return 0;
}
EXPORT const char* ncclGetErrorString(ResultCode code) {
  return code == kSystemError   ? "unhandled system error"
         : code == kRemoteError ? "remote process exited or there was a network error"
         : code == 0            ? "no error"
                                : "invalid usage";
}
#ifndef STUB_NCCL_OLD
EXPORT const char* ncclGetLastError(ncclComm*) { return last_error.c_str(); }
#endif
EXPORT ResultCode ncclGetUniqueId(UniqueId* id) {
  std::random_device random;
  std::snprintf(id->bytes, sizeof(id->bytes), "/test-of-stub-nccl-%d-%08x%08x", getpid(), random(),
                random());
  const int file = shm_open(id->bytes, O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Meeting)) != 0) return refuse(kSystemError, "shm_open");
  close(file);
  const std::lock_guard lock(names.mutex);
  names.made.emplace_back(id->bytes);
  return 0;
}
#ifndef STUB_NCCL_BROKEN
EXPORT ResultCode ncclCommInitRankConfig(ncclComm** made, int size, UniqueId id, int rank,
                                         Config* config) {
  ++begun;
  if (size < 1 || size > static_cast<int>(kMostRanks) || config->magic != 0xcafebeef)
    return refuse(kInvalidArgument, "ncclCommInitRankConfig");
  const int file = shm_open(id.bytes, O_RDWR, 0600);
  if (file < 0) return refuse(kSystemError, "no meeting of this id");
  auto comm = std::make_shared<ncclComm>();
  comm->rank = rank;
  comm->size = size;
  comm->name = id.bytes;
  comm->blocking = config->blocking != 0;
  comm->meeting = static_cast<Meeting*>(
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
  const auto fault = rueda::stub::fault("ncclCommInitRankConfig", rank);
  if (fault == Fault::kError)
    return refuse(kSystemError, "injected error of ncclCommInitRankConfig");
  {
    const std::lock_guard lock(comms_mutex);
    comms[comm.get()] = comm;
  }
  *made = comm.get();
  if (comm->blocking) {
    join(comm.get());
    return 0;
  }
  comm->state = rueda::nccl::kInProgress;
  comm->starter = std::thread([c = comm.get(), fault] {
    if (fault == Fault::kHang) {
      c->wait([] { return false; });
      return;  // aborted: the others shall not see it come
    }
    if (fault == Fault::kAsync) {
      c->state = kRemoteError;
      return;
    }
    join(c);
    if (!c->aborted) c->state = 0;
  });
  return rueda::nccl::kInProgress;
}
#endif
#ifndef STUB_NCCL_OLD
namespace {

// As MPI's split: the ranks of one color, by their keys. Null: aborted, or of no color.
Comm split_off(ncclComm* parent, int color, int key) {
  Meeting* const meeting = parent->meeting;
  const auto all_come = [&](uint64_t times) {
    meeting->splitting.fetch_add(1);
    const uint64_t all = times * static_cast<uint64_t>(parent->size);
    return parent->wait([&] { return meeting->splitting.load() >= all; });
  };
  meeting->colors[parent->rank] = color;
  meeting->keys[parent->rank] = key;
  const uint64_t number = ++parent->splits;
  if (!all_come(2 * number - 1)) return nullptr;
  auto comm = std::make_shared<ncclComm>();
  comm->size = 0;
  for (int rank = 0; rank < parent->size; ++rank) {
    if (meeting->colors[rank] != color) continue;
    ++comm->size;
    comm->rank += meeting->keys[rank] < key;
  }
  if (!all_come(2 * number)) return nullptr;
  if (color == rueda::nccl::kNoColor) return nullptr;
  comm->name = parent->name + "-" + std::to_string(number) + "-" + std::to_string(color);
  comm->blocking = parent->blocking;
  const int file = shm_open(comm->name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Meeting)) != 0) return nullptr;
  comm->meeting = static_cast<Meeting*>(
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
  comm->meeting->joined.fetch_add(1);
  if (!parent->wait([&] { return comm->meeting->joined.load() >= comm->size; })) return nullptr;
  shm_unlink(comm->name.c_str());
  return comm;
}

}  // namespace

EXPORT ResultCode ncclCommSplit(ncclComm* handle, int color, int key, ncclComm** made,
                                Config* config) {
  const Comm parent = find(handle);
  if (parent == nullptr || config->blocking != 0) return refuse(kInvalidArgument, "ncclCommSplit");
  if (parent->state == rueda::nccl::kInProgress || parent->under_way > 0)
    return refuse(kInvalidUsage, "ncclCommSplit while the communicator is at work");
  ++splits;
  if (color == rueda::nccl::kNoColor) ++splits_without_color;
  const auto fault = rueda::stub::fault("ncclCommSplit", parent->rank);
  if (fault == Fault::kError) return refuse(kSystemError, "injected error of ncclCommSplit");
  *made = nullptr;
  if (parent->starter.joinable()) parent->starter.join();
  parent->state = rueda::nccl::kInProgress;
  parent->starter = std::thread([parent = parent.get(), color, key, made, fault] {
    if (fault == Fault::kHang) {
      parent->wait([] { return false; });
      return;
    }
    if (fault == Fault::kAsync) {
      parent->state = kRemoteError;
      return;
    }
    if (const Comm comm = split_off(parent, color, key)) {
      const std::lock_guard lock(comms_mutex);
      comms[comm.get()] = comm;
      *made = comm.get();
    }
    if (!parent->aborted) parent->state = 0;
  });
  return rueda::nccl::kSuccess;  // as NCCL 2.28 says it, with the split under way
}
// Since the process began: communicators made by an id; calls of split, and those that wanted no
// part.
EXPORT int64_t stub_nccl_begun() { return begun; }
EXPORT int64_t stub_nccl_splits() { return splits; }
EXPORT int64_t stub_nccl_splits_without_color() { return splits_without_color; }
#endif
EXPORT ResultCode ncclCommGetAsyncError(ncclComm* handle, ResultCode* error) {
  const Comm comm = find(handle);
  if (comm == nullptr) return kInvalidArgument;
  *error = comm->state;
  return 0;
}
EXPORT ResultCode ncclCommAbort(ncclComm* handle) {
  const Comm comm = find(handle);
  if (comm == nullptr) return kInvalidArgument;
  if (rueda::stub::fault("ncclCommAbort", comm->rank) == Fault::kHang)
    std::this_thread::sleep_for(std::chrono::seconds(3));
  if (comm->meeting->busy > 0) ++torn;
  comm->aborted = true;
  if (comm->starter.joinable()) comm->starter.join();
  memory_known.forget(handle);
  const std::lock_guard lock(comms_mutex);
  comms.erase(handle);  // what is in streams has it still
  return 0;
}
// Communicators that were aborted while some rank's stream was at work, in this process.
EXPORT int64_t stub_nccl_torn() { return torn; }
// Communicators that are there, in this process.
EXPORT int64_t stub_nccl_open() {
  const std::lock_guard lock(comms_mutex);
  return static_cast<int64_t>(comms.size());
}
EXPORT ResultCode ncclCommFinalize(ncclComm*) { return 0; }
EXPORT ResultCode ncclCommDestroy(ncclComm* handle) {
  const Comm comm = find(handle);
  if (comm == nullptr) return kInvalidArgument;
  if (comm->starter.joinable()) comm->starter.join();
  memory_known.forget(handle);
  const std::lock_guard lock(comms_mutex);
  comms.erase(handle);
  return 0;
}
EXPORT ResultCode ncclGroupStart() {
  ++depth;
  return 0;
}
EXPORT ResultCode ncclGroupEnd() { return --depth == 0 ? end_group() : 0; }
