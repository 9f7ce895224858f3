#include "launcher/hosts/host_environment.h"

#include <algorithm>
#include <string_view>

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
constexpr const char* kSecret[] = {"TOKEN",       "SECRET",  "PASSWORD",   "PASSWD", "PASSPHRASE",
                                   "PRIVATE_KEY", "API_KEY", "ACCESS_KEY", "PGPASS", "CREDENTIAL"};
constexpr const char* kSecretEnds[] = {"_KEY", "_PWD", "_PASS", "_PAT"};

// "scheme://user:password@host"
bool has_password(std::string_view value) {
  const size_t scheme = value.find("://");
  if (scheme == std::string_view::npos) return false;
  value.remove_prefix(scheme + 3);
  value = value.substr(0, value.find('/'));
  const size_t at = value.rfind('@');
  return at != std::string_view::npos && value.substr(0, at).find(':') != std::string_view::npos;
}

bool looks_secret(const std::string& name, std::string_view value) {
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  const auto holds = [&](const char* other) { return upper.find(other) != std::string::npos; };
  const auto ends = [&](const char* other) { return upper.ends_with(other); };
  return std::any_of(std::begin(kSecret), std::end(kSecret), holds) ||
         std::any_of(std::begin(kSecretEnds), std::end(kSecretEnds), ends) || has_password(value);
}

bool is_left_out(const std::string& name) {
  const auto equals = [&](const char* other) { return name == other; };
  const auto begins = [&](const char* other) { return name.starts_with(other); };
  return std::any_of(kVariablesOfHosts.begin(), kVariablesOfHosts.end(), equals) ||
         std::any_of(std::begin(kLeftOut), std::end(kLeftOut), equals) ||
         std::any_of(std::begin(kLeftOutBeginnings), std::end(kLeftOutBeginnings), begins);
}

}  // namespace

std::vector<std::string> environment_for_hosts(const std::vector<std::string>& environment,
                                               const std::vector<std::string>& named,
                                               std::vector<std::string>* withheld) {
  std::vector<std::string> out;
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    const bool wanted = std::find(named.begin(), named.end(), name) != named.end();
    if (wanted || name.starts_with("RUEDA_") || name.starts_with("HOROVOD_")) {
      out.push_back(entry);
    } else if (is_left_out(name)) {
      continue;
    } else if (looks_secret(
                   name, std::string_view(entry).substr(std::min(entry.size(), name.size() + 1)))) {
      if (withheld != nullptr) withheld->push_back(name);
    } else {
      out.push_back(entry);
    }
  }
  return out;
}

}  // namespace rueda::launcher
