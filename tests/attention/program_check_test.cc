// Every plan's programs are right, and the check finds each kind of fault that is planted.
#include <algorithm>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "attention/program_check.h"
#include "tests/attention/specs.h"

namespace rueda::testing {
using namespace attention;
namespace {

std::vector<Program> world_of(bool backward, Rank ulysses = 1) {
  AttentionSpec spec;
  spec.length = 96;
  spec.ranks = 4;
  spec.ulysses = ulysses;
  spec.heads = spec.kv_heads = 4;
  spec.head_dim = 8;
  spec.chunk_tokens = 8;
  spec.rotate_forward = spec.rotate_backward = Rotate::kKeysAndValues;
  std::vector<Program> world;
  for (Rank rank = 0; rank < spec.ranks; ++rank)
    world.push_back(make_program(plan_of(spec, rank), backward));
  return world;
}

// The n-th instruction of a kind that is (not) of an answer.
size_t nth(const Program& program, Op op, int n, bool answer = false) {
  for (size_t i = 0; i < program.list.size(); ++i) {
    if (program.list[i].op == op && program.list[i].answer == answer && n-- == 0) return i;
  }
  throw std::runtime_error("there are not so many");
}

void found(const Status& status, const std::string& what) {
  INFO(status.message());
  CHECK(!status.ok());
  CHECK(status.message().find(what) != std::string::npos);
}

}  // namespace

TEST_CASE("programs of every plan are right", "[attention]") {
  for (int trial = 0; trial < 300; ++trial) {
    SpecMaker maker(static_cast<uint64_t>(trial));
    const AttentionSpec spec = maker.spec(200, 8);
    const Status status = check_spec(spec);
    INFO("seed " << trial << ": " << status.message());
    CHECK(status.ok());
  }
  CHECK(check_programs(world_of(false)).ok());
  CHECK(check_programs(world_of(true, 2)).ok());
}

TEST_CASE("a program has the plan's messages, and allocates what the report says", "[attention]") {
  for (int trial = 0; trial < 200; ++trial) {
    SpecMaker maker(static_cast<uint64_t>(trial) + 1000);
    AttentionSpec spec = maker.spec(120, 6);
    for (Rank rank = 0; rank < spec.ranks; ++rank) {
      const AttentionPlan plan = plan_of(spec, rank);
      for (const bool backward : {false, true}) {
        const Program program = make_program(plan, backward);
        int64_t messages = 0, sent = 0, received = 0;
        for (const Instruction& one : program.list) {
          if (!one.moves()) continue;
          const int64_t bytes = program.buffers[static_cast<size_t>(one.message)].bytes;
          messages += one.op == Op::kSend ? 1 : 0;
          (one.op == Op::kSend ? sent : received) += bytes;
        }
        const PlanReport& r = plan.report;
        INFO("seed " << trial << ", rank " << rank);
        CHECK(messages == (backward ? r.messages_sent_backward : r.messages_sent_forward));
        CHECK(sent == (backward ? r.bytes_sent_backward : r.bytes_sent_forward));
        CHECK(received == (backward ? r.bytes_received_backward : r.bytes_received_forward));
        if (spec.ulysses == 1)
          CHECK(program.peak_bytes() <= (backward ? r.workspace_backward : r.workspace_forward));
      }
    }
  }
}

TEST_CASE("reading what is not written or is freed is found", "[attention]") {
  auto world = world_of(false);
  Program& program = world[1];
  const size_t attend = nth(program, Op::kReceive, 1);
  SECTION("a dependency on the message is missing") {
    for (Instruction& one : program.list) {
      std::erase(one.after, static_cast<int>(attend));
    }
    found(check_programs(world), "may run before instruction");
  }
  SECTION("the message never comes") {
    program.list[attend].writes.clear();
    found(check_programs(world), "which nothing has written");
  }
  SECTION("a buffer is freed before it is read") {
    const int message = program.list[attend].message;
    for (size_t i = 0; i + 1 < program.list.size(); ++i) {
      if (program.list[i].op != Op::kAttend || program.list[i].message != message) continue;
      std::swap(program.list[i], program.list[i + 1]);
      program.list[i].after = program.list[i + 1].after;
      break;
    }
    found(check_programs(world), "which is freed");
  }
  SECTION("a message is overwritten while it is sent") {
    const size_t send = nth(program, Op::kSend, 0);
    for (Instruction& one : program.list) std::erase(one.after, static_cast<int>(send));
    found(check_programs(world), "may still read it");
  }
  SECTION("two messages lie in one slot") {
    const int first = program.list[nth(program, Op::kReceive, 0)].message;
    const int second = program.list[nth(program, Op::kReceive, 1)].message;
    program.buffers[static_cast<size_t>(second)].slot =
        program.buffers[static_cast<size_t>(first)].slot;
    found(check_programs(world), "still lies");
  }
  SECTION("a slot is taken before it is free") {
    const auto slot = program.buffers[static_cast<size_t>(program.list[attend].message)].slot;
    int freed = -1;
    for (size_t i = 0; i < program.list.size() && freed < 0; ++i) {
      const Instruction& one = program.list[i];
      if (one.op == Op::kFree && program.buffers[static_cast<size_t>(one.message)].slot == slot)
        freed = static_cast<int>(i);
    }
    for (Instruction& one : program.list) std::erase(one.after, freed);
    found(check_programs(world), "before its slot is free");
  }
  SECTION("a message is larger than its slot") {
    program.slots[static_cast<size_t>(
        program.buffers[static_cast<size_t>(program.list[attend].message)].slot)] = 8;
    found(check_programs(world), "larger than its slot");
  }
}

TEST_CASE("what is left allocated, freed twice or not written is found", "[attention]") {
  auto world = world_of(true);
  Program& program = world[2];
  const size_t last = program.list.size() - 1;
  REQUIRE(program.list[last].op == Op::kFree);
  SECTION("left") {
    program.list.pop_back();
    found(check_programs(world), "never freed");
  }
  SECTION("twice") {
    program.list.push_back(program.list[last]);
    found(check_programs(world), "twice");
  }
  SECTION("a result is not written") {
    for (Instruction& one : program.list)
      for (std::vector<int>* buffers : {&one.reads, &one.writes})
        std::erase(*buffers, program.find(Role::kDk));
    found(check_programs(world), "never written");
  }
  SECTION("an input is written") {
    program.list[last].writes = {program.find(Role::kQ)};
    found(check_programs(world), "an input");
  }
  SECTION("an instruction depends on a later one") {
    program.list[0].after = {5};
    found(check_programs(world), "depends on what comes later");
  }
}

TEST_CASE("messages without their other end, and deadlocks, are found", "[attention]") {
  for (const Rank ulysses : {1, 2}) {
    auto world = world_of(true, ulysses);
    Program& program = world[0];
    SECTION("sent to somebody else, ulysses " + std::to_string(ulysses)) {
      Instruction& send = program.list[nth(program, Op::kSend, 0)];
      send.peer = (send.peer + 1) % 4;
      found(check_programs(world), "");
    }
    SECTION("of another size, ulysses " + std::to_string(ulysses)) {
      const Instruction& send = program.list[nth(program, Op::kSend, 0)];
      program.buffers[static_cast<size_t>(send.message)].bytes -= 4;
      found(check_programs(world), "meets another message");
    }
    SECTION("an answer is not received, ulysses " + std::to_string(ulysses)) {
      program.list[nth(program, Op::kSend, 0, true)].op = Op::kClear;
      found(check_programs(world), "does not send it");
    }
  }
  SECTION("everybody sends before anybody receives") {
    // Each rank of two waits until its message has left before it posts its receive.
    std::vector<Program> world(2);
    for (Rank rank : {0, 1}) {
      Program& p = world[static_cast<size_t>(rank)];
      p.rank = rank;
      p.buffers = {{Role::kMessage, Home::kSlot, 0, 8}, {Role::kMessage, Home::kSlot, 0, 8}};
      p.slots = {8};
      const Rank peer = 1 - rank;
      p.list = {{.op = Op::kPack, .peer = peer, .message = 0, .writes = {0}},
                {.op = Op::kSend, .peer = peer, .message = 0, .reads = {0}, .after = {0}},
                {.op = Op::kFree, .message = 0, .after = {0, 1}},
                {.op = Op::kReceive, .peer = peer, .message = 1, .writes = {1}, .after = {2}},
                {.op = Op::kFree, .message = 1, .after = {3}}};
    }
    CHECK(check_program(world[0]).ok());
    found(check_programs(world), "deadlock");
    // With a slot for each, the receive may be posted first.
    for (Program& p : world) {
      p.slots = {8, 8};
      p.buffers[1].slot = 1;
      std::rotate(p.list.begin(), p.list.begin() + 3, p.list.begin() + 4);
      p.list[0].after = {};
      p.list[2].after = {1};
      p.list[3].after = {1, 2};
      p.list[4].after = {0};
    }
    const Status status = check_programs(world);
    INFO(status.message());
    CHECK(status.ok());
  }
}

TEST_CASE("a program prints as a line for each instruction", "[attention]") {
  const Program program = world_of(true)[1];
  const std::string text = as_text(program);
  CHECK(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) == program.list.size() + 1);
  CHECK(text.find("rank 1, backward: ") == 0);
  CHECK(text.find("receive exchange 0 from rank 0  b") != std::string::npos);
  CHECK(text.find("send exchange 0 to rank 0, answer") != std::string::npos);
  CHECK(text.find("attend own keys, before exchange 0") != std::string::npos);
  for (const Op op : {Op::kPack, Op::kMerge, Op::kFree, Op::kDelta, Op::kClear})
    CHECK(text.find(std::string("  ") + name_of(op)) != std::string::npos);
}

TEST_CASE("a plan's programs are made once, and its copies have them too", "[attention]") {
  AttentionSpec spec;
  spec.length = 64;
  spec.ranks = spec.ulysses = 2;
  spec.heads = spec.kv_heads = 2;
  spec.head_dim = 8;
  const AttentionPlan plan = plan_of(spec, 1), copy = plan;
  const Program& first = program_of(plan, true);
  CHECK(&program_of(plan, true) == &first);
  CHECK(&program_of(copy, true) == &first);
  CHECK(as_text(first) == as_text(make_program(plan, true)));
  CHECK(&program_of(plan, false) != &first);
  CHECK(as_text(program_of(plan, false, true)) == as_text(make_program(plan, false, true)));
  CHECK(as_text(program_of(plan, false, true)) != as_text(program_of(plan, false)));
}

}  // namespace rueda::testing
