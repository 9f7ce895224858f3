// Listening and connecting for the mesh: abstract unix sockets inside a host, TCP between hosts.
//
// Nothing here authenticates; the mesh shakes hands before it believes anything.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "runtime/rendezvous/poll_until.h"

namespace rueda::membership {

using Deadline = std::chrono::steady_clock::time_point;
using rendezvous::Patience;

struct Listener {
  UniqueFd fd;          // non-blocking
  std::string address;  // what peers connect to
};

// A fresh abstract address with a random name; no file is left behind.
Result<Listener> listen_unix(int backlog);
// A port of the kernel's choice on a numeric IPv4 or IPv6 address: "127.0.0.1:4711", "[::1]:4711".
Result<Listener> listen_tcp(const std::string& host, int backlog);

Result<UniqueFd> connect_unix(const std::string& address);
// A host that cannot be reached is tried again until the deadline.
Result<UniqueFd> connect_tcp(const std::string& address, const Patience& patience);

// A packet that was lost is sent again at least every quarter of `silence` (a second or more). The
// kernel's own pause doubles each time: signs of life that a full queue had dropped a few times
// would come too late, though the connection lives. Kernels before 6.15 do that for connections
// with little data.
void retransmit_soon(int tcp_socket, std::chrono::nanoseconds silence);

// From now on the connection ends once the other host has answered nothing for so long, also while
// nothing is sent; zero: it never does, as at first.
void end_when_silent(int tcp_socket, std::chrono::nanoseconds silence);

// Two connected unix stream sockets.
Status make_pair(UniqueFd* a, UniqueFd* b);

// True if the process at the other end of a unix socket runs as this user.
bool same_user(int fd);

// File descriptors over a connected unix socket, with one byte of data.
Status send_fds(int socket, const std::vector<int>& fds);
Result<std::vector<UniqueFd>> receive_fds(int socket, size_t count, const Patience& patience);

// Waits until fd is readable (or writable) or the deadline has passed; false then.
bool wait_ready(int fd, bool write, Deadline deadline);

}  // namespace rueda::membership
