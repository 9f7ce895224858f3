#include "launcher/hosts/addresses.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace rueda::launcher {
namespace {

constexpr const char* kVirtual[] = {"docker",  "br-",  "veth", "cni",    "virbr",
                                    "flannel", "cali", "lxc",  "podman", "kube"};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

bool parse(const std::string& text, int port, SocketAddress* out) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out->storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out->storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    out->length = sizeof(sockaddr_in);
    return true;
  }
  if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    out->length = sizeof(sockaddr_in6);
    return true;
  }
  return false;
}

// The bytes of a numeric address; 4 or 16 of them, empty when it is none.
std::vector<uint8_t> bytes_of(const std::string& text) {
  std::vector<uint8_t> bytes(16);
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) {
    bytes.resize(4);
    return bytes;
  }
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return bytes;
  return {};
}

Result<bool> in_network(const std::string& address, const std::string& network) {
  const size_t slash = network.find('/');
  const std::vector<uint8_t> base = bytes_of(network.substr(0, slash));
  size_t bits = 0;
  const char* first = network.data() + slash + 1;
  const char* last = network.data() + network.size();
  const auto [end, error] = std::from_chars(first, last, bits);
  if (base.empty() || error != std::errc() || end != last || bits > base.size() * 8)
    return invalid_argument("--network-interfaces: '" + network + "' is no network");
  const std::vector<uint8_t> bytes = bytes_of(address);
  if (bytes.size() != base.size()) return false;
  for (size_t i = 0; i < bits; ++i) {
    const uint8_t mask = static_cast<uint8_t>(0x80 >> (i % 8));
    if ((bytes[i / 8] & mask) != (base[i / 8] & mask)) return false;
  }
  return true;
}

struct Selection {
  std::vector<std::string> wanted, unwanted;
};

Result<bool> matches(const InterfaceAddress& entry, const std::string& rule) {
  if (rule.find('/') != std::string::npos) return in_network(entry.address, rule);
  if (rule.front() == '=') return entry.interface == rule.substr(1);
  return entry.interface.starts_with(rule) || entry.address == rule;
}

Result<bool> is_selected(const InterfaceAddress& entry, const Selection& selection) {
  for (const std::string& rule : selection.unwanted) {
    RUEDA_ASSIGN_OR_RETURN(const bool hit, matches(entry, rule));
    if (hit) return false;
  }
  for (const std::string& rule : selection.wanted) {
    RUEDA_ASSIGN_OR_RETURN(const bool hit, matches(entry, rule));
    if (hit) return true;
  }
  return selection.wanted.empty();
}

int class_of(const InterfaceAddress& entry) {
  if (entry.loopback) return 2;
  const bool is_virtual =
      std::any_of(std::begin(kVirtual), std::end(kVirtual),
                  [&](const char* begin) { return entry.interface.starts_with(begin); });
  return is_virtual ? 1 : 0;
}

}  // namespace

std::vector<InterfaceAddress> read_interfaces() {
  std::vector<InterfaceAddress> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (at->ifa_addr->sa_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
      inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
      inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    } else {
      continue;
    }
    out.push_back(
        {at->ifa_name, text, (at->ifa_flags & IFF_LOOPBACK) != 0, (at->ifa_flags & IFF_UP) != 0});
  }
  return out;
}

