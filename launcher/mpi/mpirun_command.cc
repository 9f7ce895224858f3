#include "launcher/mpi/mpirun_command.h"

#include <algorithm>
#include <cmath>

#include "launcher/hosts/host_environment.h"
#include "launcher/hosts/start_command.h"
#include "launcher/job/rank_environment.h"

namespace rueda::launcher {
namespace {

using Words = std::vector<std::string>;

void add(Words* words, const Words& more) { words->insert(words->end(), more.begin(), more.end()); }

void set_default(Words* environment, const std::string& name, const std::string& value) {
  if (find_variable(*environment, name) == nullptr) set_variable(environment, name, value);
}

// What only our own agents can do is refused rather than forgotten.
Status check(const Options& options) {
  const Options plain;
  const auto refuse = [](const std::string& flag, const std::string& why) {
    return invalid_argument(flag + " does not work with --mpi: " + why);
  };
  if (!options.shown_ranks.empty()) return refuse("--ranks", "mpirun prints the output of all");
  if (options.fold.value_or(false)) return refuse("--fold", "mpirun prints the output of all");
  if (!options.token_file.empty()) return refuse("--token-file", "mpirun starts its own daemons");
  if (options.listen_port != plain.listen_port)
    return refuse("--listen-port", "mpirun listens, see its oob_tcp_static_ports");
  if (!options.remote_program.empty())
    return refuse("--remote-ruedarun",
                  "mpirun starts its own daemons (--mpi-args '--prefix PATH')");
  if (options.silence_seconds != plain.silence_seconds)
    return refuse("--silence-timeout", "mpirun watches the hosts in its own way");
  if (!options.bind.empty() && options.bind != "none" && options.bind != "core" &&
      options.bind != "numa")
    return refuse("--bind " + options.bind, "give mpirun a rankfile: --mpi-args '--rankfile F'");
  for (const Setting& setting : options.settings) {
    if (setting.flag == "--summary")
      return refuse("--summary", "it is printed by ruedarun's agents");
  }
  return {};
}

// "=eth0,=ib0", "10.0.0.0/16" or "^docker0" as Open MPI's lists of interfaces.
Result<Words> interface_words(const std::string& selection) {
  std::string included, excluded;
  for (size_t begin = 0; begin < selection.size();) {
    const size_t end = std::min(selection.find(',', begin), selection.size());
    const std::string part = selection.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty()) continue;
    const bool out = part[0] == '^', exact = part[0] == '=';
    if (!out && !exact && part.find('/') == std::string::npos) {
      return invalid_argument("--network-interfaces '" + part +
                              "': with --mpi give whole names (=" + part + "), or 10.0.0.0/16");
    }
    std::string* list = out ? &excluded : &included;
    if (!list->empty()) *list += ',';
    *list += part.substr(out || exact ? 1 : 0);
  }
  if (!included.empty() && !excluded.empty())
    return invalid_argument("--network-interfaces: with --mpi either names or ^names");
  Words words;
  for (const char* layer : {"btl_tcp_if_", "oob_tcp_if_"}) {
    if (!included.empty()) add(&words, {"--mca", std::string(layer) + "include", included});
    // Open MPI leaves loopback out by default; a list of one's own replaces that.
    if (!excluded.empty()) add(&words, {"--mca", std::string(layer) + "exclude", "lo," + excluded});
  }
  return words;
}

Result<Words> remote_words(const MpirunRequest& request) {
  const Options& options = request.options;
  Words words;
  std::string rsh;
  if (options.ssh_port != 0) rsh += "-p " + std::to_string(options.ssh_port);
  if (!options.identity_file.empty()) {
    if (!rsh.empty()) rsh += ' ';
    rsh += "-i " + options.identity_file;
  }
  if (!rsh.empty()) add(&words, {"--mca", "plm_rsh_args", rsh});
  if (!options.rsh_agent.empty()) add(&words, {"--mca", "plm_rsh_agent", options.rsh_agent});
  RUEDA_ASSIGN_OR_RETURN(const Words interfaces, interface_words(options.network_interfaces));
  add(&words, interfaces);
  return words;
}

// "a:2,b:2": as many ranks as were planned for each.
Result<std::string> host_list(const std::vector<HostPlan>& hosts) {
  std::string list;
  for (const HostPlan& host : hosts) {
    if (host.host.host.find(':') != std::string::npos)
      return invalid_argument("host " + host.host.host +
                              ": Open MPI takes names and IPv4 addresses");
    if (!host.host.user.empty() || host.host.port != 0) {
      return invalid_argument("host " + host.host.host +
                              ": with --mpi, user and port belong into ~/.ssh/config");
    }
    list += (list.empty() ? "" : ",") + host.host.host + ":" + std::to_string(host.places.size());
  }
  return list;
}

// What the ranks on several hosts need, since no agent of ours tells them.
Status tell_meeting_place(const MpirunRequest& request, Words* environment) {
  const char* key = find_variable(*environment, "RUEDA_KEY_FILE");
  if (key == nullptr || *key == '\0') {
    return failed_precondition(
        "--mpi on several hosts: ranks prove to each other that they belong to the job with a key "
        "that "
        "every host has at the same path: (umask 077; head -c 32 /dev/urandom | base64 > "
        "~/.rueda-key) on each, then export RUEDA_KEY_FILE=~/.rueda-key");
  }
  const HostPlan& first = request.hosts.front();
  const std::string host = first.ours ? request.own_host : first.host.host;
  set_default(environment, "RUEDA_RENDEZVOUS",
              host + ":" + std::to_string(request.rendezvous_port));
  return {};
}

// Whether one of the words is such an option, with one dash or two. Two opinions confuse mpirun.
bool names_any(const Words& words, const std::vector<std::string>& options) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    if (word.empty() || word[0] != '-') return false;
    const std::string name = word.substr(word.starts_with("--") ? 2 : 1);
    return std::find(options.begin(), options.end(), name) != options.end();
  });
}

