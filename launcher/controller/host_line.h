// What is said to one host and heard from it, over however many connections: each message has a
// number, and what has not been acknowledged is kept, so that a connection that ends costs nothing
// (proto/control.proto: Resumes). Pure; one thread at a time.
//
//   connection 1   say 0 1 2 3 4 x        heard: 0 1 2
//   connection 2   Resumes{3}  ──>  3 4   then 5 ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "launcher/hosts/wire.h"

namespace rueda::launcher {

class HostLine {
 public:
  // Of output that has not been acknowledged; then it is.
  static constexpr size_t kMostOutput = size_t{256} << 10;

  // From now on it counts. Without a secret it never does, and nothing is kept.
  void begin(std::string secret) {
    *this = {};
    secret_ = std::move(secret);
  }
  // The host is lost, or let go: it is no more taken up again.
  void end() { *this = {}; }
  bool is_open() const { return !secret_.empty(); }
  const std::string& secret() const { return secret_; }

  // Of every message but a heartbeat.
  void said(const control::ControllerMessage& message) {
    if (is_open()) kept_.push_back(message);
  }
  void heard() { received_ += is_open() ? 1 : 0; }
  // Returns whether that is to be acknowledged now.
  bool heard_output(size_t bytes) {
    if (!is_open()) return false;
    ++output_received_;
    output_bytes_ += bytes;
    return output_bytes_ >= kMostOutput;
  }
  // The other side has so many.
  void acknowledged(uint64_t received) {
    for (; first_ < received && !kept_.empty(); ++first_) kept_.pop_front();
  }
  // What has come so far.
  control::Heartbeat acknowledgement() {
    output_bytes_ = 0;
    control::Heartbeat beat;
    beat.set_received(received_);
    beat.set_output_received(output_received_);
    return beat;
  }
  // What the other side is told first on another connection, and what it lacks.
  control::Resumed resumed() const {
    control::Resumed message;
    message.set_received(received_);
    message.set_output_received(output_received_);
    return message;
  }
  const std::deque<control::ControllerMessage>& kept() const { return kept_; }

 private:
  std::string secret_;
  std::deque<control::ControllerMessage> kept_;
  uint64_t first_ = 0;  // the number of the first of these
  uint64_t received_ = 0, output_received_ = 0;
  size_t output_bytes_ = 0;  // since the last acknowledgement
};

}  // namespace rueda::launcher
