// Asks a process for its stacks: sends the signal that its flight recorder names and reads the file
// that its handler writes to. Works whatever the process does, unless it is stopped or in the
// kernel.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace rueda::launcher {

// The stacks as lines, or why there are none, "(...)". signal, fd: as the process has named them;
// they are checked, because a signal that is not caught would end it.
std::string collect_stacks(pid_t pid, int signal, int fd, std::chrono::milliseconds patience);

// The last line of a finished answer.
inline constexpr char kStacksEnd[] = "end of stacks\n";

}  // namespace rueda::launcher
