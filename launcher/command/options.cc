#include "launcher/command/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "launcher/binding/binding.h"
#include "launcher/command/flags.h"
#include "launcher/command/nearest_name.h"

namespace rueda::launcher {
namespace {

// Flags of horovodrun that are not ours, by how they begin.
constexpr const char* kHorovodrunOnly[] = {
    "--jsrun",        "--hierarchical-",    "--no-hierarchical-", "--torus-",
    "--no-torus-",    "--autotune-",        "--mpi-threads-",     "--no-mpi-threads-",
    "--binding-args", "--num-nccl-streams", "--thread-affinity",  "--gloo-timeout-"};

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

void describe(CLI::App* app) {
  app->name("ruedarun");
  app->description(
      "Starts N ranks of a program, here or on several hosts, and looks after them.\n\n"
      "  ruedarun -np N [OPTIONS] COMMAND [ARGUMENTS...]\n"
      "  ruedarun -np 4 python train.py\n"
      "  ruedarun -np 8 -H node1:4,node2:4 python train.py\n"
      "  ruedarun python train.py    (all slots of a hostfile or an allocation that is found)\n"
      "  ruedarun join [HOST:PORT] --token-file F    (on a host, for ruedarun --token-file F)\n\n"
      "Exit code: 0 if all ranks ended with 0; else the code of the first rank that failed\n"
      "(128 + signal if it was killed); 130 after Ctrl-C; 2 for a wrong command line.");
  app->prefix_command();
}

// "--output_filename" is "--output-filename", as torchrun's users write it.
std::string with_dashes(const CLI::App& app, const std::string& word) {
  if (!word.starts_with("--") || word.find('_') == std::string::npos) return word;
  std::string name = word.substr(0, word.find('='));
  std::replace(name.begin(), name.end(), '_', '-');
  return app.get_option_no_throw(name) == nullptr ? word : name + word.substr(name.size());
}

// Spells flags as CLI11 wants them, up to the command. What belongs to the command is never
// touched, so options that take a value must be known: theirs may look like anything.
std::vector<std::string> spelled_for_cli11(const CLI::App& app,
                                           const std::vector<std::string>& arguments) {
  std::vector<std::string> out = arguments;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == "--" || out[i].size() < 2 || out[i][0] != '-') break;
    out[i] = with_two_dashes(with_dashes(app, out[i]));
    if (out[i].find('=') != std::string::npos) continue;
    const CLI::Option* option = app.get_option_no_throw(out[i]);
    if (option != nullptr) i += static_cast<size_t>(std::max(option->get_items_expected_min(), 0));
  }
  return out;
}

Status collect_environment(CommandLine* line) {
  for (const std::string& entry : line->variables) {
    const size_t equals = entry.find('=');
    if (equals == 0 || entry.empty())
      return invalid_argument("-x '" + entry + "': expected VAR=VALUE");
    if (equals == std::string::npos) {  // ranks of this host have our environment anyway
      line->named_variables.push_back(entry);
      continue;
    }
    line->environment.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return {};
}

Status collect_shown_ranks(CommandLine* line) {
  const std::string& text = line->ranks;
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
    for (int rank = first; rank <= last; ++rank) line->shown_ranks.insert(rank);
  }
  return !text.empty() && text.back() == ',' ? wrong() : Status();
}

