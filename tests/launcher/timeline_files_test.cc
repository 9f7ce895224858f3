#include "launcher/job/timeline_files.h"

#include <catch2/catch.hpp>

#include "tests/support/folder.h"

using namespace rueda::launcher;
using rueda::testing::Folder;

TEST_CASE("the ranks' parts become one file, cut ones too", "[timeline_files]") {
  const Folder folder;
  folder.write("t.rank0.json", "[\n{\"a\":1},\n{\"a\":2}\n]\n");
  folder.write("t.rank1.json", "[\n{\"b\":1},\n{\"b\":");
  CHECK(finish_timelines({folder.file("t.json"), true, 2}).empty());
  CHECK(folder.read("t.json") == "[\n{\"a\":1},\n{\"a\":2},\n{\"b\":1}\n]\n");
  CHECK_FALSE(folder.has("t.rank0.json"));
  CHECK_FALSE(folder.has("t.rank1.json"));
}

TEST_CASE("parts of packets become one file of the whole ones", "[timeline_files]") {
  const Folder folder;
  const std::string one(
      "\x0a\x01"
      "a",
      3),
      two("\x0a\x02"
          "bb",
          4);
  folder.write("t.rank0.pftrace", one + two);
  folder.write("t.rank1.pftrace", two +
                                      "\x0a\x05"
                                      "cut");
  folder.write("t.rank1.pftrace.rueda-rewritten", "left by a kill");
  CHECK(finish_timelines({folder.file("t.pftrace"), true, 2}).empty());
  CHECK(folder.read("t.pftrace") == one + two + two);
  for (const char* part : {"t.rank0.pftrace", "t.rank1.pftrace", "t.rank1.pftrace.rueda-rewritten"})
    CHECK_FALSE(folder.has(part));
}

TEST_CASE("what a killed rank wrote in part is cut off a file of packets", "[timeline_files]") {
  const Folder folder;
  const std::string one(
      "\x0a\x01"
      "a",
      3);
  folder.write("0.pftrace", one +
                                "\x0a\x05"
                                "cut");
  folder.write("1.pftrace", one);
  folder.write("2.pftrace", "not ours");
  CHECK(finish_timelines({folder.file("{rank}.pftrace"), false, 3}).empty());
  CHECK(folder.read("0.pftrace") == one);
  CHECK(folder.read("1.pftrace") == one);
  CHECK(folder.read("2.pftrace") == "not ours");
}

TEST_CASE("a rank without a part is named", "[timeline_files]") {
  const Folder folder;
  folder.write("t.rank1.json", "[\n{\"b\":1}\n]\n");
  const auto said = finish_timelines({folder.file("t.json"), true, 2});
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("nothing of rank 0") != std::string::npos);
  CHECK(folder.read("t.json") == "[\n{\"b\":1}\n]\n");
  const auto none = finish_timelines({folder.file("other.json"), true, 2});
  REQUIRE(none.size() == 1);
  CHECK(none[0].find("no rank has begun one") != std::string::npos);
  CHECK_FALSE(folder.has("other.json"));
}

TEST_CASE("a file that a killed rank left open is closed, others are left alone",
          "[timeline_files]") {
  const Folder folder;
  folder.write("0", "[\n{\"a\":1},\n{\"a\"");
  folder.write("1", "[\n{\"a\":1}\n]\n");
  folder.write("2", "not ours");
  folder.write("3", "");
  CHECK(finish_timelines({folder.file("{rank}"), false, 5}).empty());
  CHECK(folder.read("0") == "[\n{\"a\":1}\n]\n");
  CHECK(folder.read("1") == "[\n{\"a\":1}\n]\n");
  CHECK(folder.read("2") == "not ours");
  CHECK(folder.read("3").empty());
  folder.write("alone", "[\n{\"a\":1}");
  CHECK(finish_timelines({folder.file("alone"), false, 5}).empty());
  CHECK(folder.read("alone") == "[\n]\n");
  CHECK(finish_timelines({"", true, 5}).empty());
  CHECK(finish_timelines({"DYNAMIC", true, 5}).empty());
}

TEST_CASE("parts of an earlier job are not taken for this one's", "[timeline_files]") {
  const Folder folder;
  folder.write("t.rank0.json", "[\n{\"old\":1}\n]\n");
  folder.write("{rank}", "kept");
  remove_stale_parts({folder.file("t.json"), true, 2});
  CHECK_FALSE(folder.has("t.rank0.json"));
  folder.write("0", "kept");
  remove_stale_parts({folder.file("{rank}"), true, 2});
  CHECK(folder.has("0"));
}

TEST_CASE("a file that cannot be written keeps the parts", "[timeline_files]") {
  const Folder folder;
  folder.write("t.rank0.json", "[\n{\"a\":1}\n]\n");
  std::filesystem::create_directory(folder.file("t.json"));
  const auto said = finish_timelines({folder.file("t.json"), true, 1});
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("cannot write the timeline") != std::string::npos);
  CHECK(folder.has("t.rank0.json"));
}
