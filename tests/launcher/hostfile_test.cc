// What users write after -H, in hostfiles, and what Slurm says.
#include "launcher/job/hostfile.h"

#include <catch2/catch.hpp>

using namespace rueda::launcher;

namespace {

std::string shown(const rueda::Result<std::vector<HostSlots>>& hosts) {
  if (!hosts.ok()) return "! " + hosts.status().message();
  std::string text;
  for (const HostSlots& host : hosts.value()) {
    text += (text.empty() ? "" : " ") + (host.user.empty() ? "" : host.user + "@") + host.host +
            (host.port == 0 ? "" : "#" + std::to_string(host.port)) + "=" +
            std::to_string(host.slots);
  }
  return text;
}

std::string from_file(const std::string& text) { return shown(parse_hostfile(text, "hosts")); }

}  // namespace

TEST_CASE("hosts after -H", "[hostfile]") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"a,b:4,[fe80::1]:2,fe80::2", "a=1 b=4 fe80::1=2 fe80::2=1"},
      {"node[1-3]:8", "node1=8 node2=8 node3=8"},
      {"node[01-02,09]:2,x", "node01=2 node02=2 node09=2 x=1"},
      {"rack[1-2].lab", "rack1.lab=1 rack2.lab=1"},
      {"ann@h1:2", "ann@h1=2"},
      {"a:2,a:2", "a=4"},
      {"a:", "! -H 'a:': slots are missing after ':'"},
      {"a:x", "! -H 'a:x': 'x' is no number of slots"},
      {"a:0", "! -H 'a:0': '0' is no number of slots"},
      {"a:-1", "! -H 'a:-1': '-1' is no number of slots"},
      {"a:99999999999", "! -H 'a:99999999999': '99999999999' is no number of slots"},
      {":2", "! -H ':2': the host is missing before ':'"},
      {"[]:2", "! -H '[]:2': the host is missing before ':'"},
      {"[::1:2", "! -H '[::1:2': the closing ] is missing"},
      {"[::1]x", "! -H '[::1]x': expected [address]:slots"},
      {",a", "! -H ',a': empty part; expected host:slots,host:slots"},
      {"a,", "! -H 'a,': empty part; expected host:slots,host:slots"},
      {"node[3-1]", "! -H 'node[3-1]': '3-1' is no range of numbers"},
      {"node[1-x]", "! -H 'node[1-x]': '1-x' is no range of numbers"},
      {"node[1-999999999]", "! -H 'node[1-999999999]': more than 65536 hosts"},
      {"-oProxyCommand=x",
       "! -H '-oProxyCommand=x': '-oProxyCommand=x' is no name of a host "
       "(letters, digits and . _ : - only)"},
      {"a b", "! -H 'a b': 'a b' is no name of a host (letters, digits and . _ : - only)"},
      {"a;rm", "! -H 'a;rm': 'a;rm' is no name of a host (letters, digits and . _ : - only)"},
      {"$(x)", "! -H '$(x)': '$(x)' is no name of a host (letters, digits and . _ : - only)"},
  };
  for (const auto& [hosts, expected] : table) CHECK(shown(parse_hosts(hosts)) == expected);
}

TEST_CASE("hostfiles of every style", "[hostfile]") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"h1 slots=4\nh2 slots=2 max_slots=8\n", "h1=4 h2=2"},
      {"h1 slots = 4\r\nh2\tslots =2", "h1=4 h2=2"},
      {"# all of them\n\nh1:4 # the fast one\n  h2:2\n", "h1=4 h2=2"},
      {"h1\nh1\nh2\nh1\n", "h1=3 h2=1"},
      {"ann@h1 slots=2 port=2222\nh2 user=bob gpus=8", "ann@h1#2222=2 bob@h2=8"},
      {"h1 gpus=8 slots=4", "h1=4"},
      {"node[01-03] slots=2", "node01=2 node02=2 node03=2"},
      {"[fd00::1]:2\nfd00::2 slots=3", "fd00::1=2 fd00::2=3"},
      {"h1 max-slots=4", "h1=1"},
      {"", "! hosts: names no host"},
      {"# nothing\n", "! hosts: names no host"},
      {"h1\nh2 slots=x\n", "! hosts:2: 'x' is no number of slots"},
      {"h1 slots=4 slots", "! hosts:1: 'slots': expected slots=N, port=N or user=NAME"},
      {"h1 colour=red",
       "! hosts:1: unknown word 'colour' (known: slots, max_slots, gpus, port, user)"},
      {"h1:4 slots=4", "! hosts:1: slots are given twice"},
      {"h1 port=70000", "! hosts:1: '70000' is no port"},
      {"-h slots=1", "! hosts:1: '-h' is no name of a host (letters, digits and . _ : - only)"},
      {std::string("h1\0x\n", 5), "! hosts:1: a zero byte: this is no text"},
  };
  for (const auto& [text, expected] : table) CHECK(from_file(text) == expected);
}

TEST_CASE("what Slurm says of a job's nodes", "[hostfile]") {
  const auto slurm = [](const std::string& nodes, const std::string& tasks) {
    return shown(parse_slurm(nodes, tasks));
  };
  CHECK(slurm("n[1-3],gpu7", "4(x3),2") == "n1=4 n2=4 n3=4 gpu7=2");
  CHECK(slurm("n1", "8") == "n1=8");
  CHECK(slurm("n[1-2]", "2,1") == "n1=2 n2=1");
  CHECK(slurm("n[1-2]", "2") ==
        "! SLURM_TASKS_PER_NODE '2': fewer hosts than in SLURM_JOB_NODELIST");
  CHECK(slurm("n1", "2(x2)") ==
        "! SLURM_TASKS_PER_NODE '2(x2)': more hosts than in SLURM_JOB_NODELIST");
  CHECK(slurm("n1", "2(x") == "! SLURM_TASKS_PER_NODE '2(x': expected numbers as in 4(x2),2");
}
