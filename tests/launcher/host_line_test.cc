#include "launcher/controller/host_line.h"

#include <catch2/catch.hpp>

namespace rueda::launcher {
namespace {

control::ControllerMessage order(int signal) {
  control::ControllerMessage message;
  message.mutable_order()->set_signal(signal);
  return message;
}

}  // namespace

TEST_CASE("what was not acknowledged is kept, in order") {
  HostLine line;
  line.begin("secret");
  for (int number = 0; number < 5; ++number) line.said(order(number));
  line.acknowledged(2);
  line.acknowledged(1);  // said before, come later
  REQUIRE(line.kept().size() == 3);
  CHECK(line.kept().front().order().signal() == 2);
  line.acknowledged(100);  // more than was said
  CHECK(line.kept().empty());
}

TEST_CASE("what is heard is counted, and output is acknowledged as it comes") {
  HostLine line;
  line.begin("secret");
  line.heard();
  line.heard();
  CHECK_FALSE(line.heard_output(HostLine::kMostOutput - 1));
  CHECK(line.heard_output(1));
  CHECK(line.acknowledgement().received() == 2);
  CHECK(line.acknowledgement().output_received() == 2);
  CHECK_FALSE(line.heard_output(1));
  CHECK(line.resumed().output_received() == 3);
}

TEST_CASE("a line that has not begun, or has ended, keeps nothing") {
  HostLine line;
  line.said(order(1));
  line.heard();
  CHECK_FALSE(line.is_open());
  CHECK(line.kept().empty());
  line.begin("secret");
  line.said(order(1));
  line.end();
  CHECK_FALSE(line.is_open());
  CHECK(line.kept().empty());
  line.begin("another");
  CHECK(line.resumed().received() == 0);
}

}  // namespace rueda::launcher
