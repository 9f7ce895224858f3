#include "launcher/hosts/head_hosts.h"

#include <algorithm>

#include "launcher/rank_environment.h"

namespace rueda::launcher {
namespace {

// A host's own: taken from the agent's environment there.
constexpr const char* kOfTheHost[] = {"HOME",          "USER",   "LOGNAME", "SHELL",
                                      "HOSTNAME",      "TMPDIR", "MAIL",    "XDG_RUNTIME_DIR",
                                      "XDG_SESSION_ID"};
// Of this session or this host, of no use elsewhere.
constexpr const char* kLeftOut[] = {"DISPLAY",
                                    "WAYLAND_DISPLAY",
                                    "DBUS_SESSION_BUS_ADDRESS",
                                    "TERM_SESSION_ID",
                                    "WINDOWID",
                                    "LS_COLORS",
                                    "OLDPWD",
                                    "SHLVL",
                                    "_",
                                    "TMUX",
                                    "TMUX_PANE",
                                    "STY",
                                    "XAUTHORITY"};
constexpr const char* kLeftOutBeginnings[] = {"SSH_",  "SLURM_", "SLURMD_",    "PMI_",
                                              "PMIX_", "OMPI_",  "BASH_FUNC_", "GPG_"};
constexpr const char* kSecret[] = {"TOKEN",      "SECRET",      "PASSWORD", "PASSWD",
                                   "CREDENTIAL", "PRIVATE_KEY", "API_KEY",  "ACCESS_KEY"};

bool is_left_out(const std::string& name) {
  const auto equals = [&](const char* other) { return name == other; };
  const auto begins = [&](const char* other) { return name.starts_with(other); };
  const auto holds = [&](const char* other) { return name.find(other) != std::string::npos; };
  return std::any_of(std::begin(kOfTheHost), std::end(kOfTheHost), equals) ||
         std::any_of(std::begin(kLeftOut), std::end(kLeftOut), equals) ||
         std::any_of(std::begin(kLeftOutBeginnings), std::end(kLeftOutBeginnings), begins) ||
         std::any_of(std::begin(kSecret), std::end(kSecret), holds);
}

}  // namespace

std::string name_hosts(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i != 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  return text;
}

std::vector<std::string> environment_for_hosts(const std::vector<std::string>& environment,
                                               const std::vector<std::string>& named) {
  std::vector<std::string> out;
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    const bool wanted = std::find(named.begin(), named.end(), name) != named.end();
    if (wanted || name.starts_with("RUEDA_") || name.starts_with("HOROVOD_") || !is_left_out(name))
      out.push_back(entry);
  }
  return out;
}

control::Assign make_assignment(const JobText& job, const HostPlan& host, int host_index,
                                const std::vector<std::string>& command,
                                const std::vector<std::string>& environment) {
  control::Assign assign;
  assign.set_job_id(job.job_id);
  assign.set_job_key(job.key);
  assign.set_host_index(host_index);
  assign.set_host_name(host.host.host);
  assign.set_dead_seconds(job.dead_seconds);
  for (const RankPlace& place : host.places) {
    auto* added = assign.add_places();
    added->set_rank(place.rank);
    added->set_size(place.size);
    added->set_local_rank(place.local_rank);
    added->set_local_size(place.local_size);
    added->set_cross_rank(place.cross_rank);
    added->set_cross_size(place.cross_size);
  }
  for (const std::string& word : command) assign.add_command(word);
  std::vector<std::string> variables = environment;
  if (find_variable(variables, "RUEDA_TCP_ADDRESS") == nullptr)
    set_variable(&variables, "RUEDA_TCP_ADDRESS", job.address);
  set_variable(&variables, "HOROVOD_HOSTNAME", host.host.host);
  for (const std::string& entry : variables) assign.add_environment(entry);
  for (const char* name : kOfTheHost) assign.add_own_variables(name);
  assign.set_folder(job.folder);
  assign.set_bind(job.bind);
  assign.set_grace_seconds(job.grace_seconds);
  assign.set_silence_seconds(job.silence_seconds);
  assign.set_verbose(job.verbose);
  assign.set_hangup_ignored(job.hangup_ignored);
  return assign;
}

}  // namespace rueda::launcher
