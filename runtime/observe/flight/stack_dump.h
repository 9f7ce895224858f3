// Lets another process ask this one for its stacks, whatever it does: a signal's handler writes
// them to a file of this process.
//
// The handler writes the native stack of the thread that takes the signal, usually the main one.
// Whoever knows more (Python's faulthandler) puts a handler of its own before it, which writes to
// the same file and then calls this one; the line "end of stacks" is the last.
//
// One for the process, below any number of runtimes (hence counted by none: it stays). Signal-safe:
// the handler allocates nothing and takes no lock of ours.
#pragma once

namespace rueda::flight {

struct StackDump {
  int signal = 0;  // 0: could not be set up
  int fd = -1;     // of a memory file, opened to append
};

// Sets it up on the first call. A signal that the program already handles is not taken.
StackDump stack_dump();

}  // namespace rueda::flight
