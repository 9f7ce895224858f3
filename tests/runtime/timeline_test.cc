#include <catch2/catch.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "collectives/base/timeline_file.h"
#include "proto/utf8.h"
#include "runtime/timeline/event_ring.h"
#include "runtime/timeline/json_array_file.h"
#include "runtime/timeline/layout.h"
#include "runtime/timeline/recorder.h"
#include "runtime/timeline/totals.h"

namespace rueda::testing {
namespace {

using timeline::BatchRun;
using timeline::Event;
using timeline::json_quoted;
using timeline::JsonArrayFile;
using timeline::Labels;
using timeline::Mark;
using timeline::Nanos;
using timeline::Recorder;
using timeline::Totals;

// Reads one JSON value strictly; only says whether it is one.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}
  bool whole() {
    const bool good = value();
    space();
    return good && at_ == text_.size();
  }

 private:
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    for (; at_ < text_.size(); ++at_) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c < 0x20) return false;
      if (c == '"') return ++at_, true;
      if (c != '\\') continue;
      if (++at_ >= text_.size()) return false;
      if (text_[at_] == 'u') {
        for (int i = 0; i < 4; ++i) {
          if (++at_ >= text_.size() || !std::isxdigit(static_cast<unsigned char>(text_[at_])))
            return false;
        }
      } else if (std::string_view("\"\\/bfnrt").find(text_[at_]) == std::string_view::npos) {
        return false;
      }
    }
    return false;
  }
  bool list(char end, bool named) {
    if (take(end)) return true;
    do {
      if (named && !(string() && take(':'))) return false;
      if (!value()) return false;
    } while (take(','));
    return take(end);
  }
  bool value() {
    space();
    if (at_ >= text_.size()) return false;
    if (text_[at_] == '"') return string();
    if (take('{')) return list('}', true);
    if (take('[')) return list(']', false);
    const size_t begin = at_;
    if (text_[at_] == '-') ++at_;
    while (at_ < text_.size() &&
           (std::isdigit(static_cast<unsigned char>(text_[at_])) || text_[at_] == '.'))
      ++at_;
    return at_ > begin;
  }

  std::string_view text_;
  size_t at_ = 0;
};

class Folder {
 public:
  Folder() {
    char name[] = "timeline_test.XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Folder() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  std::string file(const std::string& name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

const std::string kHostile[] = {"plain",
                                "with \"quotes\" and \\",
                                "line\nbreak\ttab\x01\x7f",
                                "\xff\xfe not text",
                                "cut \xe2\x82",
                                "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x92\x83",
                                "\xed\xa0\x80",
                                "{rank}",
                                "",
                                "</script>%s%n"};

TEST_CASE("any bytes become a JSON string in UTF-8", "[timeline]") {
  for (const std::string& text : kHostile) {
    const std::string quoted = json_quoted(text);
    INFO(quoted);
    CHECK(JsonReader(quoted).whole());
    CHECK(wire::is_valid_utf8(quoted));
  }
  CHECK(json_quoted("a\"b\\c\n") == "\"a\\\"b\\\\c\\u000a\"");
  CHECK(json_quoted("\xff\x41\xe2\x82") == "\"?A??\"");
  CHECK(json_quoted("\xe2\x82\xac") == "\"\xe2\x82\xac\"");
  CHECK(json_quoted(std::string(1, '\0')) == "\"\\u0000\"");
}

TEST_CASE("the file is a whole JSON array after every append", "[timeline]") {
  Folder folder;
  const std::string path = folder.file("trace.json");
  JsonArrayFile file = std::move(JsonArrayFile::create(path)).value();
  CHECK(JsonReader(read(path)).whole());
  for (int i = 0; i < 300; ++i) {
    const std::string event = "{\"n\":" + std::to_string(i) + ",\"pad\":\"" +
                              std::string(static_cast<size_t>(i * 7 % 400), 'x') + "\"}";
    REQUIRE(file.append(i % 3 == 0 ? event + ",\n" + event : event).ok());
    REQUIRE(JsonReader(read(path)).whole());
  }
  REQUIRE(file.append("").ok());
  CHECK(read(path).ends_with("\n]\n"));
}

TEST_CASE("a file that cannot be written is an error that names it", "[timeline]") {
  for (const char* path : {"no/such/folder/trace.json", "/dev/full"}) {
    const auto file = JsonArrayFile::create(path);
    REQUIRE_FALSE(file.ok());
    CHECK(file.status().message().find(path) != std::string::npos);
  }
}

TEST_CASE("a file cut at any byte still gives its whole events", "[timeline]") {
  const std::string events = "{\"name\":\"a]\"},\n{\"b\":[1,2]},\n{\"c\":{}}";
  const std::string text = "[\n" + events + "\n]\n";
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    const std::string cut = text.substr(0, bytes);
    const std::string again = "[\n" + std::string(whole_events(cut)) + "\n]\n";
    INFO(cut);
    CHECK(JsonReader(again).whole());
    CHECK((bytes < 18 || again.find("a]") != std::string::npos));
  }
  CHECK(whole_events(text) == events);
  CHECK(whole_events("[\n]\n").empty());
  CHECK(whole_events(text.substr(0, text.size() - 3) + std::string("\0\0", 2)).size() <=
        events.size());
  CHECK(whole_events("not a timeline").empty());
}

TEST_CASE("who writes which file", "[timeline]") {
  CHECK_FALSE(timeline_file("", true, 0));
  CHECK_FALSE(timeline_file("DYNAMIC", true, 0));
  CHECK_FALSE(timeline_file("t.json", false, 1));
  const auto alone = timeline_file("t.json", false, 0);
  CHECK((alone->path == "t.json" && !alone->all_ranks));
  const auto own = timeline_file("a/{rank}.json", false, 3);
  CHECK((own->path == "a/3.json" && own->all_ranks));
  CHECK(timeline_file("a.b/t.json", true, 3)->path == "a.b/t.rank3.json");
  CHECK(timeline_file("a.b/trace", true, 3)->path == "a.b/trace.rank3");
  CHECK(timeline_file(".hidden", true, 3)->path == ".hidden.rank3");
  CHECK(timeline_file("t.{rank}.json", true, 3)->path == "t.3.json");
}

TEST_CASE("events of many threads come out once each, in the order of each thread", "[timeline]") {
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  timeline::EventRing ring(256);
  std::vector<std::thread> threads;
  for (Rank thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&ring, thread] {
      for (int i = 0; i < kEach; ++i) {
        Event event;
        event.rank = thread;
        event.time = i;
        ring.push(event);
      }
    });
  }
  std::vector<Nanos> last(kThreads, -1);
  uint64_t got = 0;
  uint64_t lost = 0;
  bool ordered = true;
  while (got + lost < kThreads * kEach) {
    Event event;
    if (ring.pop(&event)) {
      ordered = ordered && event.time > last[static_cast<size_t>(event.rank)];
      last[static_cast<size_t>(event.rank)] = event.time;
      ++got;
    } else {
      lost += ring.take_lost();
      std::this_thread::yield();
    }
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ordered);
  Event event;
  CHECK_FALSE(ring.pop(&event));
}

