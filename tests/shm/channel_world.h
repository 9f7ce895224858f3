// ChannelWorld: the ranks of a channel in one process, each driven when the test says so, with
// heaps that are plain memory. ChannelCall: one collective of all of them, with what it must give.
#pragma once

#include <catch2/catch.hpp>

#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "collectives/shm/channel.h"
#include "tests/support/patterns.h"

namespace rueda::shm {

using testing::Bytes;

// Where the tensors of a call lie.
enum class Lies { kPrivate, kHeap, kMixed, kOutputsPrivate };
inline constexpr Lies kAllLies[] = {Lies::kPrivate, Lies::kHeap, Lies::kMixed,
                                    Lies::kOutputsPrivate};

class ChannelWorld {
 public:
  static constexpr size_t kHeapBytes = 2 << 20;
  static constexpr size_t kWindows = 2;

  explicit ChannelWorld(Rank size, size_t chunk_bytes = 4096, size_t heap_bytes = kHeapBytes) {
    constexpr size_t kChannel = 1;
    host::ArenaLayout layout;
    layout.local_size = size;
    layout.chunk_bytes = chunk_bytes;
    layout.buffers = kWindows;
    layout.ring_bytes = 4096;
    ChannelGroup group;
    for (Rank rank = 0; rank < size; ++rank) {
      auto arena = host::Arena::create(layout, rank, 1);
      if (!arena.ok()) FAIL(arena.status().to_string());
      arenas.push_back(arena.value());
      auto bell =
          host::Doorbell::create(arena.value()->sleep_word(), arena.value()->channel_word());
      if (!bell.ok()) FAIL(bell.status().to_string());
      bells.push_back(std::move(bell).value());
      heaps_.emplace_back(heap_bytes);
      group.heaps.push_back({heaps_.back().data(), heap_bytes});
      group.ringers.push_back(bells.back().channel_ringer());
    }
    group.arenas = arenas;
    used_.resize(heaps_.size());
    for (Rank rank = 0; rank < size; ++rank) {
      group.rank = rank;
      channels_.push_back(std::make_unique<Channel>(group, kChannel));
    }
  }
  Rank size() const { return static_cast<Rank>(channels_.size()); }
  Channel& operator[](size_t rank) { return *channels_[rank]; }

  // Memory of a rank, until forget().
  std::byte* allocate(size_t rank, size_t bytes, bool in_heap) {
    if (in_heap) {
      std::byte* memory = heaps_[rank].data() + used_[rank];
      used_[rank] += (bytes + 63) / 64 * 64;
      if (used_[rank] > heaps_[rank].size()) FAIL("the test's heap is too small");
      return memory;
    }
    private_.push_back(std::make_unique<Bytes>(bytes + 1));  // never null
    return private_.back()->data();
  }
  void forget() {
    private_.clear();
    used_.assign(used_.size(), 0);
  }

  std::vector<std::shared_ptr<host::Arena>> arenas;
  std::vector<host::Doorbell> bells;

