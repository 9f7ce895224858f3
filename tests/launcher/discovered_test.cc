// What a host discovery script may print, and that one wrong line refuses it all.
#include "launcher/job/discovered.h"

#include <catch2/catch.hpp>

namespace rueda::launcher {
namespace {

std::string shown(std::string_view text, int slots_per_host = 0) {
  const auto hosts = parse_discovered(text, slots_per_host);
  if (!hosts.ok()) return hosts.status().message();
  std::string out;
  for (const HostSlots& host : hosts.value())
    out += host.host + "=" + std::to_string(host.slots) + " ";
  return out;
}

TEST_CASE("a discovered host is a line with or without slots", "[discovery]") {
  CHECK(shown("a:2\nb:3\n") == "a=2 b=3 ");
  CHECK(shown("b:3\na:2") == "b=3 a=2 ");
  CHECK(shown("\n  a.b-c_d : 1\n") == "line 2: 'a.b-c_d ' is no name of a host");
  CHECK(shown("\n\n  a:2  \r\n\t\nb\n", 4) == "a=2 b=4 ");
  CHECK(shown("[fd00::1]:2\n[::1]\n", 1) == "fd00::1=2 ::1=1 ");
  CHECK(shown("a:65536\nb:0\nc:1") == "a=65536 c=1 ");
  CHECK(shown("") == "");
  CHECK(shown("\n \n") == "");
}

TEST_CASE("one wrong line refuses all that was discovered, and is named", "[discovery]") {
  CHECK(shown("a:1\nb:x\n") == "line 2: 'x' is no number of slots, 0 to 65536");
  CHECK(shown("a:-1") == "line 1: '-1' is no number of slots, 0 to 65536");
  CHECK(shown("a:65537") == "line 1: '65537' is no number of slots, 0 to 65536");
  CHECK(shown("a:") == "line 1: '' is no number of slots, 0 to 65536");
  CHECK(shown("a:1 # one") == "line 1: '1 # one' is no number of slots, 0 to 65536");
  CHECK(shown("a:1\n\nb c:1") == "line 3: 'b c' is no name of a host");
  CHECK(shown(":4") == "line 1: '' is no name of a host");
  CHECK(shown("-oProxyCommand=x:1").find("is no name of a host") != std::string::npos);
  CHECK(shown("a$(touch x):1").find("is no name of a host") != std::string::npos);
  CHECK(shown(std::string_view("a\0b:1", 5)) == "line 1: 'a?b' is no name of a host");
  CHECK(shown("a:1\nb:2\na:3\n") == "line 3: 'a' is there twice");
  CHECK(shown("a:0\na:1\n") == "line 2: 'a' is there twice");
  CHECK(shown("a:2\nb") ==
        "line 2: 'b' has no number of slots; print host:slots, or say --slots-per-host N");
  CHECK(shown("fd00::1:2") ==
        "line 1: expected host:slots, found 'fd00::1:2'; an IPv6 address is written [fd00::1]:2");
  CHECK(shown("[fd00::1:2") == "line 1: ']' is missing in '[fd00::1:2'");
  CHECK(shown("[fd00::1]2") == "line 1: expected [address]:slots, found '[fd00::1]2'");
  CHECK(shown(std::string(300, 'a')).find(std::string(80, 'a') + "...'") != std::string::npos);
  CHECK(shown(std::string(kMostDiscoveredBytes, '\n')) == "");
  CHECK(shown(std::string(kMostDiscoveredBytes + 1, '\n')) == "more than 1 MiB");
}

}  // namespace
}  // namespace rueda::launcher
