// FaultyConnection: what arrives on a connection suffers what networks do to it, by a seed.
//
// Frames are held back for a random time, in order, and are given out in portions of random sizes;
// one of them may be damaged. What is sent leaves as it is. Needs no netem and no root.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "collectives/base/unique_fd.h"
#include "collectives/host/event_loop.h"
#include "collectives/transport/connection.h"

namespace rueda::testing {

enum class Damage {
  kNone,
  kFlip,    // one bit
  kDouble,  // comes twice
  kLose,    // does not come
  kCut      // a part comes, then the stream ends
};
const char* name_of(Damage damage);

// RUEDA_TEST_SEED, else a random one; said on stderr when first asked for.
uint64_t fault_seed();

struct ConnectionFaults {
  uint64_t seed = 0;
  std::chrono::microseconds hold{0};  // at most, of each frame
  Damage damage = Damage::kNone;
  uint64_t frame = 0;  // number of the one that is damaged
};

class FaultyConnection final : public transport::Connection, private host::FdHandler {
 public:
  // loop: borrowed, outlives the connection; wakes the sleeper when a frame is due.
  FaultyConnection(std::unique_ptr<transport::Connection> connection, host::EventLoop* loop,
                   ConnectionFaults faults);
  ~FaultyConnection() override;

  const char* kind() const override { return connection_->kind(); }
  bool crosses_hosts() const override { return connection_->crosses_hosts(); }
  Result<size_t> write(std::span<const ByteView> pieces) override {
    return connection_->write(pieces);
  }
  Result<size_t> read(ByteSpan into) override;
  void set_blocked(bool blocked) override { connection_->set_blocked(blocked); }
  void flush() override { connection_->flush(); }
  void finish() override { connection_->finish(); }
  bool has_arrived() const override { return connection_->has_arrived(); }
  void unwatch() override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    std::vector<std::byte> bytes;
    Clock::time_point due;
  };
  void on_ready(bool readable, bool writable) override;
  void take_in();
  void hold_frames();
  void hold(std::vector<std::byte> frame);
  uint64_t random(uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(0, most)(random_);
  }

  std::unique_ptr<transport::Connection> connection_;
  host::EventLoop* loop_;
  ConnectionFaults faults_;
  std::mt19937_64 random_;
  UniqueFd timer_;
  std::vector<std::byte> arrived_;  // no whole frame yet
  std::deque<Held> held_;
  size_t given_ = 0;  // of the first that is held
  uint64_t frames_ = 0;
  std::optional<Status> end_;
  bool cut_ = false;
};

}  // namespace rueda::testing
