// Collectives that are prepared once and started again and again, in other memory each time,
// several at once; and those of a step plan, which end on no rank before all have begun them.
#include <catch2/catch.hpp>

#include <atomic>

#include "tests/support/allocations.h"
#include "tests/support/patterns.h"
#include "tests/support/thread_world.h"
#include "tests/transport/ranks_in_turns.h"

namespace rueda::testing {
namespace {

using algorithms::NativeCommunicator;
using algorithms::Order;

std::vector<Kind> every_transport() {
  return {Kind::kInproc, Kind::kShm, Kind::kTcp, Kind::kPairs, Kind::kTriples, Kind::kHybrid};
}

algorithms::NativeGroup everybody(ThreadRank& world) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return world.group(std::move(ranks));
}

// A description of each kind, `unit` elements large or so; what the ranks give is different each
// round.
std::vector<CollectiveDesc> descriptions(Rank size, int64_t unit, bool meets) {
  const auto ranks = static_cast<size_t>(size);
  std::vector<CollectiveDesc> all;
  const auto add = [&](CollectiveKind kind, size_t tensors, std::vector<int64_t> counts) {
    CollectiveDesc desc;
    desc.kind = kind;
    desc.tensors = tensors;
    desc.counts = std::move(counts);
    desc.meets = meets;
    if (kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReducescatter)
      desc.dtype = DType::kInt32;
    all.push_back(desc);
  };
  add(CollectiveKind::kAllreduce, 1, {unit});
  add(CollectiveKind::kAllreduce, 3, {unit, 0, 5});
  add(CollectiveKind::kAllreduce, 1, {0});
  std::vector<int64_t> shards(ranks, unit);
  shards.back() = 0;
  add(CollectiveKind::kReducescatter, 1, shards);
  std::vector<int64_t> blocks(2 * ranks, unit);
  blocks[0] = blocks[ranks] = 0;  // the first rank has nothing
  add(CollectiveKind::kAllgather, 2, blocks);
  add(CollectiveKind::kBroadcast, 2, {unit, 3});
  all.back().root = size - 1;
  std::vector<int64_t> matrix(ranks * ranks, unit);
  matrix[ranks - 1] = 0;
  add(CollectiveKind::kAlltoall, 1, matrix);
  add(CollectiveKind::kBarrier, 0, {});
  return all;
}

// Element i of what a rank gives in a round, and of what it must get.
int32_t given(Rank rank, int64_t i, int round) {
  return static_cast<int32_t>((rank + 1) * 7 + i % 97 + round * 13);
}
std::byte given_byte(Rank rank, int64_t i, int round) {
  return static_cast<std::byte>(given(rank, i, round) & 0xff);
}

struct Memory {
  std::vector<Bytes> in;
  std::vector<Bytes> out;
  std::vector<Bytes> wanted;
};

Memory memory_for(const CollectiveDesc& desc, Rank rank, Rank size, int round) {
  Memory memory;
  const auto element = size_of(desc.dtype);
  const auto ranks = static_cast<size_t>(size);
  for (size_t tensor = 0; tensor < desc.tensors; ++tensor) {
    const auto ins = static_cast<size_t>(desc.input_count(tensor, rank, size));
    const auto outs = static_cast<size_t>(desc.output_count(tensor, rank, size));
    Bytes in(ins * element);
    Bytes wanted(outs * element);
    for (size_t i = 0; i < ins; ++i) {
      const auto at = static_cast<int64_t>(i);
      const int32_t value = given(rank, at, round);
      if (desc.dtype == DType::kInt32)
        std::memcpy(in.data() + 4 * i, &value, 4);
      else
        in[i] = given_byte(rank, at, round);
    }
    const auto sum = [&](int64_t i) {
      int32_t total = 0;
      for (Rank r = 0; r < size; ++r) total += given(r, i, round);
      return total;
    };
    int64_t begin = 0;
    for (Rank r = 0; r < rank && desc.kind == CollectiveKind::kReducescatter; ++r)
      begin += desc.counts[static_cast<size_t>(r)];
    for (size_t i = 0; i < outs && desc.dtype == DType::kInt32; ++i) {
      const int32_t value = sum(begin + static_cast<int64_t>(i));
      std::memcpy(wanted.data() + 4 * i, &value, 4);
    }
    size_t at = 0;
    for (Rank r = 0; r < size && desc.kind == CollectiveKind::kAllgather; ++r) {
      for (int64_t i = 0; i < desc.counts[tensor * ranks + static_cast<size_t>(r)]; ++i)
        wanted[at++] = given_byte(r, i, round);
    }
    for (Rank r = 0; r < size && desc.kind == CollectiveKind::kAlltoall; ++r) {
      const int64_t* row = &desc.counts[static_cast<size_t>(r) * ranks];
      int64_t from = 0;
      for (Rank to = 0; to < rank; ++to) from += row[to];
      for (int64_t i = 0; i < row[rank]; ++i) wanted[at++] = given_byte(r, from + i, round);
    }
    for (size_t i = 0; i < outs && desc.kind == CollectiveKind::kBroadcast; ++i)
      wanted[i] = given_byte(desc.root, static_cast<int64_t>(i), round);
    memory.in.push_back(std::move(in));
    memory.out.emplace_back(wanted.size(), std::byte{0xee});
    memory.wanted.push_back(std::move(wanted));
  }
  return memory;
}

void use(Collective& collective, Memory* memory) {
  for (size_t i = 0; i < memory->in.size(); ++i) {
    collective.tensors()[i].in = memory->in[i].data();
    collective.tensors()[i].out = memory->out[i].data();
  }
}

TEST_CASE("a collective of every kind is started again and again, all at once", "[persistent]") {
  for (const Kind kind : every_transport()) {
    for (const Rank size : {1, 2, 5}) {
      for (const bool meets : {false, true}) {
        auto worlds = make_worlds(kind, size);
        const auto errors = on_ranks(size, [&](Rank rank) -> std::string {
          ThreadRank& world = *worlds[static_cast<size_t>(rank)];
          NativeCommunicator communicator(everybody(world),
                                          meets ? Order::kPlanned : Order::kNegotiated);
          if (meets) communicator.begin_generation(1);
          std::vector<CollectivePtr> all;
          for (const int64_t unit : {int64_t{1}, int64_t{300}, int64_t{70'000}}) {
            for (const CollectiveDesc& desc : descriptions(size, unit, meets))
              all.push_back(must(communicator.init(desc)));
          }
          for (int round = 0; round < 3; ++round) {
            std::vector<Memory> memory;
            for (const auto& one : all)
              memory.push_back(memory_for(one->desc(), rank, size, round));
            for (size_t i = 0; i < all.size(); ++i) {
              use(*all[i], &memory[i]);
              all[i]->start({});
            }
            for (auto& one : all) {
              // The others go on meanwhile: ranks need not look at them in one order.
              for (auto& other : all) other->advance();
              must(finish(world, communicator, *one));
            }
            for (size_t i = 0; i < all.size(); ++i) {
              if (memory[i].out != memory[i].wanted) {
                return std::string(rueda::name_of(all[i]->desc().kind)) + " in round " +
                       std::to_string(round) + ": wrong result";
              }
            }
          }
          return "";
        });
        INFO(name_of(kind) << " x " << size << (meets ? ", planned" : ""));
        for (const auto& error : errors) REQUIRE(error == "");
      }
    }
  }
}

TEST_CASE("a planned collective ends on no rank before all have started it", "[persistent]") {
  for (const Kind kind : every_transport()) {
    const Rank size = 5;
    for (size_t which = 0; which < descriptions(size, 300, true).size(); ++which) {
      for (const Rank late : {0, 4}) {
        auto worlds = make_worlds(kind, size);
        std::atomic<int> waiting{0};
        const auto errors = on_ranks(size, [&](Rank rank) -> std::string {
          ThreadRank& world = *worlds[static_cast<size_t>(rank)];
          NativeCommunicator communicator(everybody(world), Order::kPlanned);
          communicator.begin_generation(1);
          const CollectivePtr one = must(communicator.init(descriptions(size, 300, true)[which]));
          Memory memory = memory_for(one->desc(), rank, size, 0);
          use(*one, &memory);
          if (rank == late) {
            // The others have had every chance to end it.
            while (waiting < size - 1) {
              world.transport().progress();
              communicator.progress();
            }
          }
          one->start({});
          // The late one starts when all others have come to the end of this.
          for (int turn = 0; rank != late && turn < 200; ++turn) {
            world.transport().progress();
            communicator.progress();
            if (one->test()) return "it ended before every rank had started it";
            std::this_thread::yield();
          }
          ++waiting;
          must(finish(world, communicator, *one));
          return memory.out == memory.wanted ? "" : "wrong result";
        });
        INFO(name_of(kind) << ", kind " << which << ", late " << late);
        for (const auto& error : errors) REQUIRE(error == "");
      }
    }
  }
}

// Planned collectives of every rank, driven by this thread in turns.
class InTurns {
 public:
  InTurns(Kind kind, Rank size) : ranks_(kind, size) {
    for (Rank rank = 0; rank < size; ++rank) {
      communicators_.push_back(
          std::make_unique<NativeCommunicator>(everybody(ranks_.world(rank)), Order::kPlanned));
    }
    running_.resize(static_cast<size_t>(size));
    memory_.resize(static_cast<size_t>(size));
  }
  void begin(uint64_t generation, const CollectiveDesc& desc) {
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      communicators_[at]->begin_generation(generation);
      running_[at] = must(communicators_[at]->init(desc));
      memory_[at] = memory_for(desc, rank, ranks_.size(), static_cast<int>(generation));
    }
  }
  void start(Rank rank) {
    const auto at = static_cast<size_t>(rank);
    use(*running_[at], &memory_[at]);
    running_[at]->start({});
  }
  // The collective and what it was given are gone; the generation is over on this rank.
  void withdraw(Rank rank) {
    const auto at = static_cast<size_t>(rank);
    running_[at].reset();
    memory_[at] = {};
    communicators_[at]->end_generation();
  }
  void turn() {
    ranks_.turn();
    for (size_t at = 0; at < running_.size(); ++at) {
      communicators_[at]->progress();
      if (running_[at] != nullptr && !running_[at]->done()) running_[at]->advance();
    }
  }
  bool finish() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    const auto done = [](const CollectivePtr& one) { return one->done(); };
    while (!std::all_of(running_.begin(), running_.end(), done)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      turn();
    }
    return std::all_of(running_.begin(), running_.end(),
                       [](const CollectivePtr& one) { return one->status().ok(); });
  }
  bool right() const {
    return std::all_of(memory_.begin(), memory_.end(),
                       [](const Memory& memory) { return memory.out == memory.wanted; });
  }
  size_t tags_in_use() {
    size_t tags = 0;
    for (Rank rank = 0; rank < ranks_.size(); ++rank)
      tags += ranks_.world(rank).transport().tags_in_use();
    return tags;
  }
  Rank size() const { return ranks_.size(); }

 private:
  Ranks ranks_;
  std::vector<std::unique_ptr<NativeCommunicator>> communicators_;
  std::vector<Memory> memory_;
  std::vector<CollectivePtr> running_;
};

TEST_CASE("a planned collective that ends in the middle takes its messages with it",
          "[persistent]") {
  for (const Kind kind : every_transport()) {
    for (const int64_t unit : {int64_t{300}, int64_t{70'000}}) {
      const Rank size = 5;
      const auto all = descriptions(size, unit, true);
      for (size_t which = 0; which < all.size(); ++which) {
        InTurns world(kind, size);
        uint64_t generation = 0;
        bool right = true;
        for (const Rank absent : {Rank{0}, Rank{2}, Rank{4}}) {
          world.begin(++generation, all[which]);
          for (Rank rank = 0; rank < size; ++rank) {
            if (rank != absent) world.start(rank);
          }
          // Far into it, or hardly begun; then one rank after the other hears that it is over.
          for (int i = 0; i < 60 * (absent % 4); ++i) world.turn();
          for (Rank rank = 0; rank < size; ++rank) {
            world.withdraw(rank);
            world.turn();
          }
          // What is still on its way meets nobody.
          world.begin(++generation, all[which]);
          for (Rank rank = size; rank > 0; --rank) world.start(rank - 1);
          right = right && world.finish() && world.right();
          for (Rank rank = 0; rank < size; ++rank) world.withdraw(rank);
        }
        INFO(name_of(kind) << ", kind " << which << ", " << unit << " elements");
        REQUIRE(right);
        CHECK(world.tags_in_use() == 0);
      }
    }
  }
}

TEST_CASE("a collective over messages that is started again allocates nothing", "[persistent]") {
  const Rank size = 3;
  for (const int64_t unit : {int64_t{300}, int64_t{70'000}}) {
    const auto all = descriptions(size, unit, true);
    for (size_t which = 0; which < all.size(); ++which) {
      InTurns world(Kind::kInproc, size);
      world.begin(1, all[which]);
      // Whoever comes last finds all that the others have sent.
      const auto round = [&](Rank last) {
        for (Rank rank = 1; rank <= size; ++rank) {
          if (rank == size)
            for (int i = 0; i < 20; ++i) world.turn();
          world.start((last + rank) % size);
        }
        return world.finish();
      };
      bool right = true;
      for (Rank last = 0; last < 3 * size; ++last) right &= round(last % size);
      trace_allocations();
      const int64_t before = allocations_of_this_thread();
      for (Rank last = 0; last < 3 * size; ++last) right &= round(last % size);
      const int64_t after = allocations_of_this_thread();
      INFO("kind " << which << ", " << unit << " elements; allocations:\n" << traced_allocations());
      CHECK((right && world.right()));
      CHECK(after == before);
    }
  }
}

}  // namespace
}  // namespace rueda::testing
