#include "collectives/nccl/watcher.h"

#include <algorithm>
#include <chrono>

namespace rueda::nccl {
namespace {

std::chrono::microseconds pause_of(Watched::Need need) {
  return std::chrono::microseconds(need == Watched::Need::kAtOnce ? 50
                                   : need == Watched::Need::kFast ? 1000
                                                                  : 20000);
}

}  // namespace

Watcher::~Watcher() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watcher::add(std::weak_ptr<Watched> watched) {
  {
    const std::lock_guard lock(mutex_);
    watched_.push_back(std::move(watched));
    stirred_ = true;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void Watcher::stir() {
  {
    const std::lock_guard lock(mutex_);
    stirred_ = true;
  }
  changed_.notify_all();
}

void Watcher::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    stirred_ = false;
    const auto gone = [](const std::weak_ptr<Watched>& watched) { return watched.expired(); };
    watched_.erase(std::remove_if(watched_.begin(), watched_.end(), gone), watched_.end());
    const std::vector<std::weak_ptr<Watched>> now = watched_;
    lock.unlock();
    auto need = Watched::Need::kNothing;
    for (const auto& watched : now) {
      if (const auto alive = watched.lock()) need = std::max(need, alive->look());
    }
    lock.lock();
    const auto called = [this] { return stirred_ || ending_; };
    if (need == Watched::Need::kNothing) {
      changed_.wait(lock, called);
    } else {
      changed_.wait_for(lock, pause_of(need), called);
    }
  }
}

}  // namespace rueda::nccl
