// Calls of a loaded library go elsewhere: the entry that its calls of a function jump through
// (the global offset table of ELF) gets another address. Only calls of that one library change.
#pragma once

#include <span>

namespace rueda::host {

struct Redirection {
  const char* function;  // as the library imports it
  void* to;              // has the same type
};

// All or none: 0 if a loaded library of this file name ("libc10.so") imports every one of the
// functions, and its calls go to the replacements now; else -1 and nothing has changed. They stay
// redirected until the process ends; the replacements must, too. Threads: any; calls meanwhile go
// one way or the other.
int redirect_calls(const char* library, std::span<const Redirection> redirections);

}  // namespace rueda::host
