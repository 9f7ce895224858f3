#include "launcher/command/flags.h"

#include <optional>
#include <variant>

#include "collectives/base/config.h"
#include "launcher/command/setting_flags.h"

namespace rueda::launcher {
namespace {

using Field = std::variant<bool CommandLine::*, int CommandLine::*, double CommandLine::*,
                           std::string CommandLine::*, std::optional<bool> CommandLine::*,
                           std::vector<std::string> CommandLine::*>;

// One flag. The group is where --help shows it.
struct Flag {
  const char* group;
  const char* spellings;  // "!--no-prefix" means the opposite
  Field fills;
  const char* help;
  const char* one_dash = "";  // how launchers of this field spell it; CLI11 would read -np as -n p
  const char* typed = "";     // what messages call it, if not by its first long spelling
};

constexpr const char* kOptions = "Options";
constexpr const char* kHosts = "Several hosts";
constexpr const char* kElastic = "Elastic jobs: ranks may come and go";
constexpr const char* kMpi = "Under MPI";
constexpr const char* kQuestions = "Questions (no ranks are started)";
constexpr const char* kSettings = "Settings for the ranks (each is also a RUEDA_* variable)";
constexpr const char* kAccepted = "Accepted without effect";

// Before the settings, in the order of --help.
const Flag kFlags[] = {
    {kOptions, "-n,--num-proc", &CommandLine::count,
     "-np N: number of ranks; auto: one per GPU, or per core where there is none\n"
     "(all slots of the hosts that are named or found)",
     "-np", "-np"},
    {kOptions, "-H,--hosts", &Options::hosts, "host:slots,...; node[01-16]:8; [fd00::1]:2", "",
     "-H"},
    {kOptions, "-x", &CommandLine::variables,
     "VAR=VALUE: set a variable for every rank; VAR: send ours to other hosts\n"
     "even if it looks like a secret"},
    {kOptions, "--grace-period", &Options::grace_seconds,
     "seconds between asking ranks to stop and killing them (5)"},
    {kOptions, "--output-prefix,!--no-prefix", &Options::prefix,
     "put the rank before every line of output (default)"},
    {kOptions, "--prefix-timestamp,--prefix-output-with-timestamp", &Options::prefix_timestamp,
     "put the time before every line of output", "-prefix-timestamp"},
    {kOptions, "--fold,!--no-fold", &Options::fold,
     "print a line that several ranks write at about the same time once,\n"
     "as [0-7] (default on a terminal)"},
    {kOptions, "--ranks", &CommandLine::ranks,
     "0,3-5: print only these ranks' output (copies and the report have all)"},
    {kOptions, "--output-filename", &Options::output_folder,
     "FOLDER: copy each rank's output to FOLDER/rank.N/stdout and stderr"},
    {kOptions, "--stdin", &CommandLine::reader,
     "auto, none, or the rank that reads our standard input\n"
     "(auto: rank 0 when it is a terminal)"},
    {kOptions, "--horovod", &Options::horovod, "`import horovod` means rueda in the ranks"},
    {kOptions, "--bind", &Options::bind,
     "none (default), core, numa, or cpus of each rank as in 0-3:4-7"},
    {kOptions, "--verbose", &Options::verbose, "say what is started and stopped"},
    {kOptions, "--config-file", &Options::config_file,
     "file with settings, as horovodrun's (YAML); flags win over it"},
    {kOptions, "--deepspeed-config", &Options::deepspeed_config,
     "JSON file that hvd.initialize() reads (RUEDA_DEEPSPEED_CONFIG)"},

    {kHosts, "--hostfile", &Options::hostfile,
     "-hostfile: file with a line 'name slots=N' per host", "-hostfile"},
    {kHosts, "--rsh-agent", &Options::rsh_agent,
     "command that starts agents, instead of ssh: COMMAND HOST PROGRAM ARGUMENTS"},
    {kHosts, "-p,--ssh-port", &Options::ssh_port, "port of sshd"},
    {kHosts, "-i,--ssh-identity-file", &Options::identity_file, "key file of ssh"},
    {kHosts, "--network-interfaces,--network-interface", &Options::network_interfaces,
     "which may be used: eth0,ib (beginnings), =eth0, ^docker, 10.0.0.0/16"},
    {kHosts, "--token-file", &Options::token_file,
     "start nothing on the hosts; write what `ruedarun join` needs to this file"},
    {kHosts, "--listen-port", &Options::listen_port, "port of the controller (any)"},
    {kHosts, "--remote-ruedarun", &Options::remote_program,
     "path of ruedarun on the other hosts (as here)"},
    {kHosts, "--silence-timeout", &Options::silence_seconds,
     "seconds without a sign of life after which a host is lost (5)"},

    {kMpi, "--mpi", &Options::mpi,
     "Open MPI's mpirun starts the ranks, and MPI moves bytes between hosts"},
    {kMpi, "--mpi-args", &Options::mpi_args, "more arguments for mpirun, as one word"},
    {kMpi, "--mpirun", &Options::mpirun, "path of mpirun (the one of rueda's MPI library)"},

    {kQuestions, "-v,--version", &CommandLine::version, "print the version"},
    {kQuestions, "--check-build", &CommandLine::check_build, "-cb: print what this machine offers",
     "-cb"},
    {kQuestions, "--print-config", &CommandLine::print_config,
     "print every setting and where it comes from"},
};

// After them: horovodrun's flags that ask for what rueda does anyway or has no need of.
const Flag kWithoutEffect[] = {
    {kAccepted, "--gloo", &Options::gloo, "rueda needs no choice of controller"},
    {kAccepted, "--disable-cache", &CommandLine::disable_cache, "nothing is cached between runs"},
    {kAccepted, "--cycle-time-ms", &CommandLine::cycle_time, "there is no cycle"},
};

// "--num-proc" of "-n,--num-proc".
std::string long_spelling(const Flag& flag) {
  const std::string spellings = flag.spellings;
  const size_t begin = spellings.find("--");
  return begin == std::string::npos ? spellings
                                    : spellings.substr(begin, spellings.find(',', begin) - begin);
}

struct Adder {
  CLI::App* app;
  CommandLine* line;
  const Flag& flag;

