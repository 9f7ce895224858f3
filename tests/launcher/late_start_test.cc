// Which ends of ssh and the like mean that a host is only late.
#include "launcher/hosts/late_start.h"

#include <catch2/catch.hpp>

using namespace rueda::launcher;
using std::chrono::milliseconds;

TEST_CASE("a host that nobody answers for yet is only late", "[late_start]") {
  constexpr int kRefused = 255 << 8, kCommand = 69 << 8, kKilled = 9, kWell = 0;
  struct Row {
    const char* program;
    int wait_status;
    const char* last_line;
    bool later;
  };
  const std::vector<Row> table = {
      {"ssh", kRefused, "ssh: Could not resolve hostname w-1: Name or service not known", true},
      {"/usr/bin/ssh", kRefused, "ssh: connect to host w-1 port 2222: Connection refused", true},
      {"ssh", kRefused, "ssh: connect to host w-1 port 22: No route to host", true},
      {"ssh", kRefused, "kex_exchange_identification: Connection closed by remote host", true},
      {"ssh", kRefused, "Connection reset by 10.0.0.2 port 22", true},
      {"ssh", kRefused, "ann@w-1: Permission denied (publickey).", false},
      {"ssh", kRefused, "Host key verification failed.", false},
      {"ssh", kRefused, "", false},
      // ssh was there: what follows is the command's.
      {"ssh", kCommand, "ruedarun: 10.0.0.9:4711: Connection refused", false},
      {"ssh", kCommand, "Connection refused", false},
      {"blaunch", 1 << 8, "w-1: Name or service not known", true},
      {"blaunch", kCommand, "ruedarun: 10.0.0.9:4711: Connection refused", false},
      {"ip", 1 << 8, "Cannot open network namespace \"w-1\": No such file or directory", false},
      {"ssh", kKilled, "Connection refused", false},
      {"ssh", kWell, "Connection refused", false},
  };
  for (const Row& row : table) {
    INFO(row.program << ": " << row.last_line);
    CHECK(may_come_later(row.program, row.wait_status, row.last_line) == row.later);
  }
}

TEST_CASE("pauses grow, up to a bound", "[late_start]") {
  const milliseconds expected[] = {milliseconds(500),  milliseconds(1000), milliseconds(2000),
                                   milliseconds(4000), milliseconds(5000), milliseconds(5000)};
  for (int tries = 1; tries <= 6; ++tries) CHECK(pause_before(tries) == expected[tries - 1]);
  CHECK(pause_before(1'000'000) == milliseconds(5000));
}
