// What a channel's ranks wait for, with every rank driven by hand: slots, buffers, generations,
// withdrawal.
#include <unistd.h>

#include <cstdlib>

#include "tests/shm/channel_world.h"
#include "tests/support/allocations.h"

namespace rueda::shm {
namespace {

constexpr size_t kPosts = host::ChannelControl::kPosts;

Request sum_of(int64_t count, Lies lies = Lies::kPrivate) {
  Request request;
  request.dtype = DType::kInt32;
  request.sizes = {count};
  request.lies = lies;
  return request;
}

TEST_CASE("a buffer is packed again only when everybody has unpacked what was in it", "[channel]") {
  constexpr int64_t kChunk = 8192;  // elements of four bytes
  ChannelWorld world(3, kChunk * 4);
  ChannelCall call(&world, sum_of(5 * kChunk));
  const auto control = [&](size_t rank) { return world.arenas[rank]->channel(1); };
  const auto turns = [&](size_t rank) {
    while (world[rank].progress()) {
    }
  };
  call.start_all();
  turns(0);
  CHECK(control(0)->packed == ChannelWorld::kWindows);
  CHECK(control(0)->reduced == 0);
  turns(1);
  CHECK(control(1)->reduced == 0);  // rank 2 has packed nothing
  turns(2);
  CHECK(control(2)->reduced == ChannelWorld::kWindows);
  CHECK(control(2)->unpacked == 0);  // ranks 0 and 1 have reduced nothing
  turns(0);
  turns(1);
  CHECK(control(1)->unpacked == ChannelWorld::kWindows);
  CHECK(control(1)->packed == ChannelWorld::kWindows);  // ranks 0 and 2 still read its buffers
  CHECK_FALSE(world[1].progress());
  turns(0);
  turns(2);
  CHECK(control(2)->packed == 2 * ChannelWorld::kWindows);
  REQUIRE(call.finish(1));
  CHECK(call.right());
}

TEST_CASE("every order of the first turns of two ranks gives the same results",
          "[channel][one_thread]") {
  const int turns = std::getenv("RUEDA_TEST_SHORT") != nullptr ? 8 : 12;
  for (int order = 0; order < 1 << turns; ++order) {
    ChannelWorld world(2);
    std::vector<std::unique_ptr<ChannelCall>> calls;
    // Inline, buffers of several chunks, one-shot, in place, nothing at all, a line again.
    for (const Request& request :
         {sum_of(3), sum_of(5000), sum_of(1500), sum_of(5000, Lies::kHeap), sum_of(0), sum_of(1)}) {
      calls.push_back(std::make_unique<ChannelCall>(&world, request));
    }
    size_t started[2] = {0, 0};
    // A turn begins the rank's next call, if any, and makes progress once.
    const auto turn = [&](size_t rank) {
      if (started[rank] < calls.size()) calls[started[rank]++]->start(rank);
      world[rank].progress();
    };
    for (int i = 0; i < turns; ++i) turn(static_cast<size_t>(order >> i) & 1);
    // What has not been started counts as done.
    const auto over = [&] {
      return started[0] == calls.size() && started[1] == calls.size() && calls.back()->done();
    };
    for (int i = 0; i < 200 && !over(); ++i) turn(static_cast<size_t>(i) & 1);
    bool right = true;
    for (const auto& call : calls) right &= call->done() && call->right();
    if (!right) FAIL("order " << order);
  }
}

TEST_CASE("a slot is written again only when every rank has finished what was in it", "[channel]") {
  ChannelWorld world(3);
  std::vector<std::unique_ptr<ChannelCall>> calls;
  for (size_t i = 0; i < 3 * kPosts; ++i) {
    calls.push_back(std::make_unique<ChannelCall>(&world, sum_of(static_cast<int64_t>(i))));
    calls.back()->start(0);
    calls.back()->start(1);
  }
  for (size_t round = 0; round < 100; ++round) {
    world[0].progress();
    world[1].progress();
  }
  CHECK(world[0].posted() == kPosts);
  CHECK(world[0].finished() == 0);
  // Rank 2 finishes the first job alone; its peers finish it too, and one slot is free.
  calls[0]->start(2);
  world[2].progress();
  CHECK(world[2].finished() == 1);
  world[0].progress();
  CHECK(world[0].finished() == 1);
  world[0].progress();
  CHECK(world[0].posted() == kPosts);  // rank 1 has not finished it
  world[1].progress();
  world[0].progress();
  CHECK(world[0].posted() == kPosts + 1);
  for (size_t i = 1; i < calls.size(); ++i) calls[i]->start(2);
  for (const auto& call : calls) {
    REQUIRE(call->finish(2));
    CHECK(call->right());
  }
  for (size_t rank = 0; rank < 3; ++rank) CHECK(world[rank].idle());
}

TEST_CASE("an operation that some rank has not posted is withdrawn and has touched nothing",
          "[channel][one_thread]") {
  for (const Lies lies : kAllLies) {
    for (const int64_t count : {int64_t{1}, int64_t{100}, int64_t{1500}, int64_t{30000}}) {
      INFO("n=" << count << " lies=" << static_cast<int>(lies));
      ChannelWorld world(3);
      uint64_t generation = 0;
      for (int round = 0; round < 3; ++round) {
        ++generation;
        for (size_t rank = 0; rank < 3; ++rank) world[rank].begin_generation(generation);
        ChannelCall first(&world, sum_of(count, lies));
        ChannelCall second(&world, sum_of(count + 1, lies));
        ChannelCall third(&world, sum_of(count + 2, lies));
        first.start_all();
        second.start(0);  // two ranks enter what the third never does
        second.start(2);
        third.start(0);
        const auto turns = [&] {
          for (int i = 0; i < 100; ++i) world[static_cast<size_t>(i) % 3].progress();
        };
        turns();
        CHECK(world[0].posted() == 3);
        CHECK(world[1].posted() == 1);
        turns();
        CHECK_FALSE(second.op(0).done());
        for (size_t rank = 0; rank < 3; ++rank) {
          CHECK(world[rank].finished() == 1);
          CHECK(world[rank].idle() == (rank == 1));
          world[rank].end_generation();
          CHECK(world[rank].idle());
          CHECK(second.untouched(rank));
          CHECK(third.untouched(rank));
        }
        CHECK(first.right());
        // Ranks begin the next generation one after the other; what the first ones enter there is
        // not mixed up with what was withdrawn.
        ChannelCall next(&world, sum_of(count + 3, lies));
        ChannelCall after(&world, sum_of(count + 4, lies));
        ++generation;
        for (size_t rank = 0; rank < 3; ++rank) {
          world[rank].begin_generation(generation);
          next.start(rank);
          after.start(rank);
          world[rank].progress();
          if (rank < 2) CHECK(world[rank].finished() == 0);
        }
        REQUIRE(after.finish(5));
        REQUIRE(next.finish(5));
        CHECK(next.right());
        CHECK(after.right());
        CHECK(world[0].finished() == 2);
        world.forget();
      }
    }
  }
}

TEST_CASE("operations before the withdrawn one run to their end beside it", "[channel]") {
  ChannelWorld world(2);
  ChannelCall first(&world, sum_of(30000));
  ChannelCall second(&world, sum_of(30000, Lies::kHeap));
  ChannelCall third(&world, sum_of(5));
  first.start_all();
  second.start_all();
  third.start(1);
  REQUIRE(first.finish(7));
  REQUIRE(second.finish(7));
  CHECK(first.right());
  CHECK(second.right());
  CHECK_FALSE(third.op(1).done());
  for (size_t rank = 0; rank < 2; ++rank) world[rank].end_generation();
  CHECK(third.untouched(1));
  CHECK_FALSE(third.op(1).done());
}

TEST_CASE("no rank ends an operation while a peer may still touch its tensors", "[channel]") {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter, CollectiveKind::kBroadcast,
        CollectiveKind::kAllgather, CollectiveKind::kAlltoall}) {
    INFO(name_of(kind));
    ChannelWorld world(3);
    Request request;
    request.kind = kind;
    request.sizes = {70000};
    request.lies = Lies::kHeap;
    ChannelCall call(&world, request);
    call.start_all();
    for (size_t i = 0; i < 100; ++i) world[i % 2].progress();  // all that these two can do
    CHECK_FALSE(call.op(0).done());
    REQUIRE(call.finish(1));
    CHECK(call.right());
  }
}

