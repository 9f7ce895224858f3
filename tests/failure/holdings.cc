#include "tests/failure/holdings.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

namespace rueda::testing {
namespace {

std::vector<std::string> entries(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> list(opendir(directory.c_str()),
                                                 [](DIR* d) { return closedir(d); });
  std::vector<std::string> names;
  if (list == nullptr) return names;
  while (const dirent* entry = readdir(list.get())) {
    if (std::string(entry->d_name) != "." && std::string(entry->d_name) != "..")
      names.emplace_back(entry->d_name);
  }
  return names;
}

std::string link_target(const std::string& path) {
  char text[512];
  const ssize_t length = readlink(path.c_str(), text, sizeof(text));
  return length < 0 ? "" : std::string(text, static_cast<size_t>(length));
}

std::string folder_of(pid_t pid) { return "/proc/" + std::to_string(pid); }

// "0100007F:1F90" in host words; tcp6: 32 digits.
void parse_address(const std::string& text, TcpSocket* socket) {
  const std::string host = text.substr(0, text.find(':'));
  socket->port = static_cast<int>(strtol(text.substr(text.find(':') + 1).c_str(), nullptr, 16));
  if (socket->v6) {
    const bool mapped = host.compare(16, 8, "FFFF0000") == 0 && host.compare(30, 2, "7F") == 0;
    socket->loopback = host == "00000000000000000000000001000000" || mapped;
  } else {
    socket->loopback =
        host.compare(6, 2, "7F") == 0;  // the bytes are in network order, the words in ours
  }
}

}  // namespace

std::vector<std::string> holdings(pid_t pid) {
  std::vector<std::string> found;
  for (const std::string& fd : entries(folder_of(pid) + "/fd")) {
    const std::string target = link_target(folder_of(pid) + "/fd/" + fd);
    for (const char* kind : {"socket:", "memfd:", "eventfd", "eventpoll"}) {
      if (target.find(kind) != std::string::npos) found.push_back("fd " + fd + ": " + target);
    }
  }
  std::ifstream maps(folder_of(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    // Shared ones: a forked child has a private copy of its parent's heap.
    const bool shared = line.find("s ") == line.find(' ') + 4;
    if (shared && line.find("memfd:rueda") != std::string::npos)
      found.push_back("mapping: " + line);
  }
  return found;
}

std::set<unsigned long> socket_inodes(pid_t pid) {
  std::set<unsigned long> found;
  for (const std::string& fd : entries(folder_of(pid) + "/fd")) {
    unsigned long inode = 0;
    if (sscanf(link_target(folder_of(pid) + "/fd/" + fd).c_str(), "socket:[%lu]", &inode) == 1)
      found.insert(inode);
  }
  return found;
}

std::vector<TcpSocket> tcp_sockets() {
  std::vector<TcpSocket> found;
  for (const bool v6 : {false, true}) {
    std::ifstream table(v6 ? "/proc/net/tcp6" : "/proc/net/tcp");
    std::string line;
    std::getline(table, line);  // the heading
    while (std::getline(table, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout;
      TcpSocket socket;
      socket.v6 = v6;
      if (!(words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
            timeout >> socket.inode)) {
        continue;
      }
      socket.listening = state == "0A";
      parse_address(local, &socket);
      found.push_back(socket);
    }
  }
  return found;
}

std::vector<UnixSocket> abstract_sockets(const std::string& prefix) {
  std::vector<UnixSocket> found;
  std::ifstream table("/proc/net/unix");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string address, references, protocol, flags, type, state, name;
    UnixSocket socket;
    if (!(words >> address >> references >> protocol >> flags >> type >> state >> socket.inode >>
          name))
      continue;
    if (name.compare(0, prefix.size() + 1, "@" + prefix) != 0) continue;
    socket.name = name.substr(1);
    found.push_back(socket);
  }
  return found;
}

std::set<std::string> names_in(const std::string& directory, const std::string& text) {
  std::set<std::string> found;
  for (const std::string& name : entries(directory)) {
    if (name.find(text) != std::string::npos) found.insert(name);
  }
  return found;
}

}  // namespace rueda::testing
