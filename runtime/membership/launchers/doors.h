// Doors: the sockets behind which rank 0 waits while ranks meet without an agent. Nothing here
// authenticates.
#pragma once

#include <string>
#include <vector>

#include "runtime/membership/launchers/meeting.h"
#include "runtime/membership/sockets.h"

namespace rueda::launchers {

// The abstract unix address of a user's job: nothing is left behind, and nobody but a process that
// knows the job's name stands in its way. Equal on all ranks.
std::string unix_name(const std::string& job, uint64_t epoch);

// AlreadyExists when another process has this name.
Result<membership::Listener> open_unix(const std::string& name);
// On the first free port of the meeting's, at the address that its host name has here; at every
// address when that is not one of this host's own, or when a name other than localhost turns out
// to be loopback, which others cannot reach (Debian gives a host's own name such an address).
Result<membership::Listener> open_tcp(const Meeting& meeting);

// One try. NotFound when nobody listens there (yet).
Result<UniqueFd> try_unix(const std::string& name);
// All addresses of the host with this port, one after another.
Result<UniqueFd> try_tcp(const std::string& host, int port, membership::Deadline deadline);

// The numeric address of this end of a TCP connection, without its port; empty for loopback, which
// means nothing to other hosts.
std::string own_end(int fd);

}  // namespace rueda::launchers
