// What processes hold and leave behind, as /proc shows it.
//
// Threads: any; nothing is kept. A process that ends while it is looked at counts as holding
// nothing.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace rueda::testing {

// Descriptors and mappings of a process that can only come from a job: sockets, memfds, eventfds,
// "fd 7: socket:[123]".
std::vector<std::string> holdings(pid_t pid);

// Inodes of the sockets that a process has open.
std::set<unsigned long> socket_inodes(pid_t pid);

// A TCP socket of /proc/net/tcp and tcp6, in words.
struct TcpSocket {
  bool listening = false;
  bool loopback = false;
  bool v6 = false;
  int port = 0;
  unsigned long inode = 0;
};
std::vector<TcpSocket> tcp_sockets();

// Bound abstract unix sockets whose name begins with this: name and inode.
struct UnixSocket {
  std::string name;  // without the '@'
  unsigned long inode = 0;
};
std::vector<UnixSocket> abstract_sockets(const std::string& prefix);

// Names in a directory that contain the text.
std::set<std::string> names_in(const std::string& directory, const std::string& text);

}  // namespace rueda::testing
