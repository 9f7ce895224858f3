// Whether a process has got a TCP connection, as /proc shows it.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace rueda::launcher {

// Established, of this process itself.
bool has_tcp_connection(pid_t pid);
// table: as /proc/PID/net/tcp and tcp6 have it. Pure.
bool lists_established(const std::string& table, const std::set<std::string>& inodes);

}  // namespace rueda::launcher