std::string stdin_of(const MpirunRequest& request) {
  switch (request.options.stdin_mode) {
    case Options::Stdin::kNobody: return "none";
    case Options::Stdin::kOneRank: return std::to_string(request.options.stdin_rank);
    case Options::Stdin::kAuto: break;
  }
  return request.terminal_stdin ? "0" : "none";
}

}  // namespace

Status choose_mpi_transport(const std::vector<std::string>& environment, Options* options) {
  if (!options->mpi) {
    if (!options->mpi_args.empty()) return invalid_argument("--mpi-args: works only with --mpi");
    if (!options->mpirun.empty()) return invalid_argument("--mpirun: works only with --mpi");
    return {};
  }
  const Words base = base_environment(environment, *options);
  const char* chosen = find_variable(base, "RUEDA_TRANSPORT");
  const std::string transport = chosen == nullptr ? "" : chosen;
  if (transport == "tcp")
    return invalid_argument("--mpi and RUEDA_TRANSPORT=tcp contradict each other: leave one out");
  if (transport.empty() || transport == "auto")
    options->settings.push_back({"RUEDA_TRANSPORT", "mpi", "--mpi"});
  return {};
}

Result<MpirunCommand> mpirun_command(const MpirunRequest& request) {
  const Options& options = request.options;
  RUEDA_RETURN_IF_ERROR(check(options));
  MpirunCommand command;
  command.environment = request.environment;
  Words& words = command.words;
  words = {request.mpirun, "-np", std::to_string(options.num_proc)};
  if (request.root) words.push_back("--allow-run-as-root");
  if (request.hosts_given) {
    RUEDA_ASSIGN_OR_RETURN(const std::string list, host_list(request.hosts));
    add(&words, {"--host", list});
  } else {
    words.push_back("--oversubscribe");  // as many as are asked for, as without --mpi
  }
  RUEDA_ASSIGN_OR_RETURN(const Words more, split_words(options.mpi_args));
  if (!names_any(more, {"map-by", "rankfile", "rf"})) add(&words, {"--map-by", "slot"});
  if (!names_any(more, {"bind-to", "cpu-set", "rankfile", "rf"}))
    add(&words, {"--bind-to", options.bind.empty() ? "none" : options.bind});
  add(&words, {"--stdin", stdin_of(request)});
  if (options.prefix) words.push_back("--tag-output");
  if (options.prefix_timestamp) words.push_back("--timestamp-output");
  if (!options.output_folder.empty())
    add(&words, {"--output-filename", options.output_folder + ":nojobid"});
  if (options.verbose) words.push_back("--report-bindings");
  if (options.grace_seconds !=
      Options().grace_seconds) {  // mpirun's own is 1 s, and it sits it out
    const auto grace = static_cast<int>(std::ceil(std::min(options.grace_seconds, 1e6)));
    add(&words, {"--mca", "odls_base_sigkill_timeout", std::to_string(grace)});
  }

  if (request.several_hosts) {
    RUEDA_ASSIGN_OR_RETURN(const Words remote, remote_words(request));
    add(&words, remote);
    RUEDA_RETURN_IF_ERROR(tell_meeting_place(request, &command.environment));
  }
  set_default(&command.environment, "OMP_NUM_THREADS", std::to_string(request.threads));
  // Not PYTHONUNBUFFERED: mpirun gives ranks a terminal for stdout, whose lines Python keeps whole,
  // and prints pieces of lines as they come.
  if (request.several_hosts) {  // ranks of this host have it all anyway
    Words named = options.named_variables;
    for (const auto& [name, value] : options.environment) named.push_back(name);
    for (const std::string& entry : environment_for_hosts(command.environment, named)) {
      add(&words, {"-x", entry.substr(0, entry.find('='))});
    }
  }
  add(&words, more);
  add(&words, options.command);
  return command;
}

}  // namespace rueda::launcher
