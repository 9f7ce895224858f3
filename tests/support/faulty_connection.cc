#include "tests/support/faulty_connection.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "collectives/transport/frame.h"

namespace rueda::testing {

using transport::FrameHeader;
using transport::FrameType;

const char* name_of(Damage damage) {
  switch (damage) {
    case Damage::kNone: return "none";
    case Damage::kFlip: return "flip";
    case Damage::kDouble: return "double";
    case Damage::kLose: return "lose";
    case Damage::kCut: return "cut";
  }
  return "?";
}

uint64_t fault_seed() {
  static const uint64_t seed = [] {
    const char* asked = std::getenv("RUEDA_TEST_SEED");
    const uint64_t chosen =
        asked != nullptr ? std::strtoull(asked, nullptr, 10) : std::random_device()();
    std::cerr << "connections are faulty by RUEDA_TEST_SEED=" << chosen << "\n";
    return chosen;
  }();
  return seed;
}

FaultyConnection::FaultyConnection(std::unique_ptr<transport::Connection> connection,
                                   host::EventLoop* loop, ConnectionFaults faults)
    : connection_(std::move(connection)),
      loop_(loop),
      faults_(faults),
      random_(faults.seed),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  if (!loop_->add(timer_.get(), this).ok()) end_ = unavailable("no timer for a faulty connection");
}

FaultyConnection::~FaultyConnection() { loop_->remove(timer_.get()); }

void FaultyConnection::unwatch() {
  loop_->remove(timer_.get());
  connection_->unwatch();
}

void FaultyConnection::on_ready(bool, bool) {
  uint64_t times = 0;
  while (::read(timer_.get(), &times, sizeof(times)) > 0) {
  }
}

Result<size_t> FaultyConnection::read(ByteSpan into) {
  take_in();
  if (held_.empty()) {
    if (end_) return *end_;
    return size_t{0};
  }
  const auto wait = held_.front().due - Clock::now();
  if (wait > Clock::duration::zero()) {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
    const itimerspec at{{}, {ns / 1'000'000'000, std::max<int64_t>(1, ns % 1'000'000'000)}};
    timerfd_settime(timer_.get(), 0, &at, nullptr);
    return size_t{0};
  }
  const auto& bytes = held_.front().bytes;
  const size_t count =
      std::min({into.size(), bytes.size() - given_, static_cast<size_t>(1 + random(100'000))});
  std::memcpy(into.data(), bytes.data() + given_, count);
  given_ += count;
  if (given_ == bytes.size()) {
    held_.pop_front();
    given_ = 0;
  }
  return count;
}

void FaultyConnection::take_in() {
  std::byte buffer[64 << 10];
  while (!end_) {
    const auto got = connection_->read(buffer);
    if (!got.ok()) {
      end_ = got.status();
      hold_frames();
      hold(std::move(arrived_));
      return;
    }
    if (got.value() == 0) break;
    arrived_.insert(arrived_.end(), buffer, buffer + got.value());
  }
  hold_frames();
}

void FaultyConnection::hold_frames() {
  size_t begin = 0;
  while (arrived_.size() - begin >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, arrived_.data() + begin, sizeof(header));
    const bool has_body = header.type == FrameType::kData || header.type == FrameType::kControl ||
                          header.type == FrameType::kAbort;
    const size_t length = sizeof(header) + (has_body ? header.bytes : 0);
    if (arrived_.size() - begin < length) break;
    const auto frame = arrived_.begin() + static_cast<ptrdiff_t>(begin);
    hold({frame, frame + static_cast<ptrdiff_t>(length)});
    begin += length;
  }
  arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<ptrdiff_t>(begin));
}

void FaultyConnection::hold(std::vector<std::byte> frame) {
  if (frame.empty() || cut_) return;
  const auto latest = held_.empty() ? Clock::time_point() : held_.back().due;
  const auto wait = std::chrono::microseconds(random(static_cast<uint64_t>(faults_.hold.count())));
  Held held{std::move(frame), std::max(latest, Clock::now() + wait)};
  const bool damaged = faults_.damage != Damage::kNone && frames_++ == faults_.frame;
  if (!damaged) return held_.push_back(std::move(held));
  switch (faults_.damage) {
    case Damage::kFlip:
      held.bytes[random(held.bytes.size() - 1)] ^= static_cast<std::byte>(1u << random(7));
      break;
    case Damage::kDouble: held_.push_back(held); break;
    case Damage::kLose: return;
    case Damage::kCut:
      held.bytes.resize(random(held.bytes.size() - 1));
      end_ = unavailable("connection closed");
      cut_ = true;
      if (held.bytes.empty()) return;
      break;
    case Damage::kNone: break;
  }
  held_.push_back(std::move(held));
}

}  // namespace rueda::testing
