#include "runtime/membership/launchers/meeting.h"

#include <charconv>

namespace rueda::launchers {
namespace {

constexpr int kPorts = 8;  // the launcher itself, or torch.distributed, holds the one it named

Status refuse_address(const std::string& text) {
  return invalid_argument("RUEDA_RENDEZVOUS='" + text +
                          "': expected HOST:PORT with a port from 1 to 65535, like node1:29400 or "
                          "[fd00::1]:29400");
}

Status read_address(const std::string& text, Meeting* meeting) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return refuse_address(text);
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, meeting->first_port);
  if (error != std::errc() || rest != end || meeting->first_port < 1 || meeting->first_port > 65535)
    return refuse_address(text);
  meeting->host = text.substr(0, colon);
  if (meeting->host.front() == '[') {
    if (meeting->host.size() < 3 || meeting->host.back() != ']') return refuse_address(text);
    meeting->host = meeting->host.substr(1, meeting->host.size() - 2);
  }
  return {};
}

}  // namespace

Result<Meeting> plan_meeting(const membership::Place& place, const Config& config) {
  Meeting meeting;
  meeting.key_file = config.key_file;
  if (!config.rendezvous.empty()) {
    RUEDA_RETURN_IF_ERROR(read_address(config.rendezvous, &meeting));
    meeting.why = "RUEDA_RENDEZVOUS";
  } else if (place.one_host) {
    meeting.one_host = true;
    meeting.why = "all ranks on this host, says " + place.source;
    return meeting;
  } else if (place.root_host.empty() || place.root_port == 0) {
    return failed_precondition(
        place.source +
        " does not say where rank 0 is: set RUEDA_RENDEZVOUS=HOST:PORT to a free port of rank 0's "
        "host, and RUEDA_KEY_FILE to a file with a secret that all hosts have, on every rank; or "
        "start the job with `ruedarun -np " +
        std::to_string(place.size) + "`");
  } else {
    meeting.host = place.root_host;
    meeting.first_port = place.root_port + 1;
    meeting.ports = kPorts;
    meeting.why = place.source;
  }
  if (meeting.key_file.empty() && !place.has_key) {
    return failed_precondition(
        "ranks on several hosts (" + place.source +
        ") need a key before they trust each other: make one with `(umask 077; head -c 32 "
        "/dev/urandom | base64 > ~/.rueda-key)`, give every host the same file, and set "
        "RUEDA_KEY_FILE to it on every rank; or start the job with ruedarun, which does it for "
        "you");
  }
  return meeting;
}

}  // namespace rueda::launchers
