#include "launcher/hosts/late_start.h"

#include <sys/wait.h>

#include <algorithm>

#include "launcher/hosts/start_command.h"

namespace rueda::launcher {
namespace {

// Of ssh, and of the C library below most other programs.
constexpr const char* kNotYet[] = {"Could not resolve hostname",
                                   "Name or service not known",
                                   "Temporary failure in name resolution",
                                   "No address associated with hostname",
                                   "Connection refused",
                                   "Connection timed out",
                                   "No route to host",
                                   "Network is unreachable",
                                   "Connection reset by",
                                   "Connection closed by"};

constexpr int kSshFailed = 255;
constexpr std::chrono::milliseconds kFirstPause{500}, kLongestPause{5000};

}  // namespace

bool says_not_yet(const std::string& line) {
  if (line.starts_with("ruedarun: ")) return false;  // our own, over there
  return std::any_of(std::begin(kNotYet), std::end(kNotYet),
                     [&](const char* words) { return line.find(words) != std::string::npos; });
}

bool may_come_later(const std::string& program, int wait_status, const std::string& last_line) {
  if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) == 0) return false;
  if (is_ssh(program) && WEXITSTATUS(wait_status) != kSshFailed) return false;
  return says_not_yet(last_line);
}

std::string hint_of_large_packets(const std::string& host) {
  return ", or large packets are lost on the way (MTU; try: ping -M do -s 1472 " + host + ")";
}

std::chrono::milliseconds pause_before(int tries) {
  std::chrono::milliseconds pause = kFirstPause;
  for (int i = 1; i < tries && pause < kLongestPause; ++i) pause *= 2;
  return std::min(pause, kLongestPause);
}

}  // namespace rueda::launcher
