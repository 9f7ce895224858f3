// HostExchange: the allreduce of one slice between hosts, one rank of each taking part, in one of
// the ways of exchange.h:
//
//   direct          every rank sends its slice to all and combines everybody's in the order of
//                   hosts
//   Bruck           the same, but slices are passed on: in round k a rank sends all it has to the
//                   host 2^k to its left, so that log2 H messages bring everything (J. Bruck et
//                   al., 1997)
//   reduce-scatter  every rank sends each host's shard of its slice to that host's rank, who
//                   combines the shards and
//   and allgather   sends the result to all
//
// Compressed: what travels is f16 or bf16 while the slice is f32. Contributions are widened,
// combined in f32 and rounded once more, so that all ranks have the same bits whichever way.
//
// Prepared once, used again and again: post() -> start() -> step() ... done(). post() offers
// buffers to the peers before the own slice is ready. Borrows `data` from start() until done().
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/algorithms/exchange.h"
#include "collectives/desc/scaling.h"
#include "collectives/desc/transfers.h"
#include "collectives/transport/transport.h"

namespace rueda::algorithms {

class HostExchange {
 public:
  struct Plan {
    transport::Transport* transport = nullptr;  // borrowed
    std::vector<Rank> members;                  // of the transport, by host
    size_t host = 0;                            // this rank's
    DType dtype = DType::kUInt8;
    ReduceOp op = ReduceOp::kSum;
    kernels::Finish finish;
    std::optional<DType> wire;  // narrower than dtype: compressed
    Exchange exchange = Exchange::kReduceScatterAllgather;
  };
  // count: elements of the slice.
  HostExchange(Plan plan, int64_t count);

  // tag: this one and the next are used.
  void post(transport::Tag tag);
  // data holds this host's part; the result replaces it.
  void start(std::byte* data);
  // True if something happened.
  bool step();
  bool done() const { return stage_ == Stage::kDone; }
  const Status& status() const { return status_; }  // why it ended early

 private:
  enum class Stage : uint8_t { kPosted, kGathering, kSpreading, kDone };
  size_t hosts() const { return plan_.members.size(); }
  bool is(Exchange exchange) const { return plan_.exchange == exchange; }
  // This rank combines [begin, begin + count) of what hosts contribute.
  int64_t begin_of(size_t host) const;
  int64_t mine() const { return begin_of(plan_.host + 1) - begin_of(plan_.host); }
  // Where a host's contribution to that arrives. Hosts begin with this one, so that what Bruck's
  // allgather passes on lies together.
  std::byte* arrived(size_t host) {
    const size_t block = (host + hosts() - plan_.host) % hosts();
    return arrived_.data() + block * static_cast<size_t>(mine() * bytes_);
  }
  void add_recv(Transfers* to, size_t host, std::byte* into, int64_t count, transport::Tag tag);
  void add_send(size_t host, const std::byte* from, int64_t count, transport::Tag tag);
  void pass_on();
  void combine();
  bool finish_gathering();
  void fail(const Status& status);
  std::byte* travelling() { return plan_.wire ? narrow_.data() : data_; }

  Plan plan_;
  int64_t count_;
  int64_t bytes_;  // of an element on the wire
  std::byte* data_ = nullptr;
  transport::Tag tag_ = 0;
  Stage stage_ = Stage::kDone;
  Status status_;
  std::vector<std::byte> arrived_;
  std::vector<std::byte> narrow_;
  std::vector<float> widened_;            // contributions, by host
  std::vector<const std::byte*> inputs_;  // by host
  std::vector<Transfers> arrivals_;       // one, or by round
  size_t round_ = 0;                      // rounds that have arrived
  Transfers results_;
  Transfers sends_;
};

}  // namespace rueda::algorithms
