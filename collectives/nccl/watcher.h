// Watcher: the one thread of a rank that asks NCCL and the driver how things stand, so that the
// coordinator never polls a device.
//
// Asks every 50 us while NCCL starts a group (on a thread of its own, which takes tens of them),
// every millisecond while a communicator begins, every 20 ms while a GPU works, and sleeps else.
// Threads: add() and stir() from any.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace rueda::nccl {

// Who is watched.
class Watched {
 public:
  enum class Need { kNothing, kSlow, kFast, kAtOnce };
  virtual ~Watched() = default;
  // On the watcher's thread; does not block.
  virtual Need look() = 0;
};

class Watcher {
 public:
  Watcher() = default;
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Until the watched one is gone. The thread begins with the first.
  void add(std::weak_ptr<Watched> watched);
  // One of them has something under way that it had not before.
  void stir();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<Watched>> watched_;
  bool stirred_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace rueda::nccl
