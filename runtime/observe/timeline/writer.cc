#include "runtime/observe/timeline/writer.h"

#include <chrono>

#include "collectives/base/log.h"

namespace rueda::timeline {
namespace {

constexpr std::chrono::milliseconds kPeriod{20};
constexpr size_t kPiece = 64 << 10;  // bytes per write

}  // namespace

Writer::Writer(EventRing* ring, std::unique_ptr<Layout> layout, JsonArrayFile file)
    : ring_(ring), layout_(std::move(layout)), file_(std::move(file)) {
  layout_->open(&text_);
  write_some(false);
  thread_ = std::thread([this] { run(); });
}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Writer::run() {
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    last = stopping_;
    lock.unlock();
    write_some(last);
    lock.lock();
    if (!last) changed_.wait_for(lock, kPeriod, [this] { return stopping_; });
  }
}

void Writer::write_some(bool last) {
  const auto flush = [this] {
    if (failure_.ok()) {
      failure_ = file_.append(text_);
      if (!failure_.ok()) failed_.store(true, std::memory_order_relaxed);
      if (!failure_.ok()) RUEDA_ERROR("timeline", "{}; it ends here", failure_.message());
    }
    text_.clear();
  };
  for (Event event; ring_->pop(&event);) {
    layout_->add(event, &text_);
    if (text_.size() >= kPiece) flush();
  }
  if (const uint64_t lost = ring_->take_lost()) layout_->lost(lost, stage_clock(), &text_);
  if (last) layout_->close(stage_clock(), &text_);
  flush();
}

}  // namespace rueda::timeline
