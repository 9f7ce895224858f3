#include <catch2/catch.hpp>

#include <thread>
#include <vector>

#include "collectives/base/utf8.h"
#include "runtime/observe/timeline/event_ring.h"
#include "runtime/observe/timeline/json_array_file.h"
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
