#include "launcher/output/file_writer.h"

#include <signal.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "collectives/host/threads.h"

namespace rueda::launcher {

struct FileWriter::Shared {
  std::mutex mutex;
  std::condition_variable work, done;
  std::deque<Task> tasks;
  bool busy = false, ending = false, started = false;
  std::vector<std::string> problems;

  void run() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return ending || !tasks.empty(); });
      if (ending) return;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      busy = true;
      lock.unlock();
      const Status status = task();
      task = nullptr;
      lock.lock();
      busy = false;
      if (!status.ok()) problems.push_back(status.message());
      done.notify_all();
    }
  }
};

FileWriter::FileWriter() : shared_(std::make_shared<Shared>()) {}

FileWriter::~FileWriter() {
  const std::lock_guard lock(shared_->mutex);
  shared_->ending = true;
  shared_->work.notify_all();
}

// The thread begins with the first task: most jobs write nothing.
void FileWriter::add(Task task) {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->started) {
    auto thread = host::start_thread([shared = shared_] { shared->run(); });
    if (!thread.ok()) return shared_->problems.push_back(thread.status().message());
    shared_->started = true;
    thread.value().detach();
  }
  shared_->tasks.push_back(std::move(task));
  shared_->work.notify_all();
}

bool FileWriter::idle() const { return wait(std::chrono::milliseconds(0)); }

bool FileWriter::wait(std::chrono::milliseconds limit) const {
  std::unique_lock lock(shared_->mutex);
  return shared_->done.wait_for(lock, limit,
                                [&] { return shared_->tasks.empty() && !shared_->busy; });
}

std::vector<std::string> FileWriter::take_problems() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->problems, {});
}

void FileWriter::forget() {
  const std::lock_guard lock(shared_->mutex);
  shared_->tasks.clear();
}

}  // namespace rueda::launcher
