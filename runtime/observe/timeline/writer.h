// Writer: the thread that takes events out of the ring and writes them down. Wakes fifty times a
// second as long as it lives, so nobody who records an event has to wake it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/observe/timeline/event_ring.h"
#include "runtime/observe/timeline/json_array_file.h"
#include "runtime/observe/timeline/layout.h"

namespace rueda::timeline {

class Writer {
 public:
  // ring: borrowed; no other reader. When the file cannot be written any more, the log says so once
  // and further events are dropped.
  Writer(EventRing* ring, std::unique_ptr<Layout> layout, JsonArrayFile file);
  // Everything that was in the ring when it was called is in the file when it returns.
  ~Writer();
  // The file cannot be written any more. Any thread.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  void run();
  void write_some(bool last);

  EventRing* ring_;
  std::unique_ptr<Layout> layout_;
  JsonArrayFile file_;
  Status failure_;
  std::atomic<bool> failed_{false};
  std::string text_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace rueda::timeline
