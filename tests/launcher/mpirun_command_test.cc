// What mpirun is started with, and what is refused under it.
#include "launcher/mpi/mpirun_command.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "launcher/job/rank_environment.h"
#include "launcher/mpi/installation.h"

using namespace rueda;
using namespace rueda::launcher;
using Words = std::vector<std::string>;

namespace {

Options parse(Words words) {
  words.insert(words.begin(), {"--mpi", "-np", "4"});
  words.insert(words.end(), {"python", "train.py", "--mpi"});
  auto options = parse_options(words, "1");
  REQUIRE(options.ok());
  return options.value();
}

MpirunRequest request(const Words& words, const std::vector<HostSlots>& hosts = {}) {
  MpirunRequest out;
  out.options = parse(words);
  out.hosts = plan_hosts(4, hosts, {"here"}, "-H").value();
  out.hosts_given = !hosts.empty();
  out.several_hosts = hosts.size() > 1;
  out.mpirun = "/opt/bin/mpirun";
  out.own_host = "here.example";
  out.rendezvous_port = 20001;
  out.threads = 2;
  out.environment = {"A=1", "API_TOKEN=x", "RUEDA_KEY_FILE=/k"};
  return out;
}

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string refusal(const MpirunRequest& wrong) {
  const auto command = mpirun_command(wrong);
  REQUIRE_FALSE(command.ok());
  return command.status().message();
}

}  // namespace

TEST_CASE("without hosts as many ranks are started here as are asked for", "[mpirun]") {
  const auto command = mpirun_command(request({"--grace-period", "2.5"})).value();
  CHECK(joined(command.words) ==
        "/opt/bin/mpirun -np 4 --oversubscribe --map-by slot --bind-to none --stdin none "
        "--tag-output "
        "--mca odls_base_sigkill_timeout 3 python train.py --mpi");
  CHECK(find_variable(command.environment, "OMP_NUM_THREADS") == std::string("2"));
  CHECK(find_variable(command.environment, "RUEDA_RENDEZVOUS") == nullptr);
}

TEST_CASE("output, standard input and more arguments are handed on", "[mpirun]") {
  auto asked = request({"--no-prefix", "--prefix-timestamp", "--output-filename", "out", "--stdin",
                        "2", "--mpi-args", "--mca btl 'self,tcp'"},
                       {{"here", 4, "", 0}});
  asked.root = true;
  CHECK(
      joined(mpirun_command(asked).value().words) ==
      "/opt/bin/mpirun -np 4 --allow-run-as-root --host here:4 --map-by slot --bind-to none "
      "--stdin 2 "
      "--timestamp-output --output-filename out:nojobid --mca btl self,tcp python train.py --mpi");
}

TEST_CASE("who binds is asked once", "[mpirun]") {
  const auto line = [](const Words& words) {
    return joined(mpirun_command(request(words)).value().words);
  };
  CHECK_THAT(line({"--bind", "numa"}), Catch::Contains("--map-by slot --bind-to numa "));
  CHECK_THAT(line({"--bind", "core", "--mpi-args", "--bind-to socket"}),
             Catch::Contains("--bind-to socket ") && !Catch::Contains("--bind-to core"));
  CHECK_THAT(line({"--mpi-args", "-rankfile f"}),
             !Catch::Contains("--bind-to") && !Catch::Contains("--map-by"));
}

TEST_CASE("other hosts get names of variables, never a value or a secret", "[mpirun]") {
  const auto command =
      mpirun_command(request({"-p", "2222", "-i", "key", "--network-interfaces", "=ib0,=eth0"},
                             {{"here", 2, "", 0}, {"node2", 2, "", 0}}))
          .value();
  const std::string line = joined(command.words);
  CHECK_THAT(line, Catch::Contains("--host here:2,node2:2 "));
  CHECK_THAT(line, Catch::Contains("--mca plm_rsh_args -p 2222 -i key "));
  CHECK_THAT(line, Catch::Contains("--mca btl_tcp_if_include ib0,eth0 "));
  CHECK_THAT(line, Catch::Contains("-x A "));
  CHECK_THAT(line, Catch::Contains("-x RUEDA_KEY_FILE "));
  CHECK_THAT(line, !Catch::Contains("API_TOKEN"));
  CHECK(find_variable(command.environment, "RUEDA_RENDEZVOUS") ==
        std::string("here.example:20001"));
}

