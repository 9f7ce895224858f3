// What the recorder writes is what a reader finds, while and after it was written.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <set>
#include <thread>

#include <catch2/catch.hpp>

#include "launcher/observe/recorder_files.h"
#include "runtime/observe/flight/flight_reader.h"
#include "runtime/observe/flight/flight_recorder.h"

using namespace rueda;
using flight::FlightRecorder;
using flight::Path;
using flight::State;

namespace {

wire::Request request(const std::string& name, Shape shape = {3}) {
  wire::Request r;
  r.name = name;
  r.shape = std::move(shape);
  return r;
}

flight::Snapshot read(const FlightRecorder& recorder) {
  auto snapshot = flight::read_flight(recorder.memory());
  REQUIRE(snapshot.ok());
  return std::move(snapshot).value();
}

}  // namespace

TEST_CASE("a message has its peer, until nobody waits for it", "[flight]") {
  const auto recorder = FlightRecorder::open(-1, {2, 4, 7, "node1", "job1"});
  wire::Request message = request("recv.attention");
  message.kind = CollectiveKind::kRecv;
  const auto number = recorder->submitted(message, 0, 0, Path::kNegotiated, 0);
  recorder->submitted(request("allreduce.a"), 0, 0, Path::kNegotiated);
  flight::Snapshot s = read(*recorder);
  CHECK(s.operations.at(0).peer == 0);
  CHECK(s.operations.at(1).peer == -1);
  recorder->abandoned(number);
  s = read(*recorder);
  CHECK(s.operations.at(0).peer == -1);
  CHECK(s.operations.at(0).title() == "recv 'attention'");
  CHECK(s.operations.at(0).shape == Shape{3});
  CHECK_FALSE(s.operations.at(0).ended());
}

TEST_CASE("an operation is found with all that was said about it", "[flight]") {
  const auto recorder = FlightRecorder::open(-1, {2, 4, 7, "node1", "job1"});
  const uint32_t site = recorder->site("train.py:12 in step");
  CHECK(recorder->site("train.py:12 in step") == site);
  const auto a =
      recorder->submitted(request("allreduce.fc1", {128, 64}), 0, site, Path::kNegotiated);
  const auto b = recorder->submitted(request("allreduce.fc2", {}), 3, 0, Path::kNegotiated);
  recorder->cached(b);
  recorder->agreed(a, 100);
  recorder->started(a, 9, 110);
  recorder->ended(a, 150, true);
  const flight::Snapshot s = read(*recorder);
  CHECK(s.rank == 2);
  CHECK(s.size == 4);
  CHECK(s.epoch == 7);
  CHECK(s.host == "node1");
  CHECK(s.pid == getpid());
  CHECK(s.submitted == 2);
  CHECK(s.ended == 1);
  REQUIRE(s.operations.size() == 2);
  const flight::Operation& first = s.operations[0];
  CHECK(first.title() == "allreduce 'fc1'");
  CHECK(first.shape == Shape{128, 64});
  CHECK(first.bytes == 128 * 64 * 4);
  CHECK(first.site == "train.py:12 in step");
  CHECK(first.state == State::kDone);
  CHECK(first.batch == 9);
  CHECK(first.agreed_ns == 100);
  CHECK(first.started_ns == 110);
  CHECK(first.ended_ns == 150);
  CHECK(first.submitted_ns > 0);
  CHECK(s.operations[1].state == State::kSubmitted);
  CHECK(s.operations[1].path == Path::kCached);
  CHECK(s.operations[1].process_set == 3);
  CHECK(flight::waiting_since(recorder->memory()).size() == 1);
  recorder->ended(b, 160, false);
  CHECK(read(*recorder).operations[1].state == State::kFailed);
  CHECK(flight::waiting_since(recorder->memory()).empty());
}