TEST_CASE("an abandoned operation's memory is not touched again", "[channel]") {
  ChannelWorld world(2);
  ChannelCall call(&world, sum_of(30000));
  call.start_all();
  world[0].progress();
  world[0].abandon();
  world.forget();  // under AddressSanitizer a touch would be seen
  CHECK_FALSE(world[0].progress());
  CHECK_FALSE(call.op(0).done());
  CHECK(world[0].idle());
  world[1].abandon();
}

TEST_CASE("a rank that waits for a channel is woken by its peers' progress, once per nap",
          "[channel]") {
  ChannelWorld world(2);
  ChannelCall call(&world, sum_of(5));
  const auto rung = [&](size_t rank) {
    uint64_t count = 0;
    return read(world.bells[rank].fd(), &count, sizeof(count)) == sizeof(count) ? count : 0;
  };
  call.start(0);
  world[0].progress();
  world.bells[0].arm_channel();
  CHECK_FALSE(world[0].progress());
  call.start(1);
  CHECK(rung(0) == 0);
  world[1].progress();
  CHECK(rung(0) == 1);
  CHECK(world[0].progress());
  CHECK(call.done());
}

TEST_CASE("start and progress allocate nothing", "[channel]") {
  ChannelWorld world(2);
  std::vector<std::unique_ptr<ChannelCall>> calls;
  for (const CollectiveKind kind :
       {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter, CollectiveKind::kBroadcast,
        CollectiveKind::kAllgather, CollectiveKind::kAlltoall}) {
    for (const Lies lies : {Lies::kPrivate, Lies::kHeap}) {
      for (const int64_t count : {1, 1000, 20000}) {
        Request request;
        request.kind = kind;
        request.sizes = {count};
        if (kind == CollectiveKind::kAllreduce) request.sizes = {count, 3, count};
        request.lies = lies;
        calls.push_back(std::make_unique<ChannelCall>(&world, request));
      }
    }
  }
  const int64_t before = testing::allocations_of_this_thread();
  for (int times = 0; times < 2; ++times) {  // an operation that is done may run again
    for (const auto& call : calls) call->start_all();
    for (int i = 0; i < 10000 && !(world[0].idle() && world[1].idle()); ++i) {
      world[0].progress();
      world[1].progress();
    }
  }
  CHECK(testing::allocations_of_this_thread() == before);
  for (const auto& call : calls) CHECK((call->done() && call->right()));
}

}  // namespace
}  // namespace rueda::shm
