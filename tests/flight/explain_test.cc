// Who waits for whom, and where the ranks' ways part.
#include <catch2/catch.hpp>

#include "launcher/observe/flight_explain.h"
#include "launcher/observe/status_report.h"

using namespace rueda;
using launcher::RankRecord;
using launcher::Stacks;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

flight::Operation operation(const std::string& name, int64_t seconds, bool ended,
                            uint64_t batch = 0) {
  flight::Operation o;
  o.name = "allreduce." + name;
  o.shape = {3};
  o.submitted_ns = seconds * kSecond;
  o.state = ended ? flight::State::kDone : flight::State::kSubmitted;
  o.batch = batch;
  o.site = "train.py:" + std::to_string(name.size());
  return o;
}

RankRecord record(Rank rank, std::vector<flight::Operation> operations) {
  RankRecord r;
  r.rank = rank;
  r.flight.emplace();
  r.flight->rank = rank;
  r.flight->pid = 1000 + rank;
  r.flight->submitted = operations.size();
  r.flight->operations = std::move(operations);
  return r;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the missing rank is named with its last operation, its nearest name and its stacks",
          "[explain]") {
  RankRecord missing =
      record(1, {operation("gradient", 1, true, 1), operation("lonley", 9, true, 2)});
  missing.state = "blocked in read of descriptor 3";
  missing.stacks = "File \"data.py\", line 7 in load\n";
  const std::vector<RankRecord> ranks = {
      record(0, {operation("gradient", 1, true, 1), operation("lonely", 10, false)}), missing,
      record(2, {operation("gradient", 1, true, 1), operation("lonely", 11, false)})};
  const std::string text = joined(launcher::explain_waits(ranks, 70 * kSecond, 60, Stacks::kAll));
  has(text, "stalled for 60 s: allreduce 'lonely' float32[3] at train.py:6\n  in: ranks 0, 2\n");
  has(text, "not in: rank 1 (pid 1001) does something else: blocked in read of descriptor 3");
  has(text,
      "its last operation: allreduce 'lonley' float32[3] at train.py:6, submitted 61 s ago, ended");
  has(text, "the nearest name that it did submit: allreduce 'lonley'");
  has(text, "      File \"data.py\", line 7 in load");
  CHECK(launcher::explain_waits(ranks, 30 * kSecond, 60, Stacks::kAll).empty());
}

TEST_CASE("the nearest name is not the last one that is near", "[explain]") {
  const std::vector<RankRecord> ranks = {
      record(0, {operation("lonely", 10, false)}),
      record(1, {operation("lonley", 7, true, 1), operation("lonelier", 8, true, 2),
                 operation("bias", 9, true, 3)})};
  has(joined(launcher::explain_waits(ranks, 70 * kSecond, 60, Stacks::kAll)),
      "the nearest name that it did submit: allreduce 'lonley'");
}

TEST_CASE("a process set with the number of a removed one has its own members", "[explain]") {
  const auto in_set = [](flight::Operation o) {
    o.process_set = 1;
    return o;
  };
  const auto note = [&](const std::string& members, int64_t seconds) {
    flight::Operation o = in_set(operation("", seconds, true));
    o.kind = CollectiveKind::kProcessSet;
    o.name = members;
    return o;
  };
  const flight::Operation old = in_set(operation("old", 2, true, 1));
  const std::vector<RankRecord> ranks = {
      record(0, {note("0,1", 1), old, note("0,2", 5), in_set(operation("new", 6, false))}),
      record(1, {note("0,1", 1), old}), record(2, {note("0,2", 5)})};
  const std::string text = joined(launcher::explain_waits(ranks, 70 * kSecond, 60, Stacks::kNone));
  has(text, "in: rank 0\n  not in: rank 2 (pid 1002)");
  CHECK(text.find("rank 1") == std::string::npos);
  const std::string parts = joined(launcher::find_divergence(ranks));
  has(parts,
      "first divergence in process set 1:\n  rank 2 submitted nothing more\n"
      "  rank 0 submitted allreduce 'new'");
}

