// This machine's network addresses, the likely ones first, and sockets that listen on them.
//
// A guess of an order only: what is used is what has been tried (reach.h).
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"

namespace rueda::launcher {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric; no IPv6 link-local ones
  bool loopback = false;
  bool up = false;
};

// Empty when the kernel cannot tell.
std::vector<InterfaceAddress> read_interfaces();

// Pure. What is up, in the order in which to try it: other interfaces, then bridges and virtual
// ones of containers (docker, veth, cni, virbr, ...), loopback last. `selection`
// (--network-interfaces): names, "eth" as the beginning of names, "=eth0", "^docker", or
// "10.0.0.0/16"; separated by commas; empty: all.
Result<std::vector<std::string>> order_addresses(const std::vector<InterfaceAddress>& found,
                                                 const std::string& selection);
// "--network-interfaces ib allows none of its addresses (eth0 10.0.0.1, lo 127.0.0.1)"; "" when it
// allows one.
std::string none_allowed(const std::vector<InterfaceAddress>& found, const std::string& selection);

// "10.0.0.1" and 4711 -> "10.0.0.1:4711"; "fd00::1" -> "[fd00::1]:4711".
std::string with_port(const std::string& address, int port);
// The inverse; false when it is none.
bool split_port(const std::string& text, std::string* address, int* port);

inline constexpr int kListenQueue = 256;
struct ListeningSocket {
  UniqueFd fd;  // non-blocking
  std::string address;
  int port = 0;
};
// On one numeric address, "::" for all of both families; port 0: of the kernel's choice.
Result<ListeningSocket> listen_on(const std::string& address, int port);
// Has the address and port, where nobody is answered before listen(2).
Result<ListeningSocket> bind_on(const std::string& address, int port);

// In two steps: a socket that can be written to once it is known whether somebody answers; and
// whether it was so.
Result<UniqueFd> begin_connecting(const std::string& address, int port);
Status end_connecting(int fd);
// Connects to a numeric address within the time. The socket is blocking.
Result<UniqueFd> connect_to(const std::string& address, int port, int timeout_ms);

}  // namespace rueda::launcher
