#include <catch2/catch.hpp>

#include "collectives/base/utf8.h"
#include "collectives/host/monotonic.h"
#include "runtime/observe/timeline/layout.h"
#include "runtime/observe/timeline/recorder.h"
#include "runtime/observe/timeline/totals.h"
#include "tests/runtime/hostile_names.h"
#include "tests/support/folder.h"
#include "tests/support/json_reader.h"

namespace rueda::testing {
namespace {

using timeline::BatchRun;
using timeline::Event;
using timeline::Labels;
using timeline::Mark;
using timeline::Nanos;
using timeline::Recorder;
using timeline::Totals;

Event mark_event(timeline::LabelId label, Mark mark, Nanos time) {
  Event event;
  event.what = Event::What::kMark;
  event.label = label;
  event.mark = mark;
  event.time = time;
  return event;
}

// Events of one batch with a tensor of each hostile name, and of marks in all orders.
std::string written_by(timeline::Layout* layout, Labels* labels) {
  std::string text;
  layout->open(&text);
  Event batch;
  batch.what = Event::What::kBatch;
  batch.members = std::size(kHostile);
  batch.batch = {{2, 7}, CollectiveKind::kAllreduce, 160, 5000, {}, 9000};
  batch.batch.stages = {5100, {5200, 7000}, {5600, 8000}, {6000, 8900}};
  layout->add(batch, &text);
  for (const std::string& name : kHostile) {
    Event event;
    event.what = Event::What::kMember;
    event.label = labels->of_tensor("allreduce." + name, DType::kFloat32, {4});
    event.member = {4100, 4200, 16};
    layout->add(event, &text);
  }
  const auto span = labels->of_mark(kHostile[1]);
  layout->add(mark_event(span, Mark::kEnd, 4000), &text);
  layout->add(mark_event(span, Mark::kBegin, 4100), &text);
  layout->add(mark_event(span, Mark::kBegin, 4200), &text);
  layout->add(mark_event(span, Mark::kInstant, 4300), &text);
  layout->add(mark_event(span, Mark::kEnd, 4400), &text);
  layout->add(mark_event(labels->of_mark("backward"), Mark::kBegin, 4500), &text);
  layout->add(mark_event(labels->of_mark("backward"), Mark::kEnd, 4600), &text);
  Event cycle;
  cycle.time = 4700;
  layout->add(cycle, &text);
  Event arrival;
  arrival.what = Event::What::kArrival;
  arrival.label = labels->of_tensor("allreduce.plain", DType::kFloat32, {4});
  arrival.rank = 1;
  arrival.time = 9500;
  layout->add(arrival, &text);
  layout->lost(3, 9900, &text);
  return "[\n" + text + "\n]\n";
}

TEST_CASE("both layouts are JSON, whatever tensors and marks are called", "[timeline]") {
  Labels labels;
  const timeline::Origin origin{1, kHostile[2], 1000, 17, 0, 0};
  const std::string dialect = written_by(timeline::horovod_layout(&labels, origin).get(), &labels);
  const std::string tracks = written_by(timeline::tracks_layout(&labels, origin).get(), &labels);
  for (const std::string& text : {dialect, tracks}) {
    CHECK(JsonReader(text).whole());
    CHECK(is_valid_utf8(text));
    CHECK(text.find("start_time_since_epoch_in_micros\":17") != std::string::npos);
    CHECK(text.find("CYCLE_START") != std::string::npos);
    CHECK(text.find("3 events were lost") != std::string::npos);
  }
  CHECK(dialect.find("\"NEGOTIATE_ALLREDUCE\",\"ph\":\"B\"") != std::string::npos);
  CHECK(dialect.find("{\"dtype\":\"float32\",\"shape\":\"[4]\"}") != std::string::npos);
  for (const char* stage : {"submitted", "negotiated", "queued", "packed", "on the wire",
                            "unpacked", "backward", "marks"}) {
    CHECK(tracks.find("\"cat\":\"" + std::string(stage) + "\"") != std::string::npos);
  }
  CHECK(tracks.find("\"batch\":\"p2.7\"") != std::string::npos);
  CHECK(tracks.find("\"ts\":5.200,\"dur\":1.800") != std::string::npos);  // packed
}

TEST_CASE("another file begins with what later events refer to", "[timeline]") {
  Labels labels;
  const timeline::Origin origin{1, "rank 1", 1000, 17, 0, 0};
  for (const auto& layout :
       {timeline::horovod_layout(&labels, origin), timeline::tracks_layout(&labels, origin)}) {
    written_by(layout.get(), &labels);
    std::string text;
    layout->open(&text);
    CHECK(JsonReader("[\n" + text + "\n]\n").whole());
    CHECK(text.find("start_time_since_epoch_in_micros\":17") != std::string::npos);
    const bool names_rows = text.find("negotiated") != std::string::npos ||
                            text.find("allreduce.plain") != std::string::npos;
    CHECK(names_rows);
  }
}

TEST_CASE("packets are whole, whatever tensors and marks are called", "[timeline]") {
  Labels labels;
  const timeline::Origin origin{1, kHostile[3], 1000, 17, 0, 0};
  const auto layout = timeline::tracks_layout(&labels, origin, timeline::Form::kPackets);
  written_by(layout.get(), &labels);
  std::string bytes;
  layout->open(&bytes);
  layout->add(mark_event(labels.of_mark("later"), Mark::kInstant, 2000), &bytes);
  layout->flush(&bytes);
  CHECK(timeline::whole_packets(bytes).size() == bytes.size());
  for (const char* name : {"negotiated", "allreduce.plain", "on the wire", "later"})
    CHECK(bytes.find(name) != std::string::npos);
}

TEST_CASE("a span that is open at the end of a timeline is drawn up to there", "[timeline]") {
  Labels labels;
  const auto layout = timeline::tracks_layout(&labels, {0, "rank 0", 1000, 17, 0, 0});
  std::string text;
  layout->open(&text);
  layout->add(mark_event(labels.of_mark("backward"), Mark::kBegin, 2000), &text);
  layout->close(5000, &text);
  CHECK(JsonReader("[\n" + text + "\n]\n").whole());
  CHECK(text.find(R"("ts":2.000,"dur":3.000,"args":{"open":1})") != std::string::npos);
}

TEST_CASE("tensors of one name in several process sets are told apart", "[timeline]") {
  Labels labels;
  const auto everybodys = labels.of_tensor("allreduce.x", DType::kFloat32, {4});
  const auto the_sets = labels.of_tensor("allreduce.x", DType::kFloat32, {4}, 2);
  CHECK(everybodys != the_sets);
  CHECK(labels.of_tensor("allreduce.x", DType::kFloat32, {4}, 2) == the_sets);
  CHECK(labels.get(everybodys).name == "allreduce.x");
  CHECK(labels.get(the_sets).name == "allreduce.x (process set 2)");
}

TEST_CASE("clocks are aligned by the offset to rank 0's", "[timeline]") {
  Labels labels;
  timeline::Origin origin{1, "rank 1", 1000, 17, 5'000'000, 250};
  const auto layout = timeline::tracks_layout(&labels, origin);
  std::string text;
  layout->open(&text);
  CHECK(text.find("\"clock_offset_ns\":5000000,\"clock_error_ns\":250") != std::string::npos);
  Event event;
  event.time = 2000;
  layout->add(event, &text);
  CHECK(text.find("\"ts\":5002.000") != std::string::npos);
}

TEST_CASE("what began before the start is left out", "[timeline]") {
  Labels labels;
  const timeline::Origin late{0, "rank 0", 1'000'000, 17, 0, 0};
  for (const auto& layout :
       {timeline::horovod_layout(&labels, late), timeline::tracks_layout(&labels, late)}) {
    const std::string text = written_by(layout.get(), &labels);
    CHECK(text.find("\"ph\":\"X\"") == std::string::npos);
    CHECK(text.find("\"ph\":\"B\"") == std::string::npos);
    CHECK(text.find("CYCLE_START") == std::string::npos);
    CHECK(JsonReader(text).whole());
  }
}

TEST_CASE("a timeline is started, switched and stopped; nothing is lost at the end", "[timeline]") {
  Folder folder;
  const std::string first = folder.file("first.json");
  const std::string second = folder.file("second.json");
  Recorder recorder({0, "rank 0", 0, 0, 0, 0}, false);
  CHECK_FALSE(recorder.on());
  REQUIRE(recorder.start(first, false, true).ok());
  CHECK(recorder.on());
  recorder.mark("one", Mark::kInstant);
  recorder.cycle(host::monotonic_ns());
  REQUIRE(recorder.start(first, false, false).ok());  // the same: goes on
  recorder.mark("two", Mark::kInstant);
  recorder.cycle(host::monotonic_ns());
  REQUIRE(recorder.start(second, false, false).ok());
  recorder.mark("three", Mark::kInstant);
  recorder.stop();
  recorder.stop();
  CHECK_FALSE(recorder.on());
  recorder.mark("four", Mark::kInstant);
  const std::string one = folder.read("first.json");
  CHECK(JsonReader(one).whole());
  CHECK(one.find("\"one\",\"ph\":\"i\"") != std::string::npos);
  CHECK(one.find("\"two\"") != std::string::npos);
  CHECK(one.find("three") == std::string::npos);
  CHECK(one.find("CYCLE_START") == one.rfind("CYCLE_START"));
  CHECK(folder.read("second.json").find("three") != std::string::npos);
  CHECK(folder.read("second.json").find("two") == std::string::npos);
  REQUIRE(recorder.start(first, false, false).ok());  // written anew
  recorder.stop();
  CHECK(folder.read("first.json").find("one") == std::string::npos);
  CHECK_FALSE(recorder.start("no/such/folder/t.json", false, false).ok());
  CHECK_FALSE(recorder.on());
}

TEST_CASE("only rank 0 writes, unless each rank has its own file", "[timeline]") {
  Folder folder;
  const std::string shared = folder.file("all.json");
  Recorder other({1, "rank 1", 0, 0, 0, 0}, false);
  REQUIRE(other.start(shared, false, false).ok());
  CHECK_FALSE(other.on());
  CHECK_FALSE(folder.has("all.json"));
  REQUIRE(other.start(shared, true, false).ok());
  CHECK(other.on());
  CHECK(folder.has("all.rank1.json"));
}

TEST_CASE("communication under backward is what both have in common", "[summary]") {
  Totals totals(0);
  const auto run = [](Nanos begun, Nanos ended) {
    return BatchRun{{1, 0}, CollectiveKind::kAllreduce, 100, begun, {}, ended};
  };
  totals.end(Totals::kBackward, 5);  // no beginning
  totals.begin(Totals::kBackward, 1'000'000'000);
  totals.batch_begun(2'000'000'000);
  totals.batch_begun(3'000'000'000);  // both at once count once
  totals.batch_ended(run(2'000'000'000, 4'000'000'000));
  totals.end(Totals::kBackward, 5'000'000'000);
  totals.batch_ended(run(3'000'000'000, 8'000'000'000));
  totals.member(100, 200, 400);
  totals.batch_begun(9'000'000'000);
  totals.batch_dropped(9'000'000'000);  // its step plan was revoked
  const wire::RankSummary sum = totals.sum(10'000'000'000);
  CHECK(sum.seconds == Approx(10));
  CHECK(sum.busy_seconds == Approx(6));
  CHECK(sum.overlapped_seconds == Approx(3));
  CHECK(sum.batches == 2);
  CHECK(sum.planned_batches == 2);
  CHECK(sum.bytes == 200);
  CHECK(sum.stages[Totals::kBackward].seconds == Approx(4));
  CHECK(sum.stages[Totals::kSubmitted].seconds == Approx(100e-9));
  CHECK(sum.stages[Totals::kNegotiated].seconds == Approx(200e-9));
}

}  // namespace
}  // namespace rueda::testing
