#include <catch2/catch.hpp>

#include <algorithm>
#include <thread>
#include <vector>

#include "collectives/base/utf8.h"
#include "runtime/observe/timeline/event_ring.h"
#include "runtime/observe/timeline/gzip_member.h"
#include "runtime/observe/timeline/json_array_file.h"
#include "runtime/observe/timeline/last_seconds.h"
#include "runtime/observe/timeline/timeline_file.h"
#include "tests/runtime/hostile_names.h"
#include "tests/support/folder.h"
#include "tests/support/json_reader.h"

namespace rueda::testing {
namespace {

using timeline::Event;
using timeline::json_quoted;
using timeline::JsonArrayFile;
using timeline::Nanos;

TEST_CASE("any bytes become a JSON string in UTF-8", "[timeline]") {
  for (const std::string& text : kHostile) {
    const std::string quoted = json_quoted(text);
    INFO(quoted);
    CHECK(JsonReader(quoted).whole());
    CHECK(is_valid_utf8(quoted));
  }
  CHECK(json_quoted("a\"b\\c\n") == "\"a\\\"b\\\\c\\u000a\"");
  CHECK(json_quoted("\xff\x41\xe2\x82") == "\"?A??\"");
  CHECK(json_quoted("\xe2\x82\xac") == "\"\xe2\x82\xac\"");
  CHECK(json_quoted(std::string(1, '\0')) == "\"\\u0000\"");
}

TEST_CASE("the file is a whole JSON array after every append", "[timeline]") {
  Folder folder;
  JsonArrayFile file = std::move(JsonArrayFile::create(folder.file("trace.json"))).value();
  CHECK(JsonReader(folder.read("trace.json")).whole());
  for (int i = 0; i < 300; ++i) {
    const std::string event = "{\"n\":" + std::to_string(i) + ",\"pad\":\"" +
                              std::string(static_cast<size_t>(i * 7 % 400), 'x') + "\"}";
    REQUIRE(file.append(i % 3 == 0 ? event + ",\n" + event : event).ok());
    REQUIRE(JsonReader(folder.read("trace.json")).whole());
  }
  REQUIRE(file.append("").ok());
  CHECK(folder.read("trace.json").ends_with("\n]\n"));
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
    const std::string again = "[\n" + std::string(timeline::whole_events(cut)) + "\n]\n";
    INFO(cut);
    CHECK(JsonReader(again).whole());
    CHECK((bytes < 18 || again.find("a]") != std::string::npos));
  }
  CHECK(timeline::whole_events(text) == events);
  CHECK(timeline::whole_events("[\n]\n").empty());
  CHECK(timeline::whole_events(text.substr(0, text.size() - 3) + std::string("\0\0", 2)).size() <=
        events.size());
  CHECK(timeline::whole_events("not a timeline").empty());
}

TEST_CASE("packets cut at any byte are those that are whole", "[timeline]") {
  std::string bytes;
  std::vector<size_t> ends = {0};
  for (const size_t length : {0, 1, 127, 128, 300}) {
    bytes += '\x0a';
    if (length >= 128) bytes += static_cast<char>(length | 0x80);
    bytes += static_cast<char>(length >= 128 ? length >> 7 : length);
    bytes += std::string(length, '\x0a');
    ends.push_back(bytes.size());
  }
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const size_t end = *(std::upper_bound(ends.begin(), ends.end(), cut) - 1);
    CHECK(timeline::whole_packets(std::string_view(bytes).substr(0, cut)).size() == end);
  }
  CHECK(timeline::whole_packets("no packets").empty());
  CHECK(timeline::whole_packets("\x0a" + std::string(10, '\xff') + "\x01").empty());
}

TEST_CASE("gzip members cut at any byte are those that are whole", "[timeline]") {
  const auto gzip = std::move(timeline::Gzip::open()).value();
  std::string bytes;
  std::vector<size_t> ends = {0};
  for (const char* text : {"", "once", "and again"}) {
    REQUIRE(gzip->append_member(text, &bytes).ok());
    ends.push_back(bytes.size());
  }
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const size_t end = *(std::upper_bound(ends.begin(), ends.end(), cut) - 1);
    CHECK(timeline::whole_members(std::string_view(bytes).substr(0, cut)).size() == end);
  }
  CHECK(timeline::whole_members(bytes.substr(1)).empty());
}

