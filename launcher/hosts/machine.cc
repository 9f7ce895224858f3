#include "launcher/hosts/machine.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netdb.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include "launcher/hosts/addresses.h"

namespace rueda::launcher {

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

std::vector<std::string> own_names() {
  std::vector<std::string> names = {"localhost", "127.0.0.1", "::1", host_name()};
  names.push_back(names.back().substr(0, names.back().find('.')));
  for (const InterfaceAddress& entry : read_interfaces()) names.push_back(entry.address);
  std::ifstream hosts("/etc/hosts");
  for (std::string& name : longer_names(hosts, host_name())) names.push_back(std::move(name));
  return names;
}

std::vector<std::string> longer_names(std::istream& hosts, const std::string& name) {
  constexpr std::string_view kServices = ".svc";
  std::vector<std::string> names;
  for (std::string line; std::getline(hosts, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    for (words >> word; words >> word;) {  // the first is the address
      if (!word.starts_with(name + ".")) continue;
      names.push_back(word);
      const size_t domain = word.find(std::string(kServices) + ".");
      if (domain != std::string::npos) names.push_back(word.substr(0, domain + kServices.size()));
    }
  }
  return names;
}

std::string machine_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat network = {};
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return boot + ":" + std::to_string(network.st_ino) + ":" + std::to_string(geteuid());
}

int count_usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

std::string own_program() {
  char path[PATH_MAX] = {};
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - 1);
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "ruedarun";
}

Result<std::vector<std::string>> resolve_address(const std::string& text) {
  std::string host;
  int port = 0;
  if (!split_port(text, &host, &port))
    return invalid_argument("'" + text + "': expected HOST:PORT");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) return unavailable("'" + host + "': " + gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char numeric[NI_MAXHOST] = {};
    if (getnameinfo(at->ai_addr, at->ai_addrlen, numeric, sizeof(numeric), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      addresses.push_back(with_port(numeric, port));
    }
  }
  return addresses;
}

Result<rendezvous::JobKey> key_from(const std::string& bytes) {
  std::array<uint8_t, rendezvous::JobKey::kBytes> key;
  if (bytes.size() != key.size()) return invalid_argument("the job's key has a wrong length");
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return rendezvous::JobKey::from_bytes(key);
}

}  // namespace rueda::launcher
