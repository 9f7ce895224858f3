// Sends and receives in ordered groups, from whoever sends too.
#include <catch2/catch.hpp>

#include "tests/runtime/group_calls.h"

namespace rueda::testing {
namespace {

using K = CollectiveKind;
constexpr Rank kAny = engine::GroupMessages::kAnybody;

engine::Operation message(uint32_t group, K kind, Rank peer, uint32_t tag, Floats* data) {
  auto op = call_of(group, kind, *data, data);
  op.peer = peer;
  op.tag = tag;
  if (kind == K::kRecv) op.input = nullptr;
  return op;
}

// What rank sends as its i-th message.
Floats content(Rank rank, int i, size_t n) { return Floats(n, static_cast<float>(100 * rank + i)); }

}  // namespace

TEST_CASE("messages in groups meet by group, peer and tag", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const Ranks list = {2, 0, 1};
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const uint32_t one = must(r.open_group("one", list));
      const uint32_t two = must(r.open_group("two", list));
      for (const size_t n : {size_t{3}, size_t{200000}}) {
        const Rank next = (rank + 1) % 3;
        const Rank before = (rank + 2) % 3;
        std::vector<Floats> out(8, Floats(n));
        std::vector<Floats> in(8, Floats(n, -1));
        std::vector<RequestPtr> requests;
        for (size_t i = 0; i < 6; ++i) out[i].assign(n, static_cast<float>(10 * rank) + float(i));
        // The same peers and tags in both groups and in the job, asked for in another order.
        const auto send = [&](uint32_t group, uint32_t tag, size_t at) {
          requests.push_back(start(r, message(group, K::kSend, next, tag, &out[at])));
        };
        const auto receive = [&](uint32_t group, uint32_t tag, size_t at) {
          requests.push_back(start(r, message(group, K::kRecv, before, tag, &in[at])));
        };
        send(one, 7, 0);
        send(two, 7, 1);
        send(one, 8, 2);
        send(one, 7, 3);
        send(0, 7, 4);
        receive(0, 7, 4);
        receive(two, 7, 1);
        receive(one, 8, 2);
        receive(one, 7, 0);
        receive(one, 7, 3);
        // To itself.
        out[6].assign(n, 6);
        requests.push_back(start(r, message(one, K::kSend, rank, 7, &out[6])));
        requests.push_back(start(r, message(one, K::kRecv, rank, 7, &in[6])));
        for (const RequestPtr& request : requests) must(end_of(request));
        for (const size_t i : {0, 1, 2, 3, 4}) {
          if (in[i] != Floats(n, static_cast<float>(10 * before) + float(i)))
            return "message " + std::to_string(i);
        }
        if (in[6] != out[6]) return "to itself";
        // As one: sends and receives of a batch.
        const auto batch = must(r.start(
            {message(two, K::kSend, next, 1, &out[0]), message(two, K::kRecv, before, 1, &in[0])},
            true));
        for (const RequestPtr& request : batch) must(end_of(request));
      }
      // A message whose size the other side has not: both hear of it, and go on.
      Floats data(rank == 0 ? 3 : 4);
      Status status;
      if (rank == 0) status = call(r, message(one, K::kSend, 1, 5, &data));
      if (rank == 1) status = call(r, message(one, K::kRecv, 0, 5, &data));
      if (rank != 2 && status.code() != Code::kFailedPrecondition) return status.to_string();
      Floats none(1);
      auto wrong = message(one, K::kSend, 3, 5, &none);
      if (r.start({wrong}).ok()) return "to no member";
      return trouble_with_group(r, one, list);
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a receive from anybody gets each member's messages in their order", "[ordered_group]") {
  constexpr int kEach = 5;
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    for (const size_t n : {size_t{3}, size_t{100000}}) {
      INFO(name_of(kind) << " " << n);
      RuntimeWorld world(kind, 4);
      const Ranks list = {2, 0, 1, 3};
      const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
        const uint32_t group = must(r.open_group("any", list));
        // Everybody sends to everybody, itself too, and receives as many from anybody.
        std::vector<Floats> out;
        for (int i = 0; i < kEach; ++i) out.push_back(content(rank, i, n));
        std::vector<RequestPtr> sends;
        for (Floats& data : out) {
          for (Rank to = 0; to < 4; ++to)
            sends.push_back(start(r, message(group, K::kSend, to, 9, &data)));
        }
        std::vector<int> seen(4);
        for (int i = 0; i < 4 * kEach; ++i) {
          Floats in(n, -1);
          const RequestPtr request = start(r, message(group, K::kRecv, kAny, 9, &in));
          must(end_of(request));
          const auto from = static_cast<Rank>(request->result());
          if (from < 0 || from > 3) return "no sender";
          if (in != content(from, seen[static_cast<size_t>(from)]++, n)) return "out of order";
        }
        for (const RequestPtr& request : sends) must(end_of(request));
        if (seen != std::vector<int>(4, kEach)) return "not as many from each";
        return trouble_with_group(r, group, list);
      });
      for (const auto& error : errors) CHECK(error == "");
    }
  }
}

