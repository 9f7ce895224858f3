// Workers: threads that attention computes with, kept from one call to the next.
//
// A task gets a thread of its own: an idle one, else a new one. So no task waits for another, and
// there are as many threads as tasks have ever been under way at once; idle ones are blocked. A
// thread may run where its task was started: it takes over the starting thread's affinity, which is
// how ranks are bound (`ruedarun --bind-to`, taskset, sched_setaffinity).
//
// Threads: any may start tasks.
// Fork:    a child has none of its parent's threads, and begins with none.
// End:     the destructor waits for tasks under way. In a forked child it leaves everything as it
//          is.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "collectives/base/status.h"

namespace rueda::attention {

class Workers {
 public:
  Workers() = default;
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  struct Task {
    std::function<void()> run;  // throws nothing
    // Called when run has ended, its captures are gone and the thread is free for the next task,
    // which then waits for this: short, never waiting. May be empty.
    std::function<void()> ended;
  };
  // ResourceExhausted: there are no more threads here.
  Status start(Task task);

  // fn(i) for i < count, each once, on up to `threads` threads, of which the calling one is one.
  // Throws what the first fn threw.
  void in_parallel(int64_t count, int threads, const std::function<void(int64_t)>& fn);

  // How many there are.
  int64_t threads() const;
  // Is this a forked child of the process in which the last task was started?
  bool is_forked() const;

 private:
  struct Crew;
  Crew& crew();
  Status start(Task task, const void* section);

  std::atomic<Crew*> crew_{nullptr};  // of this process; another one in a forked child
};

}  // namespace rueda::attention