 private:
  std::vector<Bytes> heaps_;
  std::vector<size_t> used_;
  std::vector<std::unique_ptr<Bytes>> private_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

struct Request {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<int64_t> sizes;  // of the parts; the ranks' blocks are small multiples of that
  Lies lies = Lies::kPrivate;
  ShmProtocol protocol = ShmProtocol::kStaged;
  std::optional<Scaling> scaling;
  bool in_place = false;  // outputs are the inputs
  Rank root = 0;
};

inline Bytes stamped(Rank from, Rank to, size_t part, int64_t bytes) {
  Bytes result;
  for (int64_t i = 0; i < bytes; ++i) {
    result.push_back(
        static_cast<std::byte>((from * 31 + to * 17 + static_cast<int>(part) * 5 + i) & 0xff));
  }
  return result;
}

class ChannelCall {
 public:
  ChannelCall(ChannelWorld* world, Request request) : world_(world), request_(std::move(request)) {
    for (Rank rank = 0; rank < world->size(); ++rank) {
      sides_.push_back(std::make_unique<Side>());
      build(rank);
    }
  }
  ChannelOp& op(size_t rank) { return *sides_[rank]->op; }
  void start(size_t rank) { op(rank).start({}); }
  void start_all() {
    for (size_t rank = 0; rank < sides_.size(); ++rank) start(rank);
  }
  bool done() const {
    for (const auto& side : sides_) {
      if (!side->op->done()) return false;
    }
    return true;
  }
  // Turns in an order that the seed fixes, until all are done or nothing has moved for long.
  bool finish(unsigned seed) {
    std::mt19937 random(seed);
    for (int idle = 0; !done() && idle < 1000; ++idle) {
      if ((*world_)[random() % sides_.size()].progress()) idle = 0;
    }
    return done();
  }
  // A thread for each rank.
  void run_threads() {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < sides_.size(); ++rank) {
      threads.emplace_back([this, rank] {
        start(rank);
        while (!op(rank).done() && (*world_)[rank].failure().ok()) {
          if (!(*world_)[rank].progress()) std::this_thread::yield();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
  bool right() const {
    for (const auto& side : sides_) {
      for (size_t i = 0; i < side->wanted.size(); ++i) {
        const Bytes& wanted = side->wanted[i];
        if (!std::equal(wanted.begin(), wanted.end(), side->op->tensors()[i].out)) return false;
      }
    }
    return true;
  }
  // No byte of any output has been written.
  bool untouched(size_t rank) const {
    const Side& side = *sides_[rank];
    for (size_t i = 0; i < side.wanted.size(); ++i) {
      const std::byte* out = side.op->tensors()[i].out;
      for (size_t at = 0; at < side.wanted[i].size(); ++at) {
        if (out[at] != std::byte{0xee}) return false;
      }
    }
    return true;
  }

 private:
  struct Side {
    std::unique_ptr<ChannelOp> op;
    std::vector<Part> memory;
    std::vector<Bytes> wanted;
  };

  void add(Rank rank, const Bytes& input, Bytes wanted, int64_t count) {
    const auto me = static_cast<size_t>(rank);
    Side& side = *sides_[me];
    const bool heap = request_.lies == Lies::kHeap || request_.lies == Lies::kOutputsPrivate ||
                      (request_.lies == Lies::kMixed && (me + side.wanted.size()) % 2 == 0);
    Part part;
    std::byte* in = world_->allocate(me, input.size(), heap);
    std::copy(input.begin(), input.end(), in);
    part.in = in;
    part.out = in;
    part.count = count;
    if (!request_.in_place) {
      part.out =
          world_->allocate(me, wanted.size(), heap && request_.lies != Lies::kOutputsPrivate);
      std::fill_n(part.out, wanted.size(), std::byte{0xee});
    }
    side.memory.push_back(part);
    side.wanted.push_back(std::move(wanted));
  }

  void build(Rank rank) {
    const Rank size = world_->size();
    const Request& r = request_;
    CollectiveDesc desc;
    desc.kind = r.kind;
    desc.op = r.op;
    desc.protocol = r.protocol;
    desc.root = r.root;
    desc.tensors = r.sizes.size();
    if (r.kind == CollectiveKind::kAllreduce || r.kind == CollectiveKind::kReducescatter) {
      desc.dtype = r.dtype;
      const auto scaling = plan_scaling(r.dtype, r.op, 1.0, 1.0, size);
      if (!scaling.ok()) FAIL(scaling.status().to_string());
      desc.scaling = r.scaling.value_or(scaling.value());
    }
    for (size_t i = 0; i < r.sizes.size(); ++i) build_part(rank, i, &desc);
    Side& side = *sides_[static_cast<size_t>(rank)];
    const bool counts_tensors =
        r.kind == CollectiveKind::kAllreduce || r.kind == CollectiveKind::kBroadcast;
    for (size_t i = 0; i < side.memory.size() && counts_tensors; ++i)
      desc.counts.push_back(side.memory[i].count);
    side.op = std::make_unique<ChannelOp>(&(*world_)[static_cast<size_t>(rank)], std::move(desc));
    for (size_t i = 0; i < side.memory.size(); ++i) {
      side.op->tensors()[i].in = side.memory[i].in;
      side.op->tensors()[i].out = side.memory[i].out;
    }
  }

  void build_part(Rank rank, size_t i, CollectiveDesc* desc) {
    const Rank size = world_->size();
    const Request& r = request_;
    const int64_t n = r.sizes[i];
    Bytes in;
    Bytes wanted;
    const auto append = [](Bytes* to, const Bytes& more) {
      to->insert(to->end(), more.begin(), more.end());
    };
    switch (r.kind) {
      case CollectiveKind::kAllreduce:
        add(rank, testing::to_bytes(r.dtype, testing::ramp_values(rank, n, r.op)),
            testing::to_bytes(r.dtype, testing::reduced_ramp(r.dtype, r.op, size, n)), n);
        return;
      case CollectiveKind::kReducescatter: {
        const Bytes whole =
            testing::to_bytes(r.dtype, testing::reduced_ramp(r.dtype, r.op, size, n));
        const auto element = static_cast<int64_t>(size_of(r.dtype));
        for (Rank to = 0; to < size; ++to) desc->counts.push_back(split_rows(n, to, size));
        const auto begin = whole.begin() + split_begin(n, rank, size) * element;
        add(rank, testing::to_bytes(r.dtype, testing::ramp_values(rank, n, r.op)),
            Bytes(begin, begin + split_rows(n, rank, size) * element), 0);
        return;
      }
      case CollectiveKind::kBroadcast:
        in = rank == r.root ? stamped(rank, 0, i, n) : Bytes(static_cast<size_t>(n));
        add(rank, in, stamped(r.root, 0, i, n), n);
        return;
      case CollectiveKind::kAllgather:
        for (Rank from = 0; from < size; ++from) {
          desc->counts.push_back(n * ((from + 1) % 3));  // the third rank has nothing
          append(&wanted, stamped(from, 0, i, desc->counts.back()));
        }
        add(rank, stamped(rank, 0, i, n * ((rank + 1) % 3)), wanted, 0);
        return;
      default: {  // alltoall
        const auto block = [n](Rank from, Rank to) { return n * ((from + 2 * to) % 4); };
        for (Rank from = 0; from < size; ++from) {
          for (Rank to = 0; to < size; ++to) desc->counts.push_back(block(from, to));
          append(&in, stamped(rank, from, i, block(rank, from)));
          append(&wanted, stamped(from, rank, i, block(from, rank)));
        }
        add(rank, in, wanted, 0);
      }
    }
  }

  ChannelWorld* world_;
  Request request_;
  std::vector<std::unique_ptr<Side>> sides_;
};

}  // namespace rueda::shm