Status collect_stdin(CommandLine* line) {
  if (line->reader == "auto") return {};
  if (line->reader == "none") {
    line->stdin_mode = Options::Stdin::kNobody;
    return {};
  }
  line->stdin_mode = Options::Stdin::kOneRank;
  if (!CLI::detail::lexical_cast(line->reader, line->stdin_rank) || line->stdin_rank < 0)
    return invalid_argument("--stdin '" + line->reader + "': expected auto, none or a rank");
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

Status collect_count(const CLI::App& app, CommandLine* line) {
  if (app.count("--num-proc") == 0) return {};
  const std::string& text = line->count;
  if (text == "auto") {
    line->auto_ranks = true;
    return {};
  }
  if (!CLI::detail::lexical_cast(text, line->num_proc))
    return invalid_argument("-np '" + text + "': expected a number, or auto");
  if (line->num_proc == 0) return invalid_argument("-np 0: there must be a rank");
  if (line->num_proc < 0 || line->num_proc > kMaxRanks) {
    return invalid_argument("-np " + text + ": expected 1 to " + std::to_string(kMaxRanks));
  }
  return {};
}

Status check_run(const Options& options) {
  if (options.command.empty() || options.command.front().empty()) {
    return invalid_argument(options.num_proc == 0 && !options.auto_ranks
                                ? "the number of ranks is missing: ruedarun -np N COMMAND"
                                : "the command is missing: ruedarun -np N COMMAND");
  }
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
  return options.num_proc == 0 ? Status() : check_ranks(options);
}

// What CLI11 says of a wrong command line, in our words.
Status in_our_words(const CLI::ConversionError& error) {  // "Could not convert: --num-proc = two"
  const std::string text = error.what();
  const size_t name = text.find("--"), equals = text.find(" = ");
  if (name == std::string::npos || equals == std::string::npos || equals < name)
    return invalid_argument(text);
  return invalid_argument(as_typed(text.substr(name, equals - name)) + " '" +
                          text.substr(equals + 3) + "': expected a number");
}

// "--hosts: 1 required TEXT missing", "--hosts: At Most 1 ..."
Status in_our_words(const CLI::ArgumentMismatch& error) {
  const std::string text = error.what(), flag = as_typed(text.substr(0, text.find(':')));
  if (text.find("missing") != std::string::npos)
    return invalid_argument(flag + ": its value is missing");
  if (text.find("At Most") != std::string::npos)
    return invalid_argument(flag + " is given more than once");
  return invalid_argument(text);
}

// What flags say of each other, whether ranks are started or not.
Status check_flags(const CLI::App& app, const CommandLine& line) {
  if (line.fold.value_or(false) && !line.prefix)
    return invalid_argument(
        "--fold needs prefixes, which say whose a line is: leave out --no-prefix");
  const auto bind = parse_bind(line.bind);
  if (!bind.ok()) return bind.status();
  for (const auto& [flag, text] :
       {std::pair("--hosts", &line.hosts), std::pair("--hostfile", &line.hostfile)}) {
    // A variable of a script that is empty: all ranks here is not what was meant.
    if (app.count(flag) > 0 && text->empty())
      return invalid_argument(as_typed(flag) +
                              " '': it names no host; leave it out for this machine alone");
  }
  for (const Setting& setting : line.settings) {
    if (line.mpi && setting.variable == "RUEDA_TRANSPORT")
      return invalid_argument(setting.flag + " and --mpi contradict each other: leave one out");
  }
  return {};
}

}  // namespace

void make_app(CLI::App* app, CommandLine* line) {
  describe(app);
  add_flags(app, line);
}

Status check_ranks(const Options& options) {
  if (options.stdin_mode == Options::Stdin::kOneRank && options.stdin_rank >= options.num_proc) {
    return invalid_argument("--stdin " + std::to_string(options.stdin_rank) + ": there are only " +
                            std::to_string(options.num_proc) + " ranks");
  }
  if (!options.shown_ranks.empty() && *options.shown_ranks.rbegin() >= options.num_proc) {
    return invalid_argument("--ranks " + std::to_string(*options.shown_ranks.rbegin()) +
                            ": there are only " + std::to_string(options.num_proc) +
                            " ranks, from 0");
  }
  return check_elastic_ranks(options.elastic, options.num_proc);
}

Result<Options> parse_options(const std::vector<std::string>& arguments,
                              const std::string& version) {
  CLI::App app;
  CommandLine line;
  make_app(&app, &line);
  try {
    std::vector<std::string> reversed = spelled_for_cli11(app, arguments);
    std::reverse(reversed.begin(), reversed.end());  // CLI11 takes them from the back
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    Options help;
    help.action = Options::Action::kPrintText;
    help.text = app.help();
    return help;
  } catch (const CLI::ConversionError& error) {
    return in_our_words(error);
  } catch (const CLI::ArgumentMismatch& error) {
    return in_our_words(error);
  } catch (const CLI::Error& error) {
    return invalid_argument(error.what());
  }

  RUEDA_RETURN_IF_ERROR(collect_command(app, app.remaining(), &line));
  RUEDA_RETURN_IF_ERROR(collect_count(app, &line));
  RUEDA_ASSIGN_OR_RETURN(line.elastic, read_elastic(line.elastic_words));
  RUEDA_RETURN_IF_ERROR(check_flags(app, line));
  RUEDA_RETURN_IF_ERROR(collect_environment(&line));
  RUEDA_RETURN_IF_ERROR(collect_stdin(&line));
  RUEDA_RETURN_IF_ERROR(collect_shown_ranks(&line));
  if (line.version) {
    line.action = Options::Action::kPrintText;
    line.text = version + "\n";
  } else if (line.check_build) {
    line.action = Options::Action::kCheckBuild;
  } else if (line.print_config) {
    line.action = Options::Action::kPrintConfig;
  } else {
    RUEDA_RETURN_IF_ERROR(check_run(line));
  }
  return static_cast<Options&&>(line);
}

}  // namespace rueda::launcher
