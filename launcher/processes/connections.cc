#include "launcher/processes/connections.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace rueda::launcher {
namespace {

constexpr std::string_view kSocket = "socket:[";

// Numbers of the process's sockets.
std::set<std::string> sockets_of(const std::string& process) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry, error).string();
    if (!error && target.starts_with(kSocket))
      inodes.insert(target.substr(kSocket.size(), target.size() - kSocket.size() - 1));
  }
  return inodes;
}

}  // namespace

// "sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ..."
bool lists_established(const std::string& table, const std::set<std::string>& inodes) {
  constexpr size_t kState = 3, kInode = 9;
  constexpr const char* kEstablished = "01";
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    if (fields.size() > kInode && fields[kState] == kEstablished && inodes.contains(fields[kInode]))
      return true;
  }
  return false;
}

bool has_tcp_connection(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  const std::set<std::string> inodes = sockets_of(process);
  if (inodes.empty()) return false;
  for (const char* const name : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream file(process + name);
    if (lists_established({std::istreambuf_iterator<char>(file), {}}, inodes)) return true;
  }
  return false;
}

}  // namespace rueda::launcher
