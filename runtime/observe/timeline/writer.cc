#include "runtime/observe/timeline/writer.h"

#include <chrono>

#include "collectives/base/log.h"
#include "collectives/host/monotonic.h"

namespace rueda::timeline {
namespace {

constexpr std::chrono::milliseconds kPeriod{20};
constexpr size_t kPiece = 64 << 10;  // bytes per write

}  // namespace

Writer::Writer(EventRing* ring, std::unique_ptr<Layout> layout, std::unique_ptr<EventFile> file,
               Nanos kept)
    : ring_(ring), layout_(std::move(layout)), file_(std::move(file)), last_seconds_(kept) {
  layout_->open(&text_);
  layout_->flush(&text_);
  failure_ = file_->append(text_);
  text_.clear();
  if (failure_.ok()) failure_ = file_->end();
  begun_ = failure_;
  failed_.store(!failure_.ok(), std::memory_order_relaxed);
  if (!failure_.ok()) return;
  if (const auto end = file_->boundary()) last_seconds_.note(host::monotonic_ns(), *end);
  thread_ = std::thread([this] { run(); });
}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
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
  const Nanos now = host::monotonic_ns();
  for (Event event; ring_->pop(&event);) {
    layout_->add(event, &text_);
    if (text_.size() >= kPiece) append();
  }
  if (const uint64_t lost = ring_->take_lost()) layout_->lost(lost, host::monotonic_ns(), &text_);
  if (last) layout_->close(host::monotonic_ns(), &text_);
  append();
  if (last && failure_.ok()) note(file_->end());
  shorten(now, last);
}

void Writer::append() {
  layout_->flush(&text_);
  if (failure_.ok() && !text_.empty()) note(file_->append(text_));
  text_.clear();
}

void Writer::shorten(Nanos now, bool last) {
  if (!failure_.ok()) return;
  if (const auto from = last_seconds_.cut(now, last)) {
    layout_->open(&text_);
    const auto to = file_->keep_from(*from, text_);
    text_.clear();
    note(to.status());
    if (to.ok()) last_seconds_.moved(*from, to.value());
  }
  // What comes next was recorded after `now`, or a moment before.
  if (const auto end = file_->boundary()) last_seconds_.note(now, *end);
}

void Writer::note(const Status& status) {
  if (status.ok()) return;
  failure_ = status;
  failed_.store(true, std::memory_order_relaxed);
  RUEDA_ERROR("timeline", "{}; it ends here", failure_.message());
}

}  // namespace rueda::timeline