TEST_CASE("several hosts need a key, and names that Open MPI can read", "[mpirun]") {
  auto asked = request({}, {{"node1", 2, "", 0}, {"node2", 2, "", 0}});
  CHECK(mpirun_command(asked).ok());
  CHECK_THAT(refusal(request({"--bind", "0:1:2:3"})), Catch::Contains("--rankfile"));
  asked.environment.clear();
  CHECK_THAT(refusal(asked), Catch::Contains("RUEDA_KEY_FILE") && Catch::Contains("umask 077"));
  CHECK_THAT(refusal(request({}, {{"fd00::1", 2, "", 0}, {"node2", 2, "", 0}})),
             Catch::Contains("host fd00::1"));
  CHECK_THAT(refusal(request({}, {{"node1", 2, "ann", 0}, {"node2", 2, "", 0}})),
             Catch::Contains("~/.ssh/config"));
  CHECK_THAT(refusal(request({"--network-interfaces", "eth"}, {{"a", 2, "", 0}, {"b", 2, "", 0}})),
             Catch::Contains("=eth"));
}

TEST_CASE("what only our own agents can do is refused", "[mpirun]") {
  const std::vector<Words> all = {{"--ranks", "0"},
                                  {"--token-file", "f"},
                                  {"--listen-port", "1"},
                                  {"--remote-ruedarun", "r"},
                                  {"--silence-timeout", "9"},
                                  {"--summary"},
                                  {"--fold"}};
  for (const Words& words : all)
    CHECK_THAT(refusal(request(words)), Catch::StartsWith(words[0] + " does not work with --mpi"));
}

TEST_CASE("MPI becomes the transport unless the user chose one", "[mpirun]") {
  const auto chosen = [](const Words& environment, Options options) -> std::string {
    const Status status = choose_mpi_transport(environment, &options);
    if (!status.ok()) return status.message();
    const Words base = base_environment(environment, options);
    const char* value = find_variable(base, "RUEDA_TRANSPORT");
    return value == nullptr ? "" : value;
  };
  CHECK(chosen({}, parse({})) == "mpi");
  CHECK(chosen({"RUEDA_TRANSPORT=auto"}, parse({})) == "mpi");
  CHECK(chosen({"RUEDA_TRANSPORT=mpi-only"}, parse({})) == "mpi-only");
  CHECK(chosen({}, parse({"-x", "RUEDA_TRANSPORT=mpi-only"})) == "mpi-only");
  CHECK_THAT(chosen({"RUEDA_TRANSPORT=tcp"}, parse({})), Catch::Contains("contradict"));
  Options plain = parse({});
  plain.mpi = false;
  CHECK(chosen({"RUEDA_TRANSPORT=tcp"}, plain) == "tcp");
  plain.mpi_args = "-x";
  CHECK_THAT(chosen({}, plain), Catch::Contains("--mpi-args"));
}

TEST_CASE("an mpirun is known by its version, and sought beside its library first", "[mpirun]") {
  CHECK(open_mpi_version("mpirun (Open MPI) 4.1.4") == "4.1.4");
  CHECK(open_mpi_version("Open MPI v5.0.0rc1, package: x") == "5.0.0");
  CHECK(open_mpi_version("HYDRA build details:").empty());
  const auto index = [](const Words& places, const std::string& place) {
    return std::find(places.begin(), places.end(), place) - places.begin();
  };
  const Words debian =
      mpirun_places("/usr/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40", "/nowhere");
  CHECK(index(debian, "/usr/bin/mpirun.openmpi") < index(debian, "/nowhere/mpirun"));
  CHECK(index(debian, "/nowhere/mpirun") < static_cast<long>(debian.size()));
  CHECK(mpirun_places("/opt/ompi/lib/libmpi.so", "/a:/b").front() ==
        "/opt/ompi/bin/mpirun.openmpi");
}