TEST_CASE("dead, silent and departed ranks are told apart", "[explain]") {
  std::vector<RankRecord> ranks = {record(0, {operation("a", 1, false)}), record(1, {}),
                                   record(2, {}), record(3, {})};
  ranks[1].life = RankRecord::Life::kDead;
  ranks[1].state = "killed by signal 9 (SIGKILL)";
  ranks[2].life = RankRecord::Life::kSilent;
  ranks[2].state = "stopped by a signal";
  ranks[3].life = RankRecord::Life::kLeft;
  ranks.push_back({});
  ranks[4].rank = 4;
  const std::string text = joined(launcher::explain_waits(ranks, 9 * kSecond, 1, Stacks::kNone));
  has(text, "rank 1 (pid 1001) dead: killed by signal 9 (SIGKILL)");
  has(text, "rank 2 (pid 1002) silent: stopped by a signal");
  has(text, "rank 3 (pid 1003) has left the job (shutdown)");
  has(text, "not in: rank 4 does something else\n    it has not initialised rueda");
}

TEST_CASE("ranks that wait in different operations point at each other", "[explain]") {
  const std::vector<RankRecord> ranks = {
      record(0, {operation("start", 1, true, 1), operation("a", 2, false)}),
      record(1, {operation("start", 1, true, 1), operation("b", 3, false)})};
  const auto waits = launcher::find_waits(ranks);
  REQUIRE(waits.size() == 2);
  CHECK(waits[0].operation.name == "allreduce.a");
  CHECK(waits[0].in == std::vector<Rank>{0});
  CHECK(waits[0].out == std::vector<Rank>{1});
  const std::string text = joined(launcher::find_divergence(ranks));
  has(text, "first divergence after allreduce 'start':");
  has(text, "rank 0 submitted allreduce 'a' float32[3]");
  has(text, "rank 1 submitted allreduce 'b' float32[3]");
}

TEST_CASE("ranks whose recorders reach back unequally far diverge where they differ", "[explain]") {
  const std::vector<RankRecord> ranks = {
      record(0, {operation("old", 1, true, 1), operation("start", 2, true, 2),
                 operation("a", 3, false)}),
      record(1, {operation("start", 2, true, 2), operation("b", 3, false)})};
  const std::string text = joined(launcher::find_divergence(ranks));
  has(text, "first divergence after allreduce 'start':");
  has(text, "rank 0 submitted allreduce 'a' float32[3]");
  has(text, "rank 1 submitted allreduce 'b' float32[3]");
}

TEST_CASE("the divergence is the first one, in its process set", "[explain]") {
  auto in_set = [](flight::Operation o) {
    o.process_set = 2;
    return o;
  };
  flight::Operation members = operation("", 0, true);
  members.kind = CollectiveKind::kProcessSet;
  members.process_set = 2;
  members.name = "0,2";
  const std::vector<RankRecord> ranks = {
      record(0, {members, operation("x", 1, true, 1), in_set(operation("p", 2, false)),
                 in_set(operation("q", 3, false))}),
      record(1, {operation("x", 1, true, 1)}),
      record(2, {operation("x", 1, true, 1), in_set(operation("p", 2, false))})};
  const std::string text = joined(launcher::find_divergence(ranks));
  has(text, "first divergence in process set 2 after allreduce 'p':\n");
  has(text, "rank 2 submitted nothing more");
  CHECK(text.find("rank 1") == std::string::npos);
  CHECK(launcher::find_divergence({ranks[1], record(0, {operation("x", 5, true, 1)})}).empty());
}

TEST_CASE("a divergence in a group is told by its key, and messages are none", "[explain]") {
  const auto in_group = [](flight::Operation o) {
    o.process_set = 77 | flight::kGroupBit;
    return o;
  };
  const auto message = [&](CollectiveKind kind, const std::string& name) {
    flight::Operation o = in_group(operation("", 2, true));
    o.kind = kind;
    o.name = name;
    return o;
  };
  flight::Operation members = in_group(operation("", 0, true));
  members.kind = CollectiveKind::kProcessSet;
  members.name = "0,1";
  const flight::Operation sent = message(CollectiveKind::kSend, "send.stage 1.1.0");
  const flight::Operation received = message(CollectiveKind::kRecv, "recv.stage 1.0.0");
  const flight::Operation first = in_group(operation("stage 1#0", 1, true, 1));
  CHECK(launcher::find_divergence(
            {record(0, {members, first, sent}), record(1, {members, first, received})})
            .empty());
  const std::string text = joined(launcher::find_divergence(
      {record(0, {members, first, sent, in_group(operation("stage 1#1", 3, false))}),
       record(1, {members, first, received})}));
  has(text, "first divergence in group 'stage 1' after allreduce 'stage 1#0':\n");
  has(text, "rank 0 submitted allreduce 'stage 1#1'");
}

