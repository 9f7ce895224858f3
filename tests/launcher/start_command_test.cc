// How agents are started, and the ticket they are given.
#include "launcher/hosts/start_command.h"

#include <catch2/catch.hpp>

#include "launcher/hosts/ticket.h"

using namespace rueda::launcher;
using Words = std::vector<std::string>;

TEST_CASE("ssh is called with one word per argument and asks nothing", "[start_command]") {
  StartRequest request;
  request.host = {"node1", 4, "ann", 0};
  request.host_index = 1;
  request.program = "/opt/my tools/ruedarun";
  request.ssh_port = 2222;
  request.identity_file = "/home/ann/a key";
  const auto words = start_command(request);
  REQUIRE(words.ok());
  CHECK(words.value() == Words{"ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-T",
                               "-p", "2222", "-i", "/home/ann/a key", "-l", "ann", "--", "node1",
                               "'/opt/my tools/ruedarun'", "agent", "--host-index", "1"});
}

TEST_CASE("another command is called as it is written", "[start_command]") {
  StartRequest request;
  request.host.host = "h1";
  request.program = "/opt/my tools/ruedarun";
  request.rsh_agent = "ip netns exec";
  CHECK(start_command(request).value() ==
        Words{"ip", "netns", "exec", "h1", "/opt/my tools/ruedarun", "agent", "--host-index", "0"});
  request.rsh_agent = "ssh -F '/a b/config'";
  CHECK(start_command(request).value() ==
        Words{"ssh", "-F", "/a b/config", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5",
              "-T", "--", "h1", "'/opt/my tools/ruedarun'", "agent", "--host-index", "0"});
  request.host.host = "-oProxyCommand=x";
  CHECK_FALSE(start_command(request).ok());
  request.host.host = "h1";
  request.rsh_agent = "ssh 'x";
  CHECK_THAT(start_command(request).status().message(), Catch::Contains("a quote is not closed"));
}

TEST_CASE("a command line is cut into words as a shell would", "[start_command]") {
  CHECK(split_words("a  'b c' \"d \\\" e\" f\\ g").value() == Words{"a", "b c", "d \" e", "f g"});
  CHECK(split_words("''").value() == Words{""});
  CHECK(quote_for_shell("it's") == "'it'\\''s'");
  CHECK(quote_for_shell("/a/b-c_1.x") == "/a/b-c_1.x");
  CHECK(quote_for_shell("") == "''");
}

TEST_CASE("a ticket survives the way, and a damaged one is refused", "[ticket]") {
  Ticket ticket;
  ticket.job_id = "0123456789abcdef";
  ticket.token = std::string(64, 'a');
  ticket.addresses = {"10.0.0.1:4711", "[fd00::1]:4711"};
  ticket.authority = "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n";
  ticket.certificate = "-----BEGIN CERTIFICATE-----\nBB\n-----END CERTIFICATE-----\n";
  ticket.private_key = "-----BEGIN PRIVATE KEY-----\nCC\n-----END PRIVATE KEY-----\n";
  const std::string text = write_ticket(ticket);
  const auto read = read_ticket(text);
  REQUIRE(read.ok());
  CHECK(read.value().job_id == ticket.job_id);
  CHECK(read.value().token == ticket.token);
  CHECK(read.value().addresses == ticket.addresses);
  CHECK(read.value().authority == ticket.authority);
  CHECK(read.value().certificate == ticket.certificate);
  CHECK(read.value().private_key == ticket.private_key);
  for (size_t size = 0; size < text.size(); ++size)
    CHECK_FALSE(read_ticket(text.substr(0, size)).ok());
  CHECK_FALSE(read_ticket(text + "x").ok());
  CHECK_FALSE(read_ticket(std::string(kMaxTicketBytes + 1, 'x')).ok());
  std::string other = text;
  other.replace(other.find("token a"), 7, "token Z");
  CHECK_FALSE(read_ticket(other).ok());
  other = text;
  other.replace(0, other.find('\n'), "rueda ticket 1");
  CHECK(
      read_ticket(other).status().message() ==
      "this ticket is of version 1, this program reads version 2: use the same rueda on all hosts");
  other.replace(0, other.find('\n'), "ssh: \x1b[1m");
  CHECK(read_ticket(other).status().message() ==
        "this is no ticket of a rueda job: its first line is not \"rueda ticket 2\"");
  CHECK(same_secret("abc", "abc"));
  CHECK_FALSE(same_secret("abc", "abd"));
  CHECK_FALSE(same_secret("abc", "ab"));
}
