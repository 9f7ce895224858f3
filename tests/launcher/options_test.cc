#include "launcher/command/options.h"

#include <catch2/catch.hpp>
#include <sstream>

#include "launcher/command/setting_flags.h"

using rueda::launcher::Options;
using rueda::launcher::parse_options;
using Words = std::vector<std::string>;

namespace {

Options parsed(const Words& words) {
  auto options = parse_options(words, "1.2.3");
  INFO((options.ok() ? "" : options.status().message()));
  REQUIRE(options.ok());
  return options.value();
}

std::string refusal(const Words& words) {
  const auto options = parse_options(words, "1.2.3");
  return options.ok() ? "" : options.status().message();
}

std::string setting(const Options& options, const std::string& variable) {
  for (const auto& setting : options.settings) {
    if (setting.variable == variable) return setting.value + " from " + setting.flag;
  }
  return "";
}

}  // namespace

TEST_CASE("the number of ranks is read in every spelling that launchers have", "[options]") {
  for (const Words& words : std::vector<Words>{{"-np", "4", "true"},
                                               {"-np=4", "true"},
                                               {"-n", "4", "true"},
                                               {"-n4", "true"},
                                               {"--num-proc", "4", "true"},
                                               {"--num-proc=4", "true"},
                                               {"--verbose", "-np", "4", "true"},
                                               {"-H", "localhost:4", "-np", "4", "true"}}) {
    const Options options = parsed(words);
    CHECK(options.num_proc == 4);
    CHECK(options.command == Words{"true"});
  }
}

TEST_CASE("what follows the command belongs to it, whatever it looks like", "[options]") {
  const Words tail = {"python", "-np", "7", "--verbose", "-x", "--", "-cb", "--help", "a b", ""};
  Words words = {"-np", "2"};
  words.insert(words.end(), tail.begin(), tail.end());
  const Options options = parsed(words);
  CHECK(options.num_proc == 2);
  CHECK_FALSE(options.verbose);
  CHECK(options.command == tail);
}

TEST_CASE("two dashes end our options, so that a command may begin with one", "[options]") {
  CHECK(parsed({"-np", "2", "--", "-np", "3"}).command == Words{"-np", "3"});
  CHECK(parsed({"-np", "2", "--", "true"}).command == Words{"true"});
}

TEST_CASE("the value of an option is not rewritten", "[options]") {
  const Options options = parsed({"--timeline-filename", "-np", "-np", "1", "true"});
  CHECK(options.num_proc == 1);
  CHECK(setting(options, "RUEDA_TIMELINE") == "-np from --timeline-filename");
}

TEST_CASE("flags become settings of the ranks", "[options]") {
  CHECK(parsed({"-np", "1", "true"}).settings.empty());
  const Options options =
      parsed({"-np", "1", "--log-level", "debug", "--fusion-threshold-mb", "32", "--cache-capacity",
              "0", "--start-timeout", "30", "--stall-check-warning-time-seconds", "1.5",
              "--stall-check-shutdown-time-seconds=9", "--timeline-filename", "/t.json", "true"});
  CHECK(setting(options, "RUEDA_LOG_LEVEL") == "debug from --log-level");
  CHECK(setting(options, "RUEDA_FUSION_THRESHOLD") == "33554432 from --fusion-threshold-mb");
  CHECK(setting(options, "RUEDA_CACHE_CAPACITY") == "0 from --cache-capacity");
  CHECK(setting(options, "RUEDA_START_TIMEOUT") == "30 from --start-timeout");
  CHECK(setting(options, "RUEDA_STALL_CHECK_TIME_SECONDS") ==
        "1.5 from --stall-check-warning-time-seconds");
  CHECK(setting(options, "RUEDA_STALL_SHUTDOWN_TIME_SECONDS") ==
        "9 from --stall-check-shutdown-time-seconds");
  CHECK(setting(options, "RUEDA_TIMELINE") == "/t.json from --timeline-filename");
  const Options shown =
      parsed({"-np", "1", "--timeline", "t.json", "--timeline-all-ranks", "--timeline-mark-cycles",
              "--timeline-seconds", "2.5", "--summary", "true"});
  CHECK(setting(shown, "RUEDA_TIMELINE") == "t.json from --timeline-filename");
  CHECK(setting(shown, "RUEDA_TIMELINE_SECONDS") == "2.5 from --timeline-seconds");
  CHECK(setting(shown, "RUEDA_TIMELINE_ALL_RANKS") == "1 from --timeline-all-ranks");
  CHECK(setting(shown, "RUEDA_TIMELINE_MARK_CYCLES") == "1 from --timeline-mark-cycles");
  CHECK(setting(shown, "RUEDA_SUMMARY") == "1 from --summary");
  CHECK(setting(parsed({"-np", "1", "--no-timeline-mark-cycles", "true"}),
                "RUEDA_TIMELINE_MARK_CYCLES") == "0 from --no-timeline-mark-cycles");
  CHECK(setting(parsed({"-np", "1", "--no-stall-check", "true"}),
                "RUEDA_STALL_CHECK_TIME_SECONDS") == "0 from --no-stall-check");
}

