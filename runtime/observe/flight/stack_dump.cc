#include "runtime/observe/flight/stack_dump.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "collectives/host/fork_guard.h"

namespace rueda::flight {
namespace {

constexpr int kMostFrames = 64;
int stack_file = -1;

// A line on the handler's stack.
class Line {
 public:
  Line& operator<<(const char* text) {
    while (*text != '\0' && used_ + 1 < sizeof(text_)) text_[used_++] = *text++;
    return *this;
  }
  Line& hex(uintptr_t value) {
    char digits[2 * sizeof(value) + 1] = {};
    char* at = digits + sizeof(digits) - 1;
    do {
      *--at = "0123456789abcdef"[value % 16];
      value /= 16;
    } while (value != 0);
    return *this << "0x" << at;
  }
  void write() {
    text_[used_++] = '\n';
    const ssize_t ignored = ::write(stack_file, text_, used_);
    static_cast<void>(ignored);
    used_ = 0;
  }

 private:
  char text_[400];
  size_t used_ = 0;
};

const char* file_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

struct Walk {
  int interruptions = 0;  // to pass: before the last of them are the handlers' frames
  int passed = 0, frames = 0;
};

_Unwind_Reason_Code print_frame(_Unwind_Context* context, void* at) {
  int interrupted = 0;  // here a signal came; else it is the address behind a call
  const uintptr_t address = _Unwind_GetIPInfo(context, &interrupted);
  Walk& walk = *static_cast<Walk*>(at);
  if (address == 0 || walk.frames >= kMostFrames) return _URC_END_OF_STACK;
  walk.passed += interrupted;
  if (walk.passed < walk.interruptions) return _URC_NO_REASON;
  ++walk.frames;
  Line line;
  line << "  ";
  Dl_info info = {};
  const uintptr_t inside = address - (interrupted != 0 ? 0 : 1);
  if (dladdr(reinterpret_cast<void*>(inside), &info) != 0 && info.dli_fname != nullptr) {
    if (info.dli_sname != nullptr) {
      line << info.dli_sname << " + ";
      line.hex(address - reinterpret_cast<uintptr_t>(info.dli_saddr));
    } else {
      line.hex(address - reinterpret_cast<uintptr_t>(info.dli_fbase));
    }
    line << " in " << file_name(info.dli_fname);
  } else {
    line.hex(address);
  }
  line.write();
  return _URC_NO_REASON;
}

// Python's faulthandler, which stands before us, raises the signal once more: then what it has
// interrupted is of interest, not where it itself was.
void write_stack(int, siginfo_t* info, void*) {
  const int saved = errno;
  Line line;
  line << "native stack (newest first):";
  line.write();
  const bool raised = info->si_code == SI_TKILL && info->si_pid == getpid();
  Walk walk;
  walk.interruptions = raised ? 2 : 1;
  _Unwind_Backtrace(print_frame, &walk);
  if (walk.frames == 0) {  // the unwinder does not know where signals came
    walk = {};
    _Unwind_Backtrace(print_frame, &walk);
  }
  line << "end of stacks";
  line.write();
  errno = saved;
}

_Unwind_Reason_Code touch(_Unwind_Context*, void*) { return _URC_END_OF_STACK; }

StackDump set_up() {
  // Real-time signals from the end: debuggers and threading libraries take the first ones.
  int signal = 0;
  for (int candidate = SIGRTMAX - 3; candidate > SIGRTMIN + 8 && signal == 0; --candidate) {
    struct sigaction now = {};
    if (sigaction(candidate, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) signal = candidate;
  }
  const int fd = memfd_create("rueda-stacks", MFD_CLOEXEC);
  if (signal == 0 || fd < 0) return {};
  fcntl(fd, F_SETFL, O_APPEND);
  host::close_in_forked_children(fd);
  stack_file = fd;
  _Unwind_Backtrace(touch, nullptr);  // what it loads, it loads now
  Dl_info info = {};
  dladdr(reinterpret_cast<void*>(&set_up), &info);
  struct sigaction action = {};
  action.sa_sigaction = write_stack;
  action.sa_flags = SA_RESTART | SA_ONSTACK | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, nullptr) != 0) return {};
  return {signal, fd};
}

}  // namespace

StackDump stack_dump() {
  static const StackDump made = set_up();
  return made;
}

}  // namespace rueda::flight