TEST_CASE("who waits for a message waits for its peer", "[explain]") {
  const auto message = [](CollectiveKind kind, Rank peer, int64_t seconds) {
    flight::Operation o = operation("", seconds, false);
    o.kind = kind;
    o.name = kind == CollectiveKind::kSend ? "send.attention" : "recv.attention";
    o.peer = peer;
    return o;
  };
  const flight::Operation sent = message(CollectiveKind::kSend, 1, 4);
  const flight::Operation received = message(CollectiveKind::kRecv, 1, 3);
  const flight::Operation from_anybody = message(CollectiveKind::kRecv, -1, 1);
  const std::vector<RankRecord> ranks = {record(0, {from_anybody, sent, received}),
                                         record(1, {operation("attention", 2, true)}),
                                         record(2, {message(CollectiveKind::kRecv, 0, 2)})};
  const auto waits = launcher::find_waits(ranks);
  REQUIRE(waits.size() == 2);  // of the two messages to and from rank 1 the older
  CHECK(waits[0].in == std::vector<Rank>{2});
  CHECK(waits[0].out == std::vector<Rank>{0});
  CHECK(waits[1].since_ns == 3 * kSecond);
  const std::string text = joined(launcher::explain_waits(ranks, 9 * kSecond, 5, Stacks::kNone));
  has(text,
      "stalled for 6.0 s: recv 'attention' float32[3] from rank 1 at train.py:0\n  in: rank 0\n"
      "  not in: rank 1 (pid 1001) does something else\n"
      "    its last operation: allreduce 'attention'");
  has(text,
      "not in: rank 0 (pid 1000) does something else\n    its last operation: recv 'attention' "
      "float32[3] from rank 1");
  CHECK(text.find("nearest name") == std::string::npos);
  CHECK(text.find("submitted this name before") == std::string::npos);
}

TEST_CASE("the status names who is behind and who waits", "[explain]") {
  std::vector<flight::Operation> many(20, operation("g", 1, true, 1));
  std::vector<flight::Operation> some(5, operation("g", 1, true, 1));
  many.push_back(operation("tail \"quoted\"", 8, false));
  launcher::JobStatus job{
      "abc", "python train.py", 10 * kSecond, {record(0, many), record(1, some), record(2, many)}};
  const std::string text = launcher::status_text(job);
  has(text, "job abc: 3 ranks of python train.py");
  has(launcher::status_text({"abc", "python x.py", 1, {record(0, some)}}),
      "job abc: 1 rank of python x.py");
  has(text, "5 operations (behind)");
  has(text,
      "waiting for 2.0 s: allreduce 'tail \"quoted\"' float32[3] at train.py:13: ranks 0, 2 in, "
      "not in: rank 1");
  const std::string json = launcher::status_json(job);
  has(json, "\"behind\":[1]");
  has(json, "\"name\":\"allreduce.tail \\\"quoted\\\"\"");
}

TEST_CASE("the status names the rank that another one has waited for longest", "[explain]") {
  launcher::JobStatus job{"abc", "python train.py", 20 * kSecond, {record(0, {}), record(1, {})}};
  for (RankRecord& r : job.ranks) {
    r.flight->size = 2;
    r.flight->monotonic_ns = 10 * kSecond;
  }
  job.ranks[0].flight->waited_rank = 1;
  job.ranks[0].flight->waited_ms = 99;
  CHECK(launcher::status_text(job).find("slowest") == std::string::npos);  // below 1 %
  CHECK(launcher::status_json(job).find("slowest") == std::string::npos);
  job.ranks[0].flight->waited_ms = 2500;
  job.ranks[1].flight->waited_ms = 300;
  has(launcher::status_text(job),
      "slowest: rank 1: others slept 2.5 s until it came, 25 % of the time\n");
  has(launcher::status_json(job), "\"slowest\":{\"rank\":1,\"waited_ms\":2500,\"share\":0.250}");
  job.ranks[0].flight->waited_rank = 7;  // damaged: no rank of the job
  job.ranks[1].flight->waited_ms = 0;
  CHECK(launcher::status_text(job).find("slowest") == std::string::npos);
}