TEST_CASE("every flag of the table of settings sets its variable, in each spelling", "[options]") {
  using rueda::launcher::Takes;
  for (const auto& flag : rueda::launcher::setting_flags()) {
    std::stringstream spellings(flag.spellings);
    for (std::string name; std::getline(spellings, name, ',');) {
      const bool off = name[0] == '!';
      Words words = {"-np", "1", off ? name.substr(1) : name};
      if (flag.takes != Takes::kSwitch) words.push_back("7");
      words.push_back("true");
      const Options options = parsed(words);
      INFO(name);
      const char* const value = flag.takes == Takes::kSwitch      ? (off ? flag.off : flag.on)
                                : flag.takes == Takes::kMebibytes ? "7340032"
                                                                  : "7";
      if (value == nullptr) {
        CHECK(options.settings.empty());
        CHECK(options.overruled_keys == Words{flag.overrules});
      } else {
        CHECK(setting(options, flag.variable) ==
              std::string(value) + " from " + (off ? flag.off_name : flag.name));
      }
    }
  }
}

TEST_CASE("-x takes one variable each time and keeps the command apart", "[options]") {
  const Options options = parsed({"-x", "A=1", "-x", "B=x=y", "-x", "HOME", "-np", "1", "true"});
  using Pair = std::pair<std::string, std::string>;
  CHECK(options.environment == std::vector<Pair>{{"A", "1"}, {"B", "x=y"}});
  CHECK(options.command == Words{"true"});
}

TEST_CASE("switches have their defaults and their opposites", "[options]") {
  const Options plain = parsed({"-np", "1", "true"});
  CHECK(plain.prefix);
  CHECK(plain.grace_seconds == 5);
  CHECK(plain.stdin_mode == Options::Stdin::kAuto);
  CHECK_FALSE(parsed({"-np", "1", "--no-prefix", "true"}).prefix);
  CHECK(parsed({"-np", "1", "--output-prefix", "true"}).prefix);
  CHECK_FALSE(plain.prefix_timestamp);
  CHECK(parsed({"-np", "1", "--prefix-timestamp", "true"}).prefix_timestamp);
  CHECK(plain.output_folder.empty());
  CHECK(parsed({"--output-filename", "out", "-np", "1", "true"}).output_folder == "out");
  CHECK(parsed({"-np", "1", "--grace-period", "0.5", "true"}).grace_seconds == 0.5);
  CHECK(parsed({"-np", "1", "--stdin", "none", "true"}).stdin_mode == Options::Stdin::kNobody);
  const Options second = parsed({"-np", "2", "--stdin", "1", "true"});
  CHECK(second.stdin_mode == Options::Stdin::kOneRank);
  CHECK(second.stdin_rank == 1);
}

TEST_CASE("flags of Horovod's launcher mean here what they mean there", "[options]") {
  CHECK(parsed({"-np", "1", "-prefix-timestamp", "true"}).prefix_timestamp);
  CHECK(parsed({"-np", "1", "--prefix-output-with-timestamp", "true"}).prefix_timestamp);
  CHECK(setting(parsed({"-np", "1", "--tcp", "true"}), "RUEDA_TRANSPORT") == "tcp from --tcp");
  for (const char* flag : {"--log-without-timestamp", "--log-hide-timestamp"}) {
    CHECK(setting(parsed({"-np", "1", flag, "true"}), "RUEDA_LOG_HIDE_TIME") ==
          "1 from --log-without-timestamp");
  }
  for (const char* flag : {"--log-with-timestamp", "--no-log-hide-timestamp"}) {
    CHECK(setting(parsed({"-np", "1", flag, "true"}), "RUEDA_LOG_HIDE_TIME") ==
          "0 from --log-with-timestamp");
  }
  CHECK(parsed({"-np", "1", "--config-file", "f.yaml", "true"}).config_file == "f.yaml");
  CHECK(parsed({"-p", "2222", "-i", "key", "-np", "1", "true"}).ssh_port == 2222);
}

TEST_CASE("an option that is nearly one of ours is guessed", "[options]") {
  const auto wrong = parse_options({"--hostfle", "f", "-np", "1", "true"}, "1.2.3");
  REQUIRE_FALSE(wrong.ok());
  CHECK_THAT(wrong.status().message(),
             Catch::Contains("unknown option '--hostfle'; did you mean --hostfile?"));
  const auto other = parse_options({"--nproc-per-node=2", "true"}, "1.2.3");
  REQUIRE_FALSE(other.ok());
  CHECK(other.status().message().find("did you mean") == std::string::npos);
}

