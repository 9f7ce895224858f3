// CallbackThread: runs callbacks of users one after the other, so that a slow one holds up no sign
// of life that the background thread owes to ranks on other hosts.
//
// Threads: any may give one; the thread begins with the first. finish() from one that runs none.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace rueda::engine {

class CallbackThread {
 public:
  CallbackThread() = default;
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;
  ~CallbackThread() { finish(); }

  // Takes the callback, and runs it soon. False, and it is the caller's: after finish(), or where
  // there are no threads left.
  bool take(std::function<void()>* callback);
  // Returns when all have run that were taken.
  void finish();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable one_more_;
  std::deque<std::function<void()>> due_;
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace rueda::engine
