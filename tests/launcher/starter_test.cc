// What the process that starts an agent says is kept for who asks why its host is not there.
#include "launcher/controller/starter.h"

#include <sys/wait.h>

#include <catch2/catch.hpp>

using rueda::launcher::Starter;

namespace {

// One that has said this and ended; the lines that it handed on.
std::unique_ptr<Starter> ended_after(const std::string& script, std::vector<std::string>* lines) {
  auto starter = Starter::start("far", {"sh", "-c", script}, {"PATH=/usr/bin:/bin"}, "", false);
  REQUIRE(starter.ok());
  int status = 0;
  REQUIRE(waitpid(starter.value()->pid(), &status, 0) == starter.value()->pid());
  starter.value()->ended(status);
  starter.value()->pump([&](const std::string& line) { lines->push_back(line); });
  return std::move(starter).value();
}

}  // namespace

TEST_CASE("an agent's table of addresses belongs to its message", "[hosts]") {
  std::vector<std::string> lines;
  const auto starter = ended_after(
      "echo 'Warning: one'; echo 'ruedarun: no controller; tried:'; echo '  a:1  no answer'; "
      "echo '  b:1  Connection refused'; exit 69",
      &lines);
  CHECK(lines.size() == 4);
  CHECK(starter->describe() ==
        "host far cannot be started: sh exited with code 69: "
        "ruedarun: no controller; tried:  a:1  no answer  b:1  Connection refused");
  CHECK_FALSE(starter->may_come_later());  // it was refused over there, not on the way there
}

TEST_CASE("a host that refuses the connection may come later", "[hosts]") {
  std::vector<std::string> lines;
  const auto starter = ended_after("echo '  odd'; echo 'far: Connection refused'; exit 1", &lines);
  CHECK(starter->last_message() == "far: Connection refused");
  CHECK(starter->may_come_later());
}
