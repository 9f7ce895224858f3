// PipeConnection: a Connection over two queues of bytes in this thread, with taps that the test
// turns.
//
// readable_now and room limit how many more bytes may be read or written, so a test decides at
// which byte a frame is cut.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "collectives/transport/connection.h"
#include "collectives/transport/frame.h"

namespace rueda::transport {

struct Pipe {
  static constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
  std::vector<std::byte> bytes;
  size_t taken = 0;
  size_t readable_now = kUnlimited;
  size_t room = kUnlimited;
  bool ended = false;

  void put(ByteView more) { bytes.insert(bytes.end(), more.begin(), more.end()); }
  // Those who look at what has passed do not call this.
  void forget_taken() {
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken));
    taken = 0;
  }
  void put(const FrameHeader& header, ByteView body = {}) {
    put(std::as_bytes(std::span(&header, 1)));
    put(body);
  }
};

class PipeConnection final : public Connection {
 public:
  // remote: counts as a connection between hosts.
  PipeConnection(std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in, bool remote = false)
      : out_(std::move(out)), in_(std::move(in)), remote_(remote) {}
  bool crosses_hosts() const override { return remote_; }
  const char* kind() const override { return "pipe"; }
  Result<size_t> write(std::span<const ByteView> pieces) override {
    size_t total = 0;
    for (const ByteView piece : pieces) {
      const size_t count = std::min(piece.size(), out_->room);
      out_->put(piece.first(count));
      if (out_->room != Pipe::kUnlimited) out_->room -= count;
      total += count;
      if (count < piece.size()) break;
    }
    return total;
  }
  Result<size_t> read(ByteSpan into) override {
    const size_t there = in_->bytes.size() - in_->taken;
    const size_t count = std::min({into.size(), there, in_->readable_now});
    if (count == 0) {
      if (there == 0 && in_->ended && !into.empty()) return unavailable("connection closed");
      return size_t{0};
    }
    std::memcpy(into.data(), in_->bytes.data() + in_->taken, count);
    in_->taken += count;
    if (in_->readable_now != Pipe::kUnlimited) in_->readable_now -= count;
    return count;
  }
  void set_blocked(bool) override {}
  void flush() override {}
  void finish() override { out_->ended = true; }
  void unwatch() override {}

 private:
  std::shared_ptr<Pipe> out_;  // shared with the test and the connection at the other end
  std::shared_ptr<Pipe> in_;
  bool remote_;
};

}  // namespace rueda::transport
