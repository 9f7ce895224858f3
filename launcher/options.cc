#include "launcher/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>

#include "launcher/binding/binding.h"
#include "launcher/nearest_name.h"

namespace rueda::launcher {
namespace {

// Flags that launchers of this field spell with one dash. CLI11 would read -np as -n p.
const std::map<std::string, std::string> kSingleDash = {
    {"-np", "--num-proc"},
    {"-hostfile", "--hostfile"},
    {"-cb", "--check-build"},
    {"-prefix-timestamp", "--prefix-timestamp"}};

// Flags of horovodrun that are not ours, by how they begin.
constexpr const char* kHorovodrunOnly[] = {"--host-discovery-script",
                                           "--jsrun",
                                           "--hierarchical-",
                                           "--no-hierarchical-",
                                           "--torus-",
                                           "--no-torus-",
                                           "--autotune",
                                           "--no-autotune",
                                           "--min-n",
                                           "--max-n",
                                           "--slots-per-host",
                                           "--elastic-timeout",
                                           "--reset-limit",
                                           "--blacklist-",
                                           "--mpi-threads-",
                                           "--no-mpi-threads-",
                                           "--binding-args",
                                           "--num-nccl-streams",
                                           "--thread-affinity",
                                           "--gloo-timeout-"};

// What users of other launchers write, and what it is here.
struct Foreign {
  const char* begins;
  const char* hint;
};
constexpr Foreign kForeign[] = {
    {"--nproc", "the number of ranks is -np N, of all hosts together"},
    {"--nnodes", "hosts are named: -H host:slots,... or --hostfile"},
    {"--node-rank", "one ruedarun starts all hosts: -H host:slots,... or --hostfile"},
    {"--master-", "ranks find each other; leave it out"},
    {"--rdzv", "ranks find each other; leave it out"},
    {"--standalone", "nothing needs to be said for one host; leave it out"},
    {"--oversubscribe", "more ranks than cores are allowed; leave it out"},
    {"--allow-run-as-root", "root may; leave it out"},
    {"--bind-to", "cores are bound with --bind"},
    {"--map-by", "ranks fill one host after the other; cores are bound with --bind"},
    {"--mca", "it is Open MPI's: ruedarun --mpi --mpi-args '--mca ...'"},
    {"-mca", "it is Open MPI's: ruedarun --mpi --mpi-args '--mca ...'"},
    {"-ppn", "slots are said with the hosts: -H host:slots,..."},
    {"--host", "hosts are -H host:slots,..."},
    {"-host", "hosts are -H host:slots,..."},
    {"-N", "slots are said with the hosts: -H host:slots,..."},
};

struct Raw {
  bool version = false, check_build = false, print_config = false, verbose = false;
  bool no_stall_check = false, stall_check = false, unused = false, gloo = false, tcp = false;
  std::optional<bool> log_time;
  std::string config_file;
  int num_proc = 0;
  double grace = 5;
  std::string shown_ranks;
  std::string hosts, output_folder, stdin_text = "auto", unused_text;
  std::string hostfile, rsh_agent, identity, interfaces, token_file, remote_program;
  int ssh_port = 0, listen_port = 0;
  double silence = 5;
  std::vector<std::string> environment;
  bool prefix = true, prefix_timestamp = false, horovod = false, mpi = false;
  std::optional<bool> fold;
  std::string bind, mpi_args, mpirun;
  std::string timeline, log_level, flight_folder, stall_policy;
  bool timeline_all_ranks = false, summary = false;
  std::optional<bool> timeline_cycles;
  std::optional<int64_t> fusion_mb, cache_capacity;
  std::optional<double> stall_warning, stall_shutdown, start_timeout;
};

void describe(CLI::App* app, Raw* raw) {
  app->name("ruedarun");
  app->description(
      "Starts N ranks of a program, here or on several hosts, and looks after them.\n\n"
      "  ruedarun -np N [OPTIONS] COMMAND [ARGUMENTS...]\n"
      "  ruedarun -np 4 python train.py\n"
      "  ruedarun -np 8 -H node1:4,node2:4 python train.py\n"
      "  ruedarun join [HOST:PORT] --token-file F    (on a host, for ruedarun --token-file F)\n\n"
      "Exit code: 0 if all ranks ended with 0; else the code of the first rank that failed\n"
      "(128 + signal if it was killed); 130 after Ctrl-C; 2 for a wrong command line.");
  app->prefix_command();

  app->add_option("-n,--num-proc", raw->num_proc, "-np N: number of ranks");
  app->add_option("-H,--hosts", raw->hosts, "host:slots,...; node[01-16]:8; [fd00::1]:2");
  app->add_option("-x", raw->environment,
                  "VAR=VALUE: set a variable for every rank; VAR: send ours to other hosts\n"
                  "even if it looks like a secret")
      ->allow_extra_args(false);
  app->add_option("--grace-period", raw->grace,
                  "seconds between asking ranks to stop and killing them (5)");
  app->add_flag("--output-prefix,!--no-prefix", raw->prefix,
                "put the rank before every line of output (default)");
  app->add_flag("--prefix-timestamp,--prefix-output-with-timestamp", raw->prefix_timestamp,
                "put the time before every line of output");
  app->add_flag_function(
      "--fold,!--no-fold", [raw](int64_t count) { raw->fold = count > 0; },
      "print a line that several ranks write at about the same time once,\n"
      "as [0-7] (default on a terminal)");
  app->add_option("--ranks", raw->shown_ranks,
                  "0,3-5: print only these ranks' output (copies and the report have all)");
  app->add_option("--output-filename", raw->output_folder,
                  "FOLDER: copy each rank's output to FOLDER/rank.N/stdout and stderr");
  app->add_option("--stdin", raw->stdin_text,
                  "auto, none, or the rank that reads our standard input\n"
                  "(auto: rank 0 when it is a terminal)");
  app->add_flag("--horovod", raw->horovod, "`import horovod` means rueda in the ranks");
  app->add_option("--bind", raw->bind,
                  "none (default), core, numa, or cpus of each rank as in 0-3:4-7");
  app->add_flag("--verbose", raw->verbose, "say what is started and stopped");
  app->add_option("--config-file", raw->config_file,
                  "file with settings, as horovodrun's (YAML); flags win over it");

  const std::string several = "Several hosts";
  app->add_option("--hostfile", raw->hostfile,
                  "-hostfile: file with a line 'name slots=N' per host")
      ->group(several);
  app->add_option("--rsh-agent", raw->rsh_agent,
                  "command that starts agents, instead of ssh: COMMAND HOST PROGRAM ARGUMENTS")
      ->group(several);
  app->add_option("-p,--ssh-port", raw->ssh_port, "port of sshd")->group(several);
  app->add_option("-i,--ssh-identity-file", raw->identity, "key file of ssh")->group(several);
  app->add_option("--network-interfaces,--network-interface", raw->interfaces,
                  "which may be used: eth0,ib (beginnings), =eth0, ^docker, 10.0.0.0/16")
      ->group(several);
  app->add_option("--token-file", raw->token_file,
                  "start nothing on the hosts; write what `ruedarun join` needs to this file")
      ->group(several);
  app->add_option("--listen-port", raw->listen_port, "port of the driver (any)")->group(several);
  app->add_option("--remote-ruedarun", raw->remote_program,
                  "path of ruedarun on the other hosts (as here)")
      ->group(several);
  app->add_option("--silence-timeout", raw->silence,
                  "seconds without a sign of life after which a host is lost (5)")
      ->group(several);

  const std::string with_mpi = "Under MPI";
  app->add_flag("--mpi", raw->mpi,
                "Open MPI's mpirun starts the ranks, and MPI moves bytes between hosts")
      ->group(with_mpi);
  app->add_option("--mpi-args", raw->mpi_args, "more arguments for mpirun, as one word")
      ->group(with_mpi);
  app->add_option("--mpirun", raw->mpirun, "path of mpirun (the one of rueda's MPI library)")
      ->group(with_mpi);

  const std::string asks = "Questions (no ranks are started)";
  app->add_flag("-v,--version", raw->version, "print the version")->group(asks);
  app->add_flag("--check-build", raw->check_build, "-cb: print what this machine offers")
      ->group(asks);
  app->add_flag("--print-config", raw->print_config, "print every setting and where it comes from")
      ->group(asks);

  const std::string tuning = "Settings for the ranks (each is also a RUEDA_* variable)";
  app->add_option("--timeline,--timeline-filename", raw->timeline, "RUEDA_TIMELINE")->group(tuning);
  app->add_flag("--timeline-all-ranks", raw->timeline_all_ranks,
                "RUEDA_TIMELINE_ALL_RANKS=1: one file of all ranks, on one clock")
      ->group(tuning);
  const auto set_cycles = [raw](int64_t count) { raw->timeline_cycles = count > 0; };
  app->add_flag_function("--timeline-mark-cycles,!--no-timeline-mark-cycles", set_cycles,
                         "RUEDA_TIMELINE_MARK_CYCLES")
      ->group(tuning);
  app->add_flag("--summary", raw->summary, "print one screen at the end: where the time went")
      ->group(tuning);
  app->add_option("--flight-recorder", raw->flight_folder,
                  "FOLDER: RUEDA_FLIGHT_RECORDER, what the ranks did last if one fails")
      ->group(tuning);
  app->add_option("--stall-policy", raw->stall_policy, "RUEDA_STALL_POLICY: warn, dump or abort")
      ->group(tuning);
  app->add_option("--log-level", raw->log_level, "RUEDA_LOG_LEVEL")->group(tuning);
  const auto set_time = [raw](int64_t count) { raw->log_time = count > 0; };
  app->add_flag_function(
         "--log-with-timestamp,--no-log-hide-timestamp,!--log-without-timestamp,"
         "!--log-hide-timestamp",
         set_time, "RUEDA_LOG_HIDE_TIME")
      ->group(tuning);
  app->add_flag("--tcp", raw->tcp, "RUEDA_TRANSPORT=tcp: no shared memory")->group(tuning);
  app->add_option("--fusion-threshold-mb", raw->fusion_mb, "RUEDA_FUSION_THRESHOLD, in MiB")
      ->group(tuning);
  app->add_option("--cache-capacity", raw->cache_capacity, "RUEDA_CACHE_CAPACITY")->group(tuning);
  app->add_option("--start-timeout", raw->start_timeout, "RUEDA_START_TIMEOUT, in seconds")
      ->group(tuning);
  auto* no_stall =
      app->add_flag("--no-stall-check", raw->no_stall_check, "RUEDA_STALL_CHECK_TIME_SECONDS=0")
          ->group(tuning);
  app->add_flag("--stall-check", raw->stall_check, "warn about stalls (default)")
      ->group(tuning)
      ->excludes(no_stall);
  app->add_option("--stall-check-warning-time-seconds", raw->stall_warning,
                  "RUEDA_STALL_CHECK_TIME_SECONDS")
      ->group(tuning)
      ->excludes(no_stall);
  app->add_option("--stall-check-shutdown-time-seconds", raw->stall_shutdown,
                  "RUEDA_STALL_SHUTDOWN_TIME_SECONDS")
      ->group(tuning);

  // horovodrun's flags that ask for what rueda does anyway or has no need of.
  const std::string accepted = "Accepted without effect";
  app->add_flag("--gloo", raw->gloo, "rueda needs no choice of controller")->group(accepted);
  app->add_flag("--disable-cache", raw->unused, "nothing is cached between runs")->group(accepted);
  app->add_option("--cycle-time-ms", raw->unused_text, "there is no cycle")->group(accepted);
}

// "--output_filename" is "--output-filename", as torchrun's users write it.
std::string with_dashes(const CLI::App& app, const std::string& word) {
  if (!word.starts_with("--") || word.find('_') == std::string::npos) return word;
  std::string name = word.substr(0, word.find('='));
  std::replace(name.begin(), name.end(), '_', '-');
  return app.get_option_no_throw(name) == nullptr ? word : name + word.substr(name.size());
}

// Rewrites kSingleDash up to the command. What belongs to the command is never touched, so options
// that take a value must be known: theirs may look like anything.
std::vector<std::string> rewrite_single_dash(const CLI::App& app,
                                             const std::vector<std::string>& arguments) {
  std::vector<std::string> out = arguments;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == "--" || out[i].size() < 2 || out[i][0] != '-') break;
    out[i] = with_dashes(app, out[i]);
    const size_t equals = out[i].find('=');
    const auto found = kSingleDash.find(out[i].substr(0, equals));
    if (found != kSingleDash.end()) {
      out[i] = found->second + (equals == std::string::npos ? "" : out[i].substr(equals));
    }
    if (equals != std::string::npos) continue;
    const CLI::Option* option = app.get_option_no_throw(out[i]);
    if (option != nullptr && option->get_items_expected_min() > 0) ++i;
  }
  return out;
}