TEST_CASE("a full ring drops and counts", "[timeline]") {
  timeline::EventRing ring(8);
  for (int i = 0; i < 20; ++i) ring.push(Event());
  CHECK(ring.take_lost() == 12);
  CHECK(ring.take_lost() == 0);
  Event event;
  for (int i = 0; i < 8; ++i) CHECK(ring.pop(&event));
  CHECK_FALSE(ring.pop(&event));
  ring.push(event);
  CHECK(ring.pop(&event));
}

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
  const std::string lanes = written_by(timeline::lanes_layout(&labels, origin).get(), &labels);
  for (const std::string& text : {dialect, lanes}) {
    CHECK(JsonReader(text).whole());
    CHECK(wire::is_valid_utf8(text));
    CHECK(text.find("start_time_since_epoch_in_micros\":17") != std::string::npos);
    CHECK(text.find("CYCLE_START") != std::string::npos);
    CHECK(text.find("3 events were lost") != std::string::npos);
  }
  CHECK(dialect.find("\"NEGOTIATE_ALLREDUCE\",\"ph\":\"B\"") != std::string::npos);
  CHECK(dialect.find("{\"dtype\":\"float32\",\"shape\":\"[4]\"}") != std::string::npos);
  for (const char* stage : {"submitted", "negotiated", "queued", "packed", "on the wire",
                            "unpacked", "backward", "marks"}) {
    CHECK(lanes.find("\"cat\":\"" + std::string(stage) + "\"") != std::string::npos);
  }
  CHECK(lanes.find("\"batch\":\"p2.7\"") != std::string::npos);
  CHECK(lanes.find("\"ts\":5.200,\"dur\":1.800") != std::string::npos);  // packed
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
  const auto layout = timeline::lanes_layout(&labels, origin);
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
  for (const auto& layout : {timeline::horovod_layout(&labels, late), timeline::lanes_layout(&labels, late)}) {
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
  recorder.cycle(communicator::stage_clock());
  REQUIRE(recorder.start(first, false, false).ok());  // the same: goes on
  recorder.mark("two", Mark::kInstant);
  recorder.cycle(communicator::stage_clock());
  REQUIRE(recorder.start(second, false, false).ok());
  recorder.mark("three", Mark::kInstant);
  recorder.stop();
  recorder.stop();
  CHECK_FALSE(recorder.on());
  recorder.mark("four", Mark::kInstant);
  const std::string one = read(first);
  CHECK(JsonReader(one).whole());
  CHECK(one.find("\"one\",\"ph\":\"i\"") != std::string::npos);
  CHECK(one.find("\"two\"") != std::string::npos);
  CHECK(one.find("three") == std::string::npos);
  CHECK(one.find("CYCLE_START") == one.rfind("CYCLE_START"));
  CHECK(read(second).find("three") != std::string::npos);
  CHECK(read(second).find("two") == std::string::npos);
  REQUIRE(recorder.start(first, false, false).ok());  // written anew
  recorder.stop();
  CHECK(read(first).find("one") == std::string::npos);
  CHECK_FALSE(recorder.start("no/such/folder/t.json", false, false).ok());
  CHECK_FALSE(recorder.on());
}

TEST_CASE("only rank 0 writes, unless each rank has its own file", "[timeline]") {
  Folder folder;
  const std::string shared = folder.file("all.json");
  Recorder other({1, "rank 1", 0, 0, 0, 0}, false);
  REQUIRE(other.start(shared, false, false).ok());
  CHECK_FALSE(other.on());
  CHECK_FALSE(exists(shared));
  const std::string own = folder.file("all.rank1.json");
  REQUIRE(other.start(shared, true, false).ok());
  CHECK(other.on());
  CHECK(exists(own));
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
