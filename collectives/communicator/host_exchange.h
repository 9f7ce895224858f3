// HostExchange: the allreduce of one slice between hosts, one rank of each taking part.
//
//   every rank sends each host's share of its slice to that host's rank, who combines the shares in
//   the order of hosts and sends the result to all: 2(H-1)/H of the slice per rank, two steps. One
//   hop less for what is small: everybody sends everything and combines for itself.
//
// Compressed: what travels is f16 or bf16 while the slice is f32. Shares are widened, combined in
// f32 and rounded once more on their way back, so that all ranks have the same bits.
//
// Buffers are offered to the peers by post(), before the own slice is ready. Borrows `data` until
// done(). Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/communicator/scaling.h"
#include "collectives/communicator/task.h"
#include "collectives/transport/transport.h"

namespace rueda::communicator {

class HostExchange {
 public:
  struct Plan {
    transport::Transport* transport = nullptr;  // borrowed
    std::vector<Rank> members;                  // of the transport, by host
    size_t host = 0;                            // this rank's
    transport::Tag tag = 0;                     // this and the next are used
    DType dtype = DType::kUInt8;
    ReduceOp op = ReduceOp::kSum;
    kernels::Finish finish;
    std::optional<DType> wire;  // narrower than dtype: compressed
    bool one_shot = false;
  };
  HostExchange(Plan plan, std::byte* data, int64_t count);
  void post();
  // data holds this host's part; the result replaces it.
  void start();
  // True if something happened.
  bool step();
  bool done() const { return stage_ == Stage::kDone; }
  const Status& status() const { return status_; }  // why it ended early

 private:
  enum class Stage : uint8_t { kNew, kPosted, kCombining, kSpreading, kDone };
  size_t hosts() const { return plan_.members.size(); }
  int64_t begin_of(size_t host) const;
  void add_recv(Transfers* to, size_t host, std::byte* into, int64_t count, uint64_t tag);
  void add_send(size_t host, const std::byte* from, int64_t count, uint64_t tag);
  void combine();
  void fail(const Status& status);
  std::byte* travelling() { return plan_.wire ? narrow_.data() : data_; }

  Plan plan_;
  std::byte* data_;
  int64_t count_;
  int64_t bytes_;  // of an element on the wire
  Stage stage_ = Stage::kNew;
  Status status_;
  std::vector<std::byte> arrived_;  // by host, contributions to the own share
  std::vector<std::byte> narrow_;
  Transfers contributions_;
  Transfers results_;
  Transfers sends_;
};

}  // namespace rueda::communicator
