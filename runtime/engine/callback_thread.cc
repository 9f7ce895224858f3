#include "runtime/engine/callback_thread.h"

#include <utility>

#include "collectives/host/threads.h"
#include "runtime/engine/completion.h"

namespace rueda::engine {

bool CallbackThread::take(std::function<void()>* callback) {
  const std::lock_guard lock(mutex_);
  if (finished_) return false;
  if (!thread_.joinable()) {
    auto started = host::start_thread([this] { loop(); });
    if (!started.ok()) return false;
    thread_ = std::move(started).value();
  }
  due_.push_back(std::move(*callback));
  one_more_.notify_one();
  return true;
}

void CallbackThread::finish() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    one_more_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void CallbackThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    one_more_.wait(lock, [this] { return finished_ || !due_.empty(); });
    if (due_.empty()) return;
    const std::function<void()> callback = std::move(due_.front());
    due_.pop_front();
    lock.unlock();
    Completion::call_back(callback);
    lock.lock();
  }
}

}  // namespace rueda::engine
