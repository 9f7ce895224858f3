#include "launcher/tools/bench/meeting.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "collectives/base/unique_fd.h"

namespace rueda::bench {

struct Meeting::Page {
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> round;
  alignas(64) std::atomic<uint32_t> agreed[2];
  alignas(64) std::atomic<uint32_t> checked;
  alignas(64) std::atomic<uint32_t> ping;
  alignas(64) std::atomic<uint32_t> pong;
  alignas(64) double one_way_ns;
  struct alignas(64) Samples {
    double value[kMaxSamples];
  };
  Samples samples[kMaxMeetingRanks];
};

namespace {

using Clock = std::chrono::steady_clock;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// With more ranks than cores the one that is waited for may need ours.
template <typename Condition>
void wait_until(const Condition& condition, int spins) {
  for (int spin = 0; !condition(); ++spin) {
    if (spin < spins) {
      relax();
    } else {
      sched_yield();
    }
  }
}

}  // namespace

Result<Meeting> Meeting::open(const std::string& path, int rank, int size) {
  if (size > kMaxMeetingRanks)
    return invalid_argument("a benchmark has at most " + std::to_string(kMaxMeetingRanks) +
                            " ranks, this one has " + std::to_string(size));
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid() || ftruncate(file.get(), sizeof(Page)) != 0)
    return unavailable("cannot make the ranks' meeting file " + path + ": " + std::strerror(errno));
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED)
    return unavailable("cannot map the meeting file " + path + ": " + std::strerror(errno));
  return Meeting(static_cast<Page*>(memory), rank, size);
}

Meeting::Meeting(Meeting&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)),
      rank_(other.rank_),
      size_(other.size_),
      round_(other.round_),
      agreements_(other.agreements_),
      checks_(other.checks_) {}

Meeting::~Meeting() {
  if (page_ != nullptr) munmap(page_, sizeof(Page));
}

void Meeting::barrier() {
  const uint32_t mine = ++round_;
  if (page_->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size_)) {
    page_->arrived.store(0);
    page_->round.store(mine);
    return;
  }
  wait_until([&] { return static_cast<int32_t>(page_->round.load() - mine) >= 0; }, 2000);
}

bool Meeting::agree(bool mine) {
  // Two words in turn: rank 0 cannot be two agreements ahead, since each has a barrier.
  std::atomic<uint32_t>& word = page_->agreed[agreements_++ % 2];
  if (rank_ == 0) word.store(mine ? 1 : 0);
  barrier();
  return word.load() != 0;
}

void Meeting::put_sample(int index, double value) { page_->samples[rank_].value[index] = value; }

double Meeting::slowest(int index) const {
  double most = 0;
  for (int rank = 0; rank < size_; ++rank) most = std::max(most, page_->samples[rank].value[index]);
  return most;
}

double Meeting::total(int index) const {
  double sum = 0;
  for (int rank = 0; rank < size_; ++rank) sum += page_->samples[rank].value[index];
  return sum;
}

double Meeting::one_way_ns() {
  if (size_ < 2) return 0;
  constexpr int kBatches = 20, kTrips = 100;
  // On a busy machine a round trip takes as long as the scheduler wants.
  constexpr std::chrono::milliseconds kMost{100};
  const uint32_t check = ++checks_;
  const uint32_t end = check * (kBatches * kTrips + 1);
  uint32_t value = end - (kBatches * kTrips + 1);  // the end of the check before
  barrier();
  if (rank_ == 0) {
    const auto started = Clock::now();
    const auto late = [&] { return Clock::now() - started > kMost; };
    std::vector<double> batches;
    do {
      int trips = 0;
      const auto begin = Clock::now();
      do {
        page_->ping.store(++value, std::memory_order_release);
        wait_until([&] { return page_->pong.load(std::memory_order_acquire) == value; }, 100000);
      } while (++trips < kTrips && (trips % 10 != 0 || !late()));
      const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
      batches.push_back(took.count() / (2.0 * trips));
    } while (batches.size() < kBatches && !late());
    page_->ping.store(end, std::memory_order_release);
    const auto middle = batches.begin() + static_cast<std::ptrdiff_t>(batches.size() / 2);
    std::nth_element(batches.begin(), middle, batches.end());
    page_->one_way_ns = *middle;
    page_->checked.store(check);
  } else if (rank_ == 1) {
    while (value != end) {
      const uint32_t seen = value;
      wait_until([&] { return (value = page_->ping.load(std::memory_order_acquire)) != seen; },
                 100000);
      page_->pong.store(value, std::memory_order_release);
    }
  }
  // Ranks that share the two cores stay off them.
  while (page_->checked.load() != check) {
    if (rank_ > 1)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    else
      sched_yield();
  }
  const double result = page_->one_way_ns;
  barrier();
  return result;
}

void pin_to_core(int rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  const int count = CPU_COUNT(&allowed);
  if (count < 2) return;  // bound already, by mpirun or by who started us
  int skip = rank % count, core = 0;
  for (;; ++core) {
    if (CPU_ISSET(core, &allowed) && skip-- == 0) break;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return;
  while (const dirent* task = readdir(tasks)) {
    const int thread = std::atoi(task->d_name);
    if (thread > 0) (void)sched_setaffinity(thread, sizeof(one), &one);
  }
  closedir(tasks);
}

}  // namespace rueda::bench
