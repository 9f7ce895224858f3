// Which variables go from the user's host to others. Pure.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace rueda::launcher {

// A host's own: taken from the agent's environment there.
inline constexpr std::array kVariablesOfHosts = {
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "HOSTNAME",
    "TMPDIR",
    "MAIL",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES"};  // a launcher's pod has no GPU

// Of the user's environment what the ranks on another host are given: not what belongs to this
// host, to the session, or what looks like a secret (by its name, or a password in a URL), unless
// `named` (-x). withheld: the names of the last kind; may be null.
std::vector<std::string> environment_for_hosts(const std::vector<std::string>& environment,
                                               const std::vector<std::string>& named,
                                               std::vector<std::string>* withheld = nullptr);

}  // namespace rueda::launcher