Result<std::vector<std::string>> order_addresses(const std::vector<InterfaceAddress>& found,
                                                 const std::string& selection) {
  Selection rules;
  for (size_t begin = 0; begin < selection.size();) {
    const size_t end = std::min(selection.find(',', begin), selection.size());
    const std::string rule = selection.substr(begin, end - begin);
    begin = end + 1;
    if (rule.empty() || rule == "^" || rule == "=")
      return invalid_argument("--network-interfaces '" + selection + "': an empty part");
    if (rule[0] == '^') {
      rules.unwanted.push_back(rule.substr(1));
    } else {
      rules.wanted.push_back(rule);
    }
  }
  std::vector<const InterfaceAddress*> kept;
  for (const InterfaceAddress& entry : found) {
    if (!entry.up) continue;
    RUEDA_ASSIGN_OR_RETURN(const bool selected, is_selected(entry, rules));
    if (selected) kept.push_back(&entry);
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const auto* a, const auto* b) { return class_of(*a) < class_of(*b); });
  std::vector<std::string> addresses;
  for (const InterfaceAddress* entry : kept) {
    if (std::find(addresses.begin(), addresses.end(), entry->address) == addresses.end())
      addresses.push_back(entry->address);
  }
  return addresses;
}

std::string none_allowed(const std::vector<InterfaceAddress>& found, const std::string& selection) {
  const auto ordered = order_addresses(found, selection);
  if (selection.empty() || !ordered.ok() || !ordered.value().empty()) return "";
  std::string has;
  for (const InterfaceAddress& entry : found) {
    if (entry.up) has += (has.empty() ? "" : ", ") + entry.interface + " " + entry.address;
  }
  return "--network-interfaces " + selection + " allows none of its addresses (" +
         (has.empty() ? "it has none" : has) + ")";
}

std::string with_port(const std::string& address, int port) {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

bool split_port(const std::string& text, std::string* address, int* port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  *address = text.substr(0, colon);
  if (address->front() == '[') {
    if (address->back() != ']') return false;
    *address = address->substr(1, address->size() - 2);
  }
  const auto [end, error] =
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), *port);
  return error == std::errc() && end == text.data() + text.size() && *port > 0 && *port < 65536 &&
         !address->empty();
}

Result<ListeningSocket> bind_on(const std::string& address, int port) {
  SocketAddress where;
  if (!parse(address, port, &where))
    return invalid_argument("'" + address + "' is no numeric address");
  UniqueFd fd(socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_status("cannot create a socket", errno);
  const int yes = 1, no = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (address == "::") setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  if (bind(fd.get(), where.get(), where.length) != 0)
    return errno_status("cannot listen on " + with_port(address, port), errno);
  if (getsockname(fd.get(), where.get(), &where.length) != 0)
    return errno_status("getsockname", errno);
  const bool v6 = where.storage.ss_family == AF_INET6;
  const uint16_t chosen = v6 ? reinterpret_cast<sockaddr_in6*>(&where.storage)->sin6_port
                             : reinterpret_cast<sockaddr_in*>(&where.storage)->sin_port;
  return ListeningSocket{std::move(fd), address, ntohs(chosen)};
}

Result<ListeningSocket> listen_on(const std::string& address, int port) {
  RUEDA_ASSIGN_OR_RETURN(ListeningSocket bound, bind_on(address, port));
  if (listen(bound.fd.get(), kListenQueue) != 0)
    return errno_status("cannot listen on " + with_port(address, port), errno);
  return bound;
}

Result<UniqueFd> begin_connecting(const std::string& address, int port) {
  SocketAddress where;
  if (!parse(address, port, &where))
    return invalid_argument("'" + address + "' is no numeric address");
  UniqueFd fd(socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_status("socket", errno);
  if (connect(fd.get(), where.get(), where.length) != 0 && errno != EINPROGRESS)
    return unavailable(std::strerror(errno));
  return fd;
}

Status end_connecting(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? Status() : unavailable(std::strerror(error));
}

Result<UniqueFd> connect_to(const std::string& address, int port, int timeout_ms) {
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, begin_connecting(address, port));
  pollfd ready = {fd.get(), POLLOUT, 0};
  int events = 0;
  do {
    events = poll(&ready, 1, timeout_ms);
  } while (events < 0 && errno == EINTR);
  if (events == 0) return deadline_exceeded("no answer in " + std::to_string(timeout_ms) + " ms");
  RUEDA_RETURN_IF_ERROR(end_connecting(fd.get()));
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

}  // namespace rueda::launcher