TEST_CASE("messages are met in the order of receives, whoever they are from", "[ordered_group]") {
  RuntimeWorld world(Kind::kShm, 3);
  const Ranks list = {0, 1, 2};
  const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("any", list));
    Floats a = content(1, 0, 4), b = content(1, 1, 4), c = content(1, 2, 4);
    Floats in[3] = {Floats(4, -1), Floats(4, -1), Floats(4, -1)};
    std::vector<RequestPtr> requests;
    // Before anything is sent: rank 1 sends when all have come to the barrier.
    if (rank == 0) {
      requests.push_back(start(r, message(group, K::kRecv, kAny, 1, &in[0])));
      requests.push_back(start(r, message(group, K::kRecv, 1, 1, &in[1])));
      requests.push_back(start(r, message(group, K::kRecv, 1, 2, &in[2])));
    }
    must(call(r, call_of(group, K::kBarrier, {}, nullptr)));
    if (rank == 1) {
      requests.push_back(start(r, message(group, K::kSend, 0, 2, &c)));
      requests.push_back(start(r, message(group, K::kSend, 0, 1, &a)));
      requests.push_back(start(r, message(group, K::kSend, 0, 1, &b)));
    }
    for (const RequestPtr& request : requests) must(end_of(request));
    if (rank == 0 && (in[0] != a || in[1] != b || in[2] != c)) return "in another order";
    if (rank == 0 && requests[0]->result() != 1) return "from another rank";
    return trouble_with_group(r, group, list);
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("a receive from anybody ends with an error when nobody is left who could send",
          "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const auto ends = world.run([&](Rank rank, engine::Runtime& r) {
      const uint32_t group = must(r.open_group("any", {0, 1, 2}));
      Floats in(2);
      if (rank != 0) {
        must(r.close_group(group));
        return Status();
      }
      // The first may wait when the others close; the second comes afterwards.
      const Status first = call(r, message(group, K::kRecv, kAny, 1, &in));
      const Status second = call(r, message(group, K::kRecv, kAny, 1, &in));
      return first.message() == second.message() ? first : second;
    });
    CHECK(ends[0].code() == Code::kFailedPrecondition);
    CHECK(has(ends[0].message(), "has closed the group"));
  }
}

TEST_CASE("nobody but a group has receives from anybody", "[ordered_group]") {
  RuntimeWorld world(Kind::kShm, 1);
  Floats data(2);
  CHECK_FALSE(world[0].start({message(0, K::kRecv, kAny, 1, &data)}).ok());
  const uint32_t group = must(world[0].open_group("any", {0}));
  CHECK_FALSE(world[0].start({message(group, K::kSend, kAny, 1, &data)}).ok());
}

}  // namespace rueda::testing
