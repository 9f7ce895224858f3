#include "launcher/hosts/host_environment.h"

#include <algorithm>

namespace rueda::launcher {
namespace {

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
                                    "K_MPI_JOB_ROLE",
                                    "XAUTHORITY"};
constexpr const char* kLeftOutBeginnings[] = {"SSH_",  "SLURM_", "SLURMD_",    "PMI_",
                                              "PMIX_", "OMPI_",  "BASH_FUNC_", "GPG_"};
constexpr const char* kSecret[] = {"TOKEN",      "SECRET",      "PASSWORD", "PASSWD",
                                   "CREDENTIAL", "PRIVATE_KEY", "API_KEY",  "ACCESS_KEY"};

bool is_left_out(const std::string& name) {
  const auto equals = [&](const char* other) { return name == other; };
  const auto begins = [&](const char* other) { return name.starts_with(other); };
  const auto holds = [&](const char* other) { return name.find(other) != std::string::npos; };
  return std::any_of(kVariablesOfHosts.begin(), kVariablesOfHosts.end(), equals) ||
         std::any_of(std::begin(kLeftOut), std::end(kLeftOut), equals) ||
         std::any_of(std::begin(kLeftOutBeginnings), std::end(kLeftOutBeginnings), begins) ||
         std::any_of(std::begin(kSecret), std::end(kSecret), holds);
}

}  // namespace

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

}  // namespace rueda::launcher
