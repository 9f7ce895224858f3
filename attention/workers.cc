#include "attention/workers.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/base/float_mode.h"
#include "collectives/host/fork_guard.h"
#include "collectives/host/threads.h"

namespace rueda::attention {
namespace {

// Where a thread may run. Of machines with more cores than a cpu_set_t holds nothing is known:
// threads then run where the first to need them did.
struct Cores {
  Cores() { known = sched_getaffinity(0, sizeof set, &set) == 0; }
  bool operator==(const Cores& other) const {
    return known == other.known && (!known || std::memcmp(&set, &other.set, sizeof set) == 0);
  }
  void take_over(const Cores& other) {
    if (*this == other || !other.known) return;
    // Cores that have been taken away since: it stays where it was.
    if (sched_setaffinity(0, sizeof other.set, &other.set) == 0) *this = other;
  }
  cpu_set_t set{};
  bool known = false;
};

struct Job {
  Workers::Task task;
  Cores cores;
  const void* section;  // of in_parallel: whose; else null
};

// What the threads of one in_parallel share.
struct Section {
  Section(int64_t all, const std::function<void(int64_t)>& function) : count(all), fn(function) {}
  const int64_t count;
  const std::function<void(int64_t)>& fn;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::condition_variable changed;
  int64_t helpers = 0;         // that have not ended
  std::exception_ptr trouble;  // the first

  void work() {
    try {
      for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) fn(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (trouble == nullptr) trouble = std::current_exception();
    }
  }
  void helper_ended() {
    const std::lock_guard lock(mutex);  // until it has told: the section goes with the last of them
    --helpers;
    changed.notify_one();
  }
};

}  // namespace

struct Workers::Crew {
  const uint64_t process = host::fork_generation();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> waiting;  // each for an idle thread
  std::vector<std::thread> threads;
  int64_t idle = 0;  // threads for which no job waits
  bool ends = false;

  void live(Job job) {
    const DefaultFloatMode mode;
    Cores cores;
    for (;;) {
      cores.take_over(job.cores);
      job.task.run();
      job.task.run = nullptr;
      {
        const std::lock_guard lock(mutex);
        ++idle;
      }
      if (job.task.ended) job.task.ended();
      job.task.ended = nullptr;
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !waiting.empty() || ends; });
      if (waiting.empty()) return;
      job = std::move(waiting.front());
      waiting.pop_front();
    }
  }

  // Jobs of the section that no thread has begun; they never will be.
  int64_t withdraw(const void* section) {
    const std::lock_guard lock(mutex);
    const auto count = static_cast<int64_t>(
        std::erase_if(waiting, [&](const Job& job) { return job.section == section; }));
    idle += count;
    return count;
  }
};

Workers::~Workers() {
  // In a forked child its threads are the parent's, and one of them may have held the lock.
  if (is_forked()) return;
  const std::unique_ptr<Crew> crew(crew_.load());
  if (crew == nullptr) return;
  {
    const std::lock_guard lock(crew->mutex);
    crew->ends = true;
  }
  crew->changed.notify_all();
  for (std::thread& thread : crew->threads) thread.join();
}

Workers::Crew& Workers::crew() {
  Crew* now = crew_.load();
  if (now != nullptr && now->process == host::fork_generation()) return *now;
  auto fresh = std::make_unique<Crew>();
  // A parent's is left as it is.
  if (crew_.compare_exchange_strong(now, fresh.get())) return *fresh.release();
  return *now;
}

Status Workers::start(Task task) { return start(std::move(task), nullptr); }

Status Workers::start(Task task, const void* section) try {
  Crew& own = crew();
  Job job{std::move(task), Cores(), section};
  std::unique_lock lock(own.mutex);
  if (own.idle > 0) {
    own.waiting.push_back(std::move(job));
    --own.idle;
    lock.unlock();
    own.changed.notify_one();
    return {};
  }
  own.threads.reserve(own.threads.size() + 1);
  const auto live = [&own, job = std::move(job)]() mutable { own.live(std::move(job)); };
  RUEDA_ASSIGN_OR_RETURN(std::thread thread, host::start_thread(live));
  own.threads.push_back(std::move(thread));
  return {};
} catch (const std::bad_alloc&) {
  return {Code::kResourceExhausted, "out of memory"};
}

void Workers::in_parallel(int64_t count, int threads, const std::function<void(int64_t)>& fn) {
  const int64_t helpers = std::min<int64_t>(threads, count) - 1;
  Section section(count, fn);
  for (int64_t i = 0; i < helpers; ++i) {
    {
      const std::lock_guard lock(section.mutex);
      ++section.helpers;
    }
    const Task help = {[&section] { section.work(); }, [&section] { section.helper_ended(); }};
    if (start(help, &section).ok()) continue;
    section.helper_ended();  // no more threads here: those that there are compute everything
    break;
  }
  section.work();
  const int64_t withdrawn = helpers > 0 ? crew().withdraw(&section) : 0;
  std::unique_lock lock(section.mutex);
  section.helpers -= withdrawn;
  section.changed.wait(lock, [&] { return section.helpers == 0; });
  if (section.trouble != nullptr) std::rethrow_exception(section.trouble);
}

int64_t Workers::threads() const {
  Crew* const crew = crew_.load();
  if (crew == nullptr || is_forked()) return 0;
  const std::lock_guard lock(crew->mutex);
  return std::ssize(crew->threads);
}

bool Workers::is_forked() const {
  const Crew* const crew = crew_.load();
  return crew != nullptr && crew->process != host::fork_generation();
}

}  // namespace rueda::attention