TEST_CASE("long options may be written with underscores", "[options]") {
  CHECK(parsed({"--num_proc", "2", "--output_filename=a_b", "true"}).output_folder == "a_b");
  CHECK(setting(parsed({"-np", "1", "--timeline_filename", "t_1", "true"}), "RUEDA_TIMELINE") ==
        "t_1 from --timeline-filename");
  CHECK(parsed({"-np", "1", "python", "--num_proc"}).command == Words{"python", "--num_proc"});
}

TEST_CASE("questions need no number of ranks and no command", "[options]") {
  CHECK(parsed({"--version"}).text == "1.2.3\n");
  CHECK(parsed({"-v"}).text == "1.2.3\n");
  CHECK(parsed({"-cb"}).action == Options::Action::kCheckBuild);
  CHECK(parsed({"--check-build"}).action == Options::Action::kCheckBuild);
  CHECK(parsed({"--print-config"}).action == Options::Action::kPrintConfig);
  const Options help = parsed({"--help"});
  CHECK(help.action == Options::Action::kPrintText);
  CHECK(help.text.find("-np N") != std::string::npos);
}

TEST_CASE("horovodrun's flags without meaning here are accepted", "[options]") {
  CHECK(
      parsed({"--gloo", "--cycle-time-ms", "3", "--disable-cache", "-np", "2", "true"}).num_proc ==
      2);
}

TEST_CASE("the number of ranks may be left to what is found", "[options]") {
  const Options bare = parsed({"python", "-np", "3"});
  CHECK(bare.num_proc == 0);
  CHECK_FALSE(bare.auto_ranks);
  CHECK(bare.command == Words{"python", "-np", "3"});
  const Options counted = parsed({"-np", "auto", "true"});
  CHECK(counted.num_proc == 0);
  CHECK(counted.auto_ranks);
  // Which ranks there are is known later.
  Options some = parsed({"--ranks", "0,3", "true"});
  some.num_proc = 3;
  CHECK_THAT(check_ranks(some).message(), Catch::Contains("--ranks 3: there are only 3 ranks"));
  some.num_proc = 4;
  CHECK(check_ranks(some).ok());
}

TEST_CASE("a wrong command line is refused with its reason", "[options]") {
  const std::vector<std::pair<Words, std::string>> table = {
      {{}, "number of ranks is missing"},
      {{"-np", "2"}, "command is missing"},
      {{"-np", "2", "--"}, "command is missing"},
      {{"-np", "0", "true"}, "-np 0"},
      {{"-np", "-3", "true"}, "expected 1 to"},
      {{"-np", "99999999", "true"}, "expected 1 to"},
      {{"-np", "two", "true"}, "-np 'two': expected a number"},
      {{"-np", "2", "--start-timeout", "x", "true"}, "--start-timeout 'x': expected a number"},
      {{"-np", "2", "--autotune-log-file", "f", "true"}, "horovodrun takes it"},
      {{"-np", "2", "--hierarchical-allreduce", "true"}, "horovodrun takes it"},
      {{"-np", "2", "--tcp", "--mpi", "true"}, "--tcp and --mpi contradict"},
      {{"-np", "2", "--no-such-flag", "true"}, "unknown option '--no-such-flag'"},
      {{"-np", "2", "-q", "true"}, "unknown option '-q'"},
      {{"-np", "2", "-x", "=1", "true"}, "expected VAR=VALUE"},
      {{"-np", "2", "--stdin", "2", "true"}, "only 2 ranks"},
      {{"-np", "2", "--stdin", "zero", "true"}, "--stdin 'zero'"},
      {{"-np", "2", "--grace-period", "-1", "true"}, "--grace-period"},
      {{"-np", "2", "--grace-period", "nan", "true"}, "--grace-period"},
      {{"-np", "2", "--fusion-threshold-mb", "-1", "true"}, "--fusion-threshold-mb"},
      {{"-np", "2", "--elastic-timeout", "-5", "true"},
       "--elastic-timeout: expected a number greater than 0"},
      {{"-np", "2", "--elastic-timeout", "1e10", "true"},
       "--elastic-timeout: expected a number greater than 0, at most 1000000000"},
      {{"-np", "2", "--start-timeout", "0", "true"},
       "--start-timeout: expected a number greater than 0"},
      {{"-np", "2", "--no-stall-check", "--stall-check", "true"}, "--stall-check"},
  };
  for (const auto& [words, reason] : table) {
    INFO(reason);
    CHECK_THAT(refusal(words), Catch::Contains(reason));
  }
}