TEST_CASE("the last 4096 operations stay, the counters go on", "[flight]") {
  const auto recorder = FlightRecorder::open(-1, {});
  FlightRecorder::RecordNumber first = 0;
  for (int i = 0; i < 10000; ++i) {
    const auto record =
        recorder->submitted(request("allreduce.n" + std::to_string(i)), 0, 0, Path::kNegotiated);
    if (i == 0) first = record;
    if (i != 0) recorder->ended(record, i, true);
  }
  flight::Snapshot s = read(*recorder);
  REQUIRE(s.operations.size() == flight::kRecords);
  CHECK(s.operations.front().name == "allreduce.n" + std::to_string(10000 - flight::kRecords));
  CHECK(s.operations.back().name == "allreduce.n9999");
  CHECK(s.submitted == 10000);
  CHECK(s.ended == 9999);
  recorder->ended(first, 1, true);  // overwritten long ago: counted, nobody else's record touched
  s = read(*recorder);
  CHECK(s.ended == 10000);
  for (const auto& operation : s.operations) CHECK(operation.state == State::kDone);
}

TEST_CASE("batches of a step plan are found by their tensors' names", "[flight]") {
  const auto recorder = FlightRecorder::open(-1, {});
  const wire::Request a = request("allreduce.a"), b = request("allreduce.b"),
                      c = request("broadcast.c");
  const uint64_t first = recorder->plan({&a, &b, &c}, 0, 5);
  const uint64_t x = recorder->entered(first, 2, 0, 1000);
  recorder->entered(first + 2, 1, 1, 2000);
  recorder->finished(x, 2);
  const flight::Snapshot s = read(*recorder);
  REQUIRE(s.operations.size() == 3);
  CHECK(s.operations[0].name == "allreduce.a");
  CHECK(s.operations[1].name == "allreduce.b");
  CHECK(s.operations[1].state == State::kDone);
  CHECK(s.operations[1].generation == 5);
  CHECK(s.operations[1].batch == 1);
  CHECK(s.operations[2].state == State::kStarted);
  CHECK(s.operations[2].batch == 2);
  CHECK(s.operations[2].submitted_ns == 2000);
  CHECK(s.planned == 2);
  CHECK(s.planned_tensors == 2);
}

TEST_CASE("the rank that was waited for longest is recorded", "[flight]") {
  const auto recorder = FlightRecorder::open(-1, {});
  CHECK(read(*recorder).waited_ms == 0);
  recorder->waited({3, 1.25, 7});
  const flight::Snapshot s = read(*recorder);
  CHECK(s.waited_rank == 3);
  CHECK(s.waited_ms == 1250);
}

TEST_CASE("names and places longer than their room keep what says most", "[flight]") {
  const auto recorder = FlightRecorder::open(-1, {});
  const std::string path = std::string(200, 'd') + "/train.py:7 in step";
  const uint32_t site = recorder->site(path);
  recorder->submitted(request("allreduce." + std::string(300, 'x')), 0, site, Path::kNegotiated);
  const flight::Snapshot s = read(*recorder);
  const std::string& name = s.operations[0].name;
  CHECK(name.size() == flight::kNameBytes);
  CHECK(name.starts_with("allreduce.xxx"));
  CHECK(name.find("xxx...xxx") != std::string::npos);
  CHECK(s.operations[0].site == path.substr(path.size() - flight::kSiteBytes));
}

TEST_CASE("names that differ are recorded as names that differ, however long they are",
          "[flight]") {
  const std::string layer = "allreduce.vision_model.encoder.layers.23.self_attn.out_proj.";
  const std::string deep = "allreduce." + std::string(200, 'a') + ".";
  const std::string end(200, 'z');
  const std::vector<std::string> names = {layer + "weight", layer + "bias",   deep + "weight",
                                          deep + "bias",    deep + "w" + end, deep + "b" + end};
  const auto recorder = FlightRecorder::open(-1, {});
  for (const std::string& name : names) recorder->submitted(request(name), 0, 0, Path::kNegotiated);
  const flight::Snapshot s = read(*recorder);
  REQUIRE(s.operations.size() == names.size());
  CHECK(s.operations[0].name == names[0]);
  CHECK(s.operations[1].name == names[1]);
  CHECK(s.operations[2].name.find(".weight #") != std::string::npos);
  std::set<std::string> recorded;
  for (const auto& operation : s.operations) recorded.insert(operation.name);
  CHECK(recorded.size() == names.size());
}