// As it stands in every example.
std::string as_typed(const std::string& flag) {
  return flag == "--num-proc" ? "-np" : flag == "--hosts" ? "-H" : flag;
}

std::string number_text(double value) {
  std::string text = CLI::detail::to_string(value);
  return text;
}

Status collect_settings(const Raw& raw, Options* options) {
  auto set = [&](const char* variable, std::string value, const char* flag) {
    options->settings.push_back({variable, std::move(value), flag});
  };
  if (!raw.timeline.empty()) set("RUEDA_TIMELINE", raw.timeline, "--timeline-filename");
  if (raw.timeline_all_ranks) set("RUEDA_TIMELINE_ALL_RANKS", "1", "--timeline-all-ranks");
  if (raw.timeline_cycles) {
    set("RUEDA_TIMELINE_MARK_CYCLES", *raw.timeline_cycles ? "1" : "0",
        *raw.timeline_cycles ? "--timeline-mark-cycles" : "--no-timeline-mark-cycles");
  }
  if (raw.summary) set("RUEDA_SUMMARY", "1", "--summary");
  if (!raw.flight_folder.empty())
    set("RUEDA_FLIGHT_RECORDER", raw.flight_folder, "--flight-recorder");
  if (!raw.stall_policy.empty()) set("RUEDA_STALL_POLICY", raw.stall_policy, "--stall-policy");
  if (!raw.log_level.empty()) set("RUEDA_LOG_LEVEL", raw.log_level, "--log-level");
  if (raw.log_time) {
    set("RUEDA_LOG_HIDE_TIME", *raw.log_time ? "0" : "1",
        *raw.log_time ? "--log-with-timestamp" : "--log-without-timestamp");
  }
  if (raw.tcp) {
    if (raw.mpi) return invalid_argument("--tcp and --mpi contradict each other: leave one out");
    set("RUEDA_TRANSPORT", "tcp", "--tcp");
  }
  if (raw.fusion_mb) {
    if (*raw.fusion_mb < 0 || *raw.fusion_mb > (int64_t{1} << 40))
      return invalid_argument("--fusion-threshold-mb: expected 0 or more");
    set("RUEDA_FUSION_THRESHOLD", std::to_string(*raw.fusion_mb << 20), "--fusion-threshold-mb");
  }
  if (raw.cache_capacity)
    set("RUEDA_CACHE_CAPACITY", std::to_string(*raw.cache_capacity), "--cache-capacity");
  if (raw.start_timeout)
    set("RUEDA_START_TIMEOUT", number_text(*raw.start_timeout), "--start-timeout");
  if (raw.no_stall_check) set("RUEDA_STALL_CHECK_TIME_SECONDS", "0", "--no-stall-check");
  if (raw.stall_warning) {
    set("RUEDA_STALL_CHECK_TIME_SECONDS", number_text(*raw.stall_warning),
        "--stall-check-warning-time-seconds");
  }
  if (raw.stall_shutdown) {
    set("RUEDA_STALL_SHUTDOWN_TIME_SECONDS", number_text(*raw.stall_shutdown),
        "--stall-check-shutdown-time-seconds");
  }
  return {};
}

