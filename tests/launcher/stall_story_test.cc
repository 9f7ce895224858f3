// A stall's explanation is said once, and again when there is something new in it.
#include "launcher/observe/stall_story.h"

#include <catch2/catch.hpp>

using rueda::launcher::StallStory;
using Lines = std::vector<std::string>;

namespace {

Lines stall(const std::string& age, const std::string& state, const std::string& address) {
  return {"stalled for " + age + ": allreduce 'x' float32[3]",
          "  in: rank 0",
          "  not in: rank 1 (pid 7) does something else: " + state,
          "    its last operation: allreduce 'y', submitted " + age + " ago, ended",
          "    its stacks:",
          "      Current thread 0x01 (most recent call first):",
          "        File \"train.py\", line 5 in <module>",
          "      native stack (newest first):",
          "        work + " + address + " in python",
          "        main + 0x1 in python"};
}

}  // namespace

TEST_CASE("the same explanation is a line, a changed one is told in full", "[stall_story]") {
  StallStory story;
  const Lines first = stall("61 s", "computing", "0x5");
  CHECK(story.tell(first, true) == first);
  CHECK(story.tell(stall("122 s", "computing", "0x99"), false) ==
        Lines{"still stalled for 122 s: allreduce 'x' float32[3], as before"});
  const Lines changed = stall("244 s", "blocked in read of descriptor 3", "0x5");
  CHECK(story.tell(changed, false) == changed);
  CHECK(story.tell(changed, false).size() == 1);
  CHECK(story.tell(changed, true) == changed);  // another stall that looks the same
}

TEST_CASE("several waits that go on are counted", "[stall_story]") {
  StallStory story;
  Lines lines = stall("61 s", "computing", "0x5");
  for (const std::string& line : stall("60 s", "computing", "0x5")) lines.push_back(line);
  story.tell(lines, true);
  CHECK(
      story.tell(lines, false) ==
      Lines{
          "still stalled for 61 s: allreduce 'x' float32[3], as before, and so 1 more operation"});
}