TEST_CASE("a reader beside busy writers sees whole records", "[flight]") {
  const auto recorder = FlightRecorder::open(-1, {});
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int w = 0; w < 2; ++w) {
    writers.emplace_back([&, w] {
      const std::string name = std::string(40, w == 0 ? 'a' : 'b');
      while (!stop) {
        const auto record = recorder->submitted(request(name), 0, 0, Path::kNegotiated);
        recorder->ended(record, 1, true);
      }
    });
  }
  size_t seen = 0, wrong = 0;
  for (int i = 0; i < 20 || seen == 0; ++i) {
    const flight::Snapshot s = flight::read_flight(recorder->memory()).value();
    for (const auto& operation : s.operations) {
      ++seen;
      if (operation.name != std::string(40, 'a') && operation.name != std::string(40, 'b')) ++wrong;
    }
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
  CHECK(seen > 0);
  CHECK(wrong == 0);
}

TEST_CASE("what a killed process did is read by who holds the memory", "[flight]") {
  auto memory = launcher::FlightMemory::make();
  REQUIRE(memory.ok());
  CHECK(flight::read_flight(memory.value().bytes()).status().code() == Code::kFailedPrecondition);
  const pid_t child = fork();
  if (child == 0) {
    const auto recorder = FlightRecorder::open(memory.value().fd(), {1, 2, 1, "h", ""});
    recorder->submitted(request("allreduce.last_words"), 0, 0, Path::kNegotiated);
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  const auto s = flight::read_flight(memory.value().bytes());
  REQUIRE(s.ok());
  CHECK(s.value().pid == child);
  REQUIRE(s.value().operations.size() == 1);
  CHECK(s.value().operations[0].name == "allreduce.last_words");
  // Another process does not write into it.
  const auto other = FlightRecorder::open(memory.value().fd(), {});
  CHECK_FALSE(other->is_shared());
}

TEST_CASE("who has left in order and ended leaves the memory to the next", "[flight]") {
  auto memory = launcher::FlightMemory::make();
  REQUIRE(memory.ok());
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    const auto recorder = FlightRecorder::open(memory.value().fd(), {1, 2, 1, "h", ""});
    recorder->submitted(request("allreduce.first"), 0, 0, Path::kNegotiated);
    recorder->leave();
    char byte = 0;
    while (read(ends[0], &byte, 1) > 0) {
    }
    _exit(0);
  }
  close(ends[0]);
  while (!flight::read_flight(memory.value().bytes()).ok() ||
         !flight::read_flight(memory.value().bytes()).value().left) {
  }
  CHECK_FALSE(FlightRecorder::open(memory.value().fd(), {})->is_shared());  // it may begin anew
  close(ends[1]);
  waitpid(child, nullptr, 0);
  const auto next = FlightRecorder::open(memory.value().fd(), {});
  CHECK(next->is_shared());
  const auto s = flight::read_flight(memory.value().bytes());
  REQUIRE(s.ok());
  CHECK(s.value().pid == getpid());
  CHECK(s.value().operations.empty());
}

TEST_CASE("mail reaches the rank whole, cut to its room", "[flight]") {
  auto memory = launcher::FlightMemory::make();
  const auto recorder = FlightRecorder::open(memory.value().fd(), {});
  REQUIRE(recorder->is_shared());
  CHECK(recorder->mail() == "");
  flight::write_mail(memory.value().bytes(), "rank 1 sleeps");
  CHECK(recorder->mail() == "rank 1 sleeps");
  flight::write_mail(memory.value().bytes(), std::string(10000, 'x'));
  CHECK(recorder->mail() == std::string(flight::kMailBytes, 'x'));
}
