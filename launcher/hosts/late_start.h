// Which hosts are only late: what started their agent could not reach them yet. Pure.
//
// In a cluster names come late into DNS and sshd into its container, so a host that does not
// resolve or does not answer is tried again until --start-timeout. What was answered and refused
// (a key, a host key, a command) is final: the next try would be refused as well.
#pragma once

#include <chrono>
#include <string>

namespace rueda::launcher {

// Whether a line that ssh or the like has printed says that nobody answers yet.
bool says_not_yet(const std::string& line);

// Whether `program`, which ended with `wait_status` and `last_line`, should be tried again. ssh
// says with 255 that it is speaking for itself; any other code is the command's over there.
bool may_come_later(const std::string& program, int wait_status, const std::string& last_line);

// What to look at where small packets arrive and more does not come of it: ", or large packets are
// lost on the way (MTU; try: ping -M do -s 1472 node2)".
std::string hint_of_large_packets(const std::string& host);

// Before a host is tried again for the `tries`th time, from 1: half a second, doubling, up to 5 s.
std::chrono::milliseconds pause_before(int tries);

}  // namespace rueda::launcher