  CLI::Option* operator()(bool CommandLine::*field) const {
    return app->add_flag(flag.spellings, line->*field, flag.help);
  }
  CLI::Option* operator()(std::optional<bool> CommandLine::*field) const {
    const auto fill = [this_line = line, field](int64_t count) { this_line->*field = count > 0; };
    return app->add_flag_function(flag.spellings, fill, flag.help);
  }
  CLI::Option* operator()(std::vector<std::string> CommandLine::*field) const {
    return app->add_option(flag.spellings, line->*field, flag.help)->allow_extra_args(false);
  }
  template <typename T>
  CLI::Option* operator()(T CommandLine::*field) const {
    return app->add_option(flag.spellings, line->*field, flag.help);
  }
};

void add(CLI::App* app, CommandLine* line, const Flag& flag) {
  std::visit(Adder{app, line, flag}, flag.fills)->group(flag.group);
}

void add(CLI::App* app, CommandLine* line, const ElasticFlag& flag) {
  const auto keep = [line, &flag](const std::vector<std::string>& words) {
    std::string value;
    for (const std::string& word : words) value += (value.empty() ? "" : " ") + word;
    line->elastic_words.push_back({&flag, std::move(value), flag.name});
    return true;
  };
  app->add_option(flag.spellings, keep, flag.help)
      ->type_name("TEXT")
      ->expected(flag.values)
      ->group(kElastic);
}

// What the variable would be refused for, said of the flag.
void check_value(const std::string& variable, const std::string& value, const char* name) {
  const auto get = [&](const char* asked) { return variable == asked ? value.c_str() : nullptr; };
  const auto config = load_config(get);
  if (config.ok()) return;
  const std::string said = config.status().message();
  const std::string before = variable + "='" + value + "': ";
  throw CLI::ValidationError(name, said.rfind(before, 0) == 0 ? said.substr(before.size()) : said);
}

void add(CLI::App* app, CommandLine* line, const SettingFlag& flag) {
  const auto set = [line, &flag](std::string value, const char* name) {
    line->settings.push_back({flag.variable, std::move(value), name});
  };
  CLI::Option* option = nullptr;
  switch (flag.takes) {
    case Takes::kText:
      option = app->add_option_function<std::string>(
          flag.spellings,
          [set, &flag](const std::string& text) {
            if (!text.empty()) set(text, flag.name);
          },
          flag.help);
      break;
    case Takes::kWhole:
      option = app->add_option_function<int64_t>(
          flag.spellings,
          [set, &flag](const int64_t& number) { set(std::to_string(number), flag.name); },
          flag.help);
      break;
    case Takes::kMebibytes:
      option = app->add_option_function<int64_t>(
          flag.spellings,
          [set, &flag](const int64_t& number) {
            if (number < 0 || number > kMostMebibytes)
              throw CLI::ValidationError(flag.name, "expected 0 or more");
            set(std::to_string(number << 20), flag.name);
          },
          flag.help);
      break;
    case Takes::kReal:
      option = app->add_option_function<double>(
          flag.spellings,
          [set, &flag](const double& number) {
            const std::string value = CLI::detail::to_string(number);
            check_value(flag.variable, value, flag.name);
            set(value, flag.name);
          },
          flag.help);
      break;
    case Takes::kSwitch:
      option = app->add_flag_function(
          flag.spellings,
          [set, line, &flag](int64_t count) {
            const bool on = count > 0;
            if (const char* value = on ? flag.on : flag.off)
              set(value, on ? flag.name : flag.off_name);
            if (on && flag.overrules[0] != '\0') line->overruled_keys.emplace_back(flag.overrules);
          },
          flag.help);
      break;
  }
  option->group(kSettings);
  if (flag.excludes[0] != '\0') option->excludes(app->get_option(flag.excludes));
}

}  // namespace

void add_flags(CLI::App* app, CommandLine* line) {
  for (const Flag& flag : kFlags) add(app, line, flag);
  for (const ElasticFlag& flag : elastic_flags()) add(app, line, flag);
  for (const SettingFlag& flag : setting_flags()) add(app, line, flag);
  for (const Flag& flag : kWithoutEffect) add(app, line, flag);
}

std::string with_two_dashes(const std::string& word) {
  const size_t equals = std::min(word.find('='), word.size());
  for (const Flag& flag : kFlags) {
    if (flag.one_dash[0] != '\0' && word.substr(0, equals) == flag.one_dash)
      return long_spelling(flag) + word.substr(equals);
  }
  return word;
}

std::string with_one_dash(const std::string& name) {
  for (const Flag& flag : kFlags) {
    if (flag.one_dash[0] != '\0' && long_spelling(flag) == name) return flag.one_dash;
  }
  return "";
}

std::string as_typed(const std::string& name) {
  for (const Flag& flag : kFlags) {
    if (flag.typed[0] != '\0' && long_spelling(flag) == name) return flag.typed;
  }
  return name;
}

}  // namespace rueda::launcher
