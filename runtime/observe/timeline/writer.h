// Writer: the thread that takes events out of the ring and writes them down. Wakes fifty times a
// second as long as it lives, so nobody who records an event has to wake it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/observe/timeline/event_file.h"
#include "runtime/observe/timeline/event_ring.h"
#include "runtime/observe/timeline/last_seconds.h"
#include "runtime/observe/timeline/layout.h"

namespace rueda::timeline {

class Writer {
 public:
  // ring: borrowed; no other reader. kept: how much of the end the file keeps; 0: everything. When
  // the file cannot be written any more, the log says so once and further events are dropped.
  Writer(EventRing* ring, std::unique_ptr<Layout> layout, std::unique_ptr<EventFile> file,
         Nanos kept);
  // Everything that was in the ring when it was called is in the file when it returns.
  ~Writer();
  // What has become of the file's beginning; nothing is written if that could not be.
  const Status& begun() const { return begun_; }
  // The file cannot be written any more. Any thread.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  void run();
  void write_some(bool last);
  void append();
  void shorten(Nanos now, bool last);
  void note(const Status& status);

  EventRing* ring_;
  std::unique_ptr<Layout> layout_;
  const std::unique_ptr<EventFile> file_;
  LastSeconds last_seconds_;
  Status begun_;
  Status failure_;
  std::atomic<bool> failed_{false};
  std::string text_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace rueda::timeline
