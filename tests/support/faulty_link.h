// FaultyLink: what arrives on a link suffers what networks do to it, by a seed.
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
#include "collectives/transport/event_loop.h"
#include "collectives/transport/link.h"

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

struct LinkFaults {
  uint64_t seed = 0;
  std::chrono::microseconds hold{0};  // at most, of each frame
  Damage damage = Damage::kNone;
  uint64_t frame = 0;  // number of the one that is damaged
};

class FaultyLink final : public transport::Link, private transport::FdHandler {
 public:
  // loop: borrowed, outlives the link; wakes the sleeper when a frame is due.
  FaultyLink(std::unique_ptr<transport::Link> link, transport::EventLoop* loop, LinkFaults faults);
  ~FaultyLink() override;

  const char* kind() const override { return link_->kind(); }
  bool crosses_hosts() const override { return link_->crosses_hosts(); }
  Result<size_t> write(std::span<const ByteView> pieces) override { return link_->write(pieces); }
  Result<size_t> read(ByteSpan into) override;
  void set_blocked(bool blocked) override { link_->set_blocked(blocked); }
  void flush() override { link_->flush(); }
  void finish() override { link_->finish(); }
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

  std::unique_ptr<transport::Link> link_;
  transport::EventLoop* loop_;
  LinkFaults faults_;
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
