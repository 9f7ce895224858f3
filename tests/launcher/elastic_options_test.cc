// Elastic jobs on the command line and in the configuration file: what they mean, and that all that
// is wrong is said before anything starts.
#include "launcher/command/elastic_options.h"

#include <catch2/catch.hpp>
#include <map>

#include "launcher/command/config_file.h"
#include "launcher/command/options.h"

namespace rueda::launcher {
namespace {

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

Result<Options> read(Words words, const Variables& variables = {}) {
  words.insert(words.end(), {"python", "train.py"});
  auto options = parse_options(words, "1.2.3");
  if (!options.ok()) return options;
  const Status status = check_elastic(options.value(), [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  if (!status.ok()) return status;
  return options;
}

ElasticOptions elastic(const Words& words) {
  const auto options = read(words);
  INFO((options.ok() ? "" : options.status().message()));
  REQUIRE(options.ok());
  CHECK(options.value().command == Words{"python", "train.py"});
  return options.value().elastic;
}

std::string refusal(const Words& words, const Variables& variables = {}) {
  const auto options = read(words, variables);
  return options.ok() ? "" : options.status().message();
}

TEST_CASE("min-np or a discovery script makes a job elastic, nothing else does", "[elastic]") {
  CHECK_FALSE(elastic({"-np", "2"}).elastic());
  CHECK(elastic({"-np", "2", "--min-np", "1"}).elastic());
  CHECK(elastic({"-np", "2", "--min-num-proc=2"}).least(2) == 2);
  const ElasticOptions found = elastic({"-np", "3", "--host-discovery-script", "./hosts.sh"});
  CHECK(found.elastic());
  CHECK(found.least(3) == 3);
  for (const Words& words : std::vector<Words>{{"--max-np", "4"},
                                               {"--spares", "1"},
                                               {"--join", "ready"},
                                               {"--on-failure", "shrink"},
                                               {"--reset-limit", "1"},
                                               {"--slots", "1"},
                                               {"--blacklist-cooldown-range", "1", "2"},
                                               {"--evict-slow", "2:30"},
                                               {"--driver-timeout", "5"}}) {
    Words all = {"-np", "2"};
    all.insert(all.end(), words.begin(), words.end());
    const std::string said = refusal(all);
    INFO(said);
    CHECK(said.find(words[0] == "--slots" ? "--slots-per-host" : words[0]) == 0);
    CHECK(said.find("the job is not elastic; --min-np N") != std::string::npos);
    all.insert(all.begin(), {"--host-discovery-script", "hosts"});
    CHECK(refusal(all) == "");
  }
}

TEST_CASE("each flag of an elastic job says how ranks come and go", "[elastic]") {
  const ElasticOptions all = elastic({"-np",
                                      "4",
                                      "--min-np",
                                      "2",
                                      "--max-num-proc",
                                      "8",
                                      "--host-discovery-script=./find hosts.sh",
                                      "--slots-per-host",
                                      "3",
                                      "--reset-limit",
                                      "7",
                                      "--blacklist-cooldown-range",
                                      "1.5",
                                      "3600",
                                      "--on_failure",
                                      "blacklist",
                                      "--join",
                                      "announce",
                                      "--spares",
                                      "1",
                                      "--driver-timeout",
                                      "0.5",
                                      "--evict-slow",
                                      "2.5:30"});
  CHECK(all.min_np == 2);
  CHECK(all.max_np == 8);
  CHECK(all.discovery_script == "./find hosts.sh");
  CHECK(all.slots_per_host == 3);
  CHECK(all.reset_limit == 7);
  CHECK(all.cooldown.value().min_seconds == 1.5);
  CHECK(all.cooldown.value().max_seconds == 3600);
  CHECK(all.on_failure == ElasticOptions::OnFailure::kBlacklist);
  CHECK(all.on_join == ElasticOptions::OnJoin::kAnnounce);
  CHECK(all.spares == 1);
  CHECK(all.driver_timeout_seconds == 0.5);
  CHECK(all.evict_slow.value().factor == 2.5);
  CHECK(all.evict_slow.value().seconds == 30);

  const ElasticOptions plain = elastic({"-np", "4", "--min-np", "2"});
  CHECK(plain.on_failure == ElasticOptions::OnFailure::kReplace);
  CHECK(plain.on_join == ElasticOptions::OnJoin::kReady);
  CHECK(plain.reset_limit < 0);  // none: a limit of 0 is no change at all
  CHECK(elastic({"-np", "4", "--min-np", "2", "--reset-limit", "0"}).reset_limit == 0);
  CHECK_FALSE(plain.cooldown.has_value());
  CHECK_FALSE(plain.evict_slow.has_value());
}

TEST_CASE("values that an elastic job cannot have are quoted with what is expected", "[elastic]") {
  const std::string count = "': expected a number from 1 to 65536";
  const std::string cooldown =
      "': expected two numbers of seconds, MIN and MAX, from 1 to 3600, MIN not above MAX";
  for (const auto& [words, said] : std::vector<std::pair<Words, std::string>>{
           {{"--min-np", "-1"}, "--min-np '-1" + count},
           {{"--min-np", "0"}, "--min-np '0" + count},
           {{"--min-num-proc", "two"}, "--min-np 'two" + count},
           {{"--min-np", "1.5"}, "--min-np '1.5" + count},
           {{"--min-np", ""}, "--min-np '" + count},
           {{"--max-np", "65537"}, "--max-np '65537" + count},
           {{"--slots", "-2"}, "--slots-per-host '-2" + count},
           {{"--reset-limit", "-1"}, "--reset-limit '-1': expected a number from 0 to 65536"},
           {{"--spares", "-1"}, "--spares '-1': expected a number from 0 to 65536"},
           {{"--blacklist-cooldown-range", "0", "10"},
            "--blacklist-cooldown-range '0 10" + cooldown},
           {{"--blacklist-cooldown-range", "1", "3601"},
            "--blacklist-cooldown-range '1 3601" + cooldown},
           {{"--blacklist-cooldown-range", "9", "8"}, "--blacklist-cooldown-range '9 8" + cooldown},
           {{"--blacklist-cooldown-range", "nan", "inf"},
            "--blacklist-cooldown-range 'nan inf" + cooldown},
           {{"--on-failure", "restart"},
            "--on-failure 'restart': expected replace, shrink or blacklist"},
           {{"--join", "now"}, "--join 'now': expected ready or announce"},
           {{"--evict-slow", "1:30"},
            "--evict-slow '1:30': expected FACTOR:SECONDS as in 2.5:30, a factor above 1"},
           {{"--evict-slow", "3"},
            "--evict-slow '3': expected FACTOR:SECONDS as in 2.5:30, a factor above 1"},
           {{"--driver-timeout", "-1"}, "--driver-timeout '-1': expected seconds, 0 to 1000000"},
           {{"--driver-timeout", "inf"}, "--driver-timeout 'inf': expected seconds, 0 to 1000000"},
           {{"--host-discovery-script", ""},
            "--host-discovery-script '': expected a program, or words for a shell"},
       }) {
    Words all = {"-np", "2"};
    all.insert(all.end(), words.begin(), words.end());
    CHECK(refusal(all) == said);
  }
  CHECK(refusal({"-np", "2", "--min-np", "1", "--min-np", "2"}) ==
        "--min-np is given more than once");
}

TEST_CASE("the fewest, the first and the most ranks are in order", "[elastic]") {
  CHECK(refusal({"-np", "2", "--min-np", "3"}) == "--min-np 3 is more than -np 2");
  CHECK(refusal({"-np", "5", "--min-np", "1", "--max-np", "4"}) == "-np 5 is more than --max-np 4");
  CHECK(refusal({"-np", "5", "--min-np", "6", "--max-np", "4"}) ==
        "--min-np 6 is more than --max-np 4");
  CHECK(refusal({"--min-np", "6", "--max-np", "4"}) == "--min-np 6 is more than --max-np 4");
  CHECK(refusal({"-np", "4", "--min-np", "4", "--max-np", "4"}) == "");
  ElasticOptions later;
  later.min_np = 3;
  CHECK(check_elastic_ranks(later, 0).ok());
  CHECK(check_elastic_ranks(later, 2).message() == "--min-np 3 is more than -np 2");
}

TEST_CASE("what an elastic job cannot be together with is named", "[elastic]") {
  const Words script = {"-np", "2", "--host-discovery-script", "hosts"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Words least = {"-np", "2", "--min-np", "1"};
  CHECK(refusal(with(script, {"-H", "a:1"})) ==
        "--host-discovery-script and -H exclude each other: either the script names the hosts, or "
        "you do");
  CHECK(refusal(with(script, {"--hostfile", "f"})).find("script and --hostfile exclude") !=
        std::string::npos);
  CHECK(refusal(with(least, {"-H", "a:1,b:1"})) == "");
  CHECK(refusal(with(least, {"--slots", "2"})) ==
        "--slots-per-host: it is for hosts that --host-discovery-script prints");
  CHECK(refusal(with(least, {"--mpi"})).find("--min-np and --mpi exclude each other") == 0);
  CHECK(refusal({"--host-discovery-script", "hosts"}).find("ranks to start with is missing") !=
        std::string::npos);
  CHECK(refusal({"-np", "auto", "--host-discovery-script", "hosts"}).find("-np auto") == 0);
}

TEST_CASE("no elastic job starts below another launcher", "[elastic]") {
  const Words least = {"-np", "2", "--min-np", "1"};
  const std::string said = "--min-np: an elastic job is started by ruedarun alone, not under ";
  CHECK(refusal(least, {{"OMPI_COMM_WORLD_SIZE", "2"}}) == said + "mpirun");
  CHECK(refusal(least, {{"PMI_SIZE", "2"}}) == said + "mpirun");
  CHECK(refusal(least, {{"TORCHELASTIC_RUN_ID", "none"}}) == said + "torchrun");
  CHECK(refusal(least, {{"SLURM_STEP_NUM_TASKS", "2"}, {"PMI_SIZE", "2"}}) == said + "srun");
  CHECK(refusal(least, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_JOB_ID", "7"}}) == "");
  CHECK(refusal(least, {{"OMPI_COMM_WORLD_SIZE", "2"}, {"RUEDA_RANK", "0"}}) == "");
  CHECK(refusal({"-np", "2"}, {{"OMPI_COMM_WORLD_SIZE", "2"}}) == "");
}

TEST_CASE("the configuration file has a key for each flag of an elastic job", "[elastic]") {
  const auto file = parse_config_file(
      "elastic:\n  min_np: 2\n  max_np: 4\n  blacklist_cooldown_range: 2 30\n"
      "  on_failure: shrink\n  timeout: 30\n",
      "job.yaml");
  REQUIRE(file.ok());
  CHECK(file.value().notes.empty());
  CHECK(file.value().elastic.size() == 4);
  CHECK(file.value().elastic[0].origin == "elastic.min_np (job.yaml:2)");
  CHECK(file.value().settings.at(0).variable == "RUEDA_ELASTIC_TIMEOUT");
  const auto read = read_elastic(file.value().elastic);
  REQUIRE(read.ok());
  CHECK(read.value().max_np == 4);
  CHECK(read.value().cooldown.value().max_seconds == 30);
  CHECK(read.value().on_failure == ElasticOptions::OnFailure::kShrink);
  CHECK(parse_config_file("elastic:\n  min_np: -1\n", "job.yaml").status().message() ==
        "elastic.min_np (job.yaml:2) '-1': expected a number from 1 to 65536");
  for (const ElasticFlag& flag : elastic_flags()) CHECK(elastic_flag_of_key(flag.key) == &flag);
  CHECK(elastic_flag_of_key("elastic.none") == nullptr);
}

}  // namespace
}  // namespace rueda::launcher