TEST_CASE("a file of any form can lose its beginning", "[timeline]") {
  const Folder folder;
  const std::string packet(
      "\x0a\x03"
      "abc",
      5);
  {
    auto file = std::move(JsonArrayFile::create(folder.file("t.json"))).value();
    REQUIRE(file.append(R"({"old":1})").ok());
    const uint64_t kept = *file.boundary();
    REQUIRE(file.append(R"({"new":2})").ok());
    CHECK(file.keep_from(kept, R"({"head":0})").value() == 2 + 10);
    CHECK(folder.read("t.json") == "[\n{\"head\":0},\n{\"new\":2}\n]\n");
    REQUIRE(file.append(R"({"next":3})").ok());
    CHECK(folder.read("t.json") == "[\n{\"head\":0},\n{\"new\":2},\n{\"next\":3}\n]\n");
  }
  const auto file = std::move(timeline::create_event_file(
                                  {folder.file("t.pftrace"), true, timeline::Form::kPackets}))
                        .value();
  REQUIRE(file->append("old").ok());
  const uint64_t kept = *file->boundary();
  REQUIRE(file->append(packet).ok());
  CHECK(file->keep_from(kept, "head").value() == 4);
  REQUIRE(file->append(packet).ok());
  CHECK(folder.read("t.pftrace") == "head" + packet + packet);
  std::filesystem::create_directory(folder.file("t.pftrace" + std::string(timeline::kRewritten)));
  CHECK_FALSE(file->keep_from(4, "").ok());
  CHECK(folder.read("t.pftrace") == "head" + packet + packet);
}

TEST_CASE("the last seconds are kept, and at most as many more", "[timeline]") {
  timeline::LastSeconds everything(0);
  everything.note(0, 0);
  everything.note(1'000'000, 100);
  CHECK_FALSE(everything.cut(2'000'000, true));

  timeline::LastSeconds last(1000);
  for (Nanos now = 0; now < 2000; now += 100) {
    last.note(now, static_cast<uint64_t>(now));
    CHECK_FALSE(last.cut(now, false));
  }
  CHECK(last.cut(2050, false) == 1000u);  // what was recorded since 1000, which is 50 too much
  last.moved(1000, 7);
  CHECK_FALSE(last.cut(2080, false));
  CHECK(last.cut(2800, true) == 807u);  // that was at 1800
  CHECK_FALSE(last.cut(2800, true));
}

TEST_CASE("who writes which file", "[timeline]") {
  CHECK_FALSE(timeline::timeline_file("", true, 0));
  CHECK_FALSE(timeline::timeline_file("DYNAMIC", true, 0));
  CHECK_FALSE(timeline::timeline_file("t.json", false, 1));
  const auto alone = timeline::timeline_file("t.json", false, 0);
  CHECK((alone->path == "t.json" && !alone->all_ranks));
  const auto own = timeline::timeline_file("a/{rank}.json", false, 3);
  CHECK((own->path == "a/3.json" && own->all_ranks));
  CHECK(timeline::timeline_file("a.b/t.json", true, 3)->path == "a.b/t.rank3.json");
  CHECK(timeline::timeline_file("a.b/trace", true, 3)->path == "a.b/trace.rank3");
  CHECK(timeline::timeline_file(".hidden", true, 3)->path == ".hidden.rank3");
  CHECK(timeline::timeline_file("t.{rank}.json", true, 3)->path == "t.3.json");
  const auto compressed = timeline::timeline_file("a.b/t.pftrace.gz", true, 3);
  CHECK(compressed->path == "a.b/t.rank3.pftrace.gz");
  CHECK(compressed->form == timeline::Form::kCompressedPackets);
  CHECK(timeline::timeline_file("t.perfetto-trace", true, 3)->path == "t.rank3.perfetto-trace");
  CHECK(timeline::timeline_file("t.perfetto-trace", false, 0)->in_tracks());
  CHECK_FALSE(timeline::timeline_file("t.json.gz", false, 0)->in_tracks());
  CHECK(timeline::form_of("t.pftrace.json") == timeline::Form::kJson);
  CHECK(timeline::form_of("t.json.gz") == timeline::Form::kJson);
  CHECK(timeline::form_of(".perfetto-trace") == timeline::Form::kPackets);
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

}  // namespace
}  // namespace rueda::testing