Status collect_environment(const Raw& raw, Options* options) {
  for (const std::string& entry : raw.environment) {
    const size_t equals = entry.find('=');
    if (equals == 0 || entry.empty())
      return invalid_argument("-x '" + entry + "': expected VAR=VALUE");
    if (equals == std::string::npos) {  // ranks of this host have our environment anyway
      options->named_variables.push_back(entry);
      continue;
    }
    options->environment.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return {};
}

Status collect_shown_ranks(const Raw& raw, Options* options) {
  const std::string& text = raw.shown_ranks;
  const auto wrong = [&] {
    return invalid_argument("--ranks '" + text + "': expected ranks as in 0,3-5");
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t dash = part.find('-', 1);
    int first = 0, last = 0;
    if (!CLI::detail::lexical_cast(part.substr(0, dash), first) ||
        !CLI::detail::lexical_cast(dash == std::string::npos ? part : part.substr(dash + 1),
                                   last) ||
        first < 0 || last < first || last >= kMaxRanks) {
      return wrong();
    }
    for (int rank = first; rank <= last; ++rank) options->shown_ranks.insert(rank);
  }
  return !text.empty() && text.back() == ',' ? wrong() : Status();
}

Status collect_stdin(const Raw& raw, Options* options) {
  if (raw.stdin_text == "auto") return {};
  if (raw.stdin_text == "none") {
    options->stdin_mode = Options::Stdin::kNobody;
    return {};
  }
  options->stdin_mode = Options::Stdin::kOneRank;
  if (!CLI::detail::lexical_cast(raw.stdin_text, options->stdin_rank) || options->stdin_rank < 0)
    return invalid_argument("--stdin '" + raw.stdin_text + "': expected auto, none or a rank");
  return {};
}

// "; did you mean --hostfile?"
std::string guess_option(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string name = word.substr(0, word.find('='));
  const std::string guess = did_you_mean(name, known);
  if (!guess.empty()) return guess;
  std::string dashed = name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  for (const Foreign& foreign : kForeign) {
    if (dashed.starts_with(foreign.begins)) return "; " + std::string(foreign.hint);
  }
  return "";
}

Status collect_command(const CLI::App& app, std::vector<std::string> rest, Options* options) {
  if (!rest.empty() && rest.front() == "--") {
    rest.erase(rest.begin());
  } else if (!rest.empty() && rest.front().size() > 1 && rest.front()[0] == '-') {
    const std::string& word = rest.front();
    const bool horovods = std::any_of(std::begin(kHorovodrunOnly), std::end(kHorovodrunOnly),
                                      [&](const char* flag) { return word.starts_with(flag); });
    return invalid_argument("unknown option '" + word + "'" +
                            (horovods ? "; horovodrun takes it, and says what becomes of it"
                                      : guess_option(app, word)) +
                            " (options of your program belong after its name)");
  }
  options->command = std::move(rest);
  return {};
}

Status check_run(const Options& options) {
  if (options.num_proc == 0)
    return invalid_argument("the number of ranks is missing: ruedarun -np N COMMAND");
  if (options.num_proc < 0 || options.num_proc > kMaxRanks) {
    return invalid_argument("-np " + std::to_string(options.num_proc) + ": expected 1 to " +
                            std::to_string(kMaxRanks));
  }
  if (options.command.empty() || options.command.front().empty())
    return invalid_argument("the command is missing: ruedarun -np N COMMAND");
  if (!(options.grace_seconds >= 0) || options.grace_seconds > 1e6)
    return invalid_argument("--grace-period: expected seconds, 0 or more");
  if (!options.hosts.empty() && !options.hostfile.empty())
    return invalid_argument("-H and --hostfile exclude each other");
  for (const auto& [flag, port] :
       {std::pair("-p", options.ssh_port), std::pair("--listen-port", options.listen_port)}) {
    if (port >= 0 && port <= 65535) continue;
    return invalid_argument(std::string(flag) + " " + std::to_string(port) +
                            ": a port is a number from 1 to 65535");
  }
  if (!(options.silence_seconds >= 0.5) || options.silence_seconds > 600)
    return invalid_argument("--silence-timeout: expected 0.5 to 600 seconds");
  if (options.stdin_mode == Options::Stdin::kOneRank && options.stdin_rank >= options.num_proc) {
    return invalid_argument("--stdin " + std::to_string(options.stdin_rank) + ": there are only " +
                            std::to_string(options.num_proc) + " ranks");
  }
  if (!options.shown_ranks.empty() && *options.shown_ranks.rbegin() >= options.num_proc) {
    return invalid_argument("--ranks " + std::to_string(*options.shown_ranks.rbegin()) +
                            ": there are only " + std::to_string(options.num_proc) +
                            " ranks, from 0");
  }
  return {};
}

}  // namespace

