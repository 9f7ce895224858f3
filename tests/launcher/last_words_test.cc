// What is remembered of a rank's stderr: its last lines, and of a traceback what tells the reason.
#include "launcher/output/last_words.h"

#include <catch2/catch.hpp>

using rueda::launcher::LastWords;
using Lines = std::vector<std::string>;

namespace {

Lines said(const Lines& lines) {
  LastWords words;
  for (const std::string& line : lines) words.add(line);
  return words.lines();
}

const std::string kHead = "Traceback (most recent call last):";
const std::string kUsers = "  File \"/home/me/train.py\", line 9, in <module>";
const std::string kLibrary =
    "  File \"/opt/lib/python3.11/site-packages/torch/nn.py\", line 5, in f";

}  // namespace

TEST_CASE("the last ten lines are remembered, empty ones left out", "[last_words]") {
  CHECK(said({"a", "", "  ", "b"}) == Lines{"a", "b"});
  Lines many;
  for (int i = 0; i < 30; ++i) many.push_back(std::to_string(i));
  CHECK(said(many) == Lines(many.end() - 10, many.end()));
  CHECK(said({std::string(1000, 'x')}).front().size() == 400);
}

TEST_CASE("warnings of rueda itself are no last words, its errors are", "[last_words]") {
  const std::string slow = "[2026-11-24 18:45:34.500] [W] [rank 0/2 coordinator] rank 1 is slow";
  const std::string error = "[2026-11-24 18:45:34.500] [E] [rank 0/2 init] no memory";
  CHECK(said({"a", slow, "[W] [rank 0/2 coordinator] rank 1 is slow", error, "[W]"}) ==
        Lines{"a", error, "[W]"});
}

TEST_CASE("of a traceback the user's line, the innermost one and the exception stay",
          "[last_words]") {
  CHECK(said({"loss is nan", kHead, "  File \"/home/me/train.py\", line 20, in <module>",
              "    main()", kUsers, "    step(batch)", "    ^^^^^^^^^^^", kLibrary, "    a()",
              kLibrary, "    b()", "  [Previous line repeated 3 more times]", kLibrary, "    c()",
              "ValueError: wrong shape"}) == Lines{"loss is nan", kHead, kUsers, "    step(batch)",
                                                   "  ...", kLibrary, "    c()",
                                                   "ValueError: wrong shape"});
  CHECK(said({kHead, kUsers, "    raise E", "E"}) == Lines{kHead, kUsers, "    raise E", "E"});
  CHECK(said({kHead, kUsers, kLibrary, "E"}) == Lines{kHead, kUsers, kLibrary, "E"});
  CHECK(said({kHead, kLibrary, "    c()", "E"}) == Lines{kHead, kLibrary, "    c()", "E"});
  const std::string typed = "  File \"<string>\", line 1, in <module>";  // python -c
  CHECK(said({kHead, typed, kLibrary, "E"}) == Lines{kHead, typed, kLibrary, "E"});
  CHECK(said({kHead, kUsers}) == Lines{kHead, kUsers});  // killed in mid-sentence
}

TEST_CASE("a long message does not push the user's line out", "[last_words]") {
  Lines lines = {kHead, kUsers, "    step()", "E: first"};
  for (int i = 0; i < 30; ++i) lines.push_back("  detail " + std::to_string(i));
  CHECK(said(lines) == Lines{kHead, kUsers, "    step()", "E: first", "  detail 0", "  detail 1",
                             "...", "  detail 28", "  detail 29"});
}

TEST_CASE("of an exception that led to another one its last lines stay", "[last_words]") {
  const std::string then = "During handling of the above exception, another exception occurred:";
  CHECK(said({"1", "2", "3", kHead, kUsers, "    a()", "KeyError: 'x'", "", then, "", kHead, kUsers,
              "    b()", "ValueError: y"}) ==
        Lines{kUsers, "    a()", "KeyError: 'x'", then, kHead, kUsers, "    b()", "ValueError: y"});
}