Result<Options> parse_options(const std::vector<std::string>& arguments,
                              const std::string& version) {
  CLI::App app;
  Raw raw;
  bool np_given = false;
  describe(&app, &raw);
  std::vector<std::string> rest;
  Options options;
  try {
    std::vector<std::string> reversed = rewrite_single_dash(app, arguments);
    std::reverse(reversed.begin(), reversed.end());  // CLI11 takes them from the back
    app.parse(reversed);
    rest = app.remaining();
    np_given = app.count("--num-proc") > 0;
  } catch (const CLI::CallForHelp&) {
    options.action = Options::Action::kPrintText;
    options.text = app.help();
    return options;
  } catch (const CLI::ConversionError& error) {  // "Could not convert: --num-proc = two"
    const std::string text = error.what();
    const size_t name = text.find("--"), equals = text.find(" = ");
    if (name == std::string::npos || equals == std::string::npos || equals < name)
      return invalid_argument(text);
    return invalid_argument(as_typed(text.substr(name, equals - name)) + " '" +
                            text.substr(equals + 3) + "': expected a number");
  } catch (const CLI::ArgumentMismatch&
               error) {  // "--hosts: 1 required TEXT missing", "--hosts: At Most 1 ..."
    const std::string text = error.what(), flag = as_typed(text.substr(0, text.find(':')));
    if (text.find("missing") != std::string::npos)
      return invalid_argument(flag + ": its value is missing");
    if (text.find("At Most") != std::string::npos)
      return invalid_argument(flag + " is given more than once");
    return invalid_argument(text);
  } catch (const CLI::Error& error) {
    return invalid_argument(error.what());
  }

  options.num_proc = raw.num_proc;
  options.hosts = raw.hosts;
  options.hostfile = raw.hostfile;
  options.rsh_agent = raw.rsh_agent;
  options.ssh_port = raw.ssh_port;
  options.identity_file = raw.identity;
  options.network_interfaces = raw.interfaces;
  options.token_file = raw.token_file;
  options.listen_port = raw.listen_port;
  options.remote_program = raw.remote_program;
  options.silence_seconds = raw.silence;
  options.grace_seconds = raw.grace;
  options.verbose = raw.verbose;
  options.prefix = raw.prefix;
  options.prefix_timestamp = raw.prefix_timestamp;
  if (raw.fold.value_or(false) && !raw.prefix)
    return invalid_argument(
        "--fold needs prefixes, which say whose a line is: leave out --no-prefix");
  options.fold = raw.fold;
  options.output_folder = raw.output_folder;
  const auto bind = parse_bind(raw.bind);
  if (!bind.ok()) return bind.status();
  options.bind = raw.bind;
  options.mpi = raw.mpi;
  options.gloo = raw.gloo;
  options.stall_check = raw.stall_check;
  options.config_file = raw.config_file;
  options.mpi_args = raw.mpi_args;
  options.mpirun = raw.mpirun;
  options.horovod = raw.horovod;
  for (const auto& [flag, text] :
       {std::pair("--hosts", &raw.hosts), std::pair("--hostfile", &raw.hostfile)}) {
    // A variable of a script that is empty: all ranks here is not what was meant.
    if (app.count(flag) > 0 && text->empty())
      return invalid_argument(as_typed(flag) +
                              " '': it names no host; leave it out for this machine alone");
  }
  if (np_given && raw.num_proc == 0) return invalid_argument("-np 0: there must be a rank");
  RUEDA_RETURN_IF_ERROR(collect_command(app, std::move(rest), &options));
  RUEDA_RETURN_IF_ERROR(collect_settings(raw, &options));
  RUEDA_RETURN_IF_ERROR(collect_environment(raw, &options));
  RUEDA_RETURN_IF_ERROR(collect_stdin(raw, &options));
  RUEDA_RETURN_IF_ERROR(collect_shown_ranks(raw, &options));
  if (raw.version) {
    options.action = Options::Action::kPrintText;
    options.text = version + "\n";
  } else if (raw.check_build) {
    options.action = Options::Action::kCheckBuild;
  } else if (raw.print_config) {
    options.action = Options::Action::kPrintConfig;
  } else {
    RUEDA_RETURN_IF_ERROR(check_run(options));
  }
  return options;
}

}  // namespace rueda::launcher
