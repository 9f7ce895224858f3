#include "runtime/observe/life/crash_handlers.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "collectives/host/fork_guard.h"

namespace rueda::life {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr int kMostSignals = 32;
static_assert(SIGSEGV < kMostSignals && SIGBUS < kMostSignals);

std::atomic<LifePage*> page{nullptr};
std::atomic<int> alarm_fd{-1};
struct sigaction earlier[kMostSignals];
bool installed = false;

void tell(LifePage* to, Crash what, int signal, const siginfo_t* info) {
  to->crash_signal.store(signal, std::memory_order_relaxed);
  to->crash_address.store(reinterpret_cast<uint64_t>(info->si_addr), std::memory_order_relaxed);
  to->crash.store(static_cast<uint32_t>(what), std::memory_order_release);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n =
      write(alarm_fd.load(std::memory_order_relaxed), &one, sizeof(one));
}

// Async-signal-safe.
void on_crash(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  LifePage* const mine = page.load(std::memory_order_acquire);
  const struct sigaction& before = earlier[signal];
  const bool sent = info->si_code <= 0;  // by kill() or abort(), not by an instruction
  if (before.sa_handler == SIG_IGN && sent) {
    errno = saved;
    return;
  }
  const bool has_handler = before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN;
  if (mine != nullptr) tell(mine, has_handler ? Crash::kHandled : Crash::kFatal, signal, info);
  errno = saved;
  if (has_handler) {
    if ((before.sa_flags & SA_SIGINFO) != 0) {
      before.sa_sigaction(signal, info, context);
    } else {
      before.sa_handler(signal);
    }
    // It has come back: the program goes on, or the instruction fails again.
    if (mine != nullptr)
      mine->crash.store(static_cast<uint32_t>(Crash::kNone), std::memory_order_release);
    return;
  }
  // As if we had never been here: an instruction fails again when this returns, a signal that was
  // sent is sent again.
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  sigaction(signal, &by_default, nullptr);
  if (sent) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
}

void forget_in_child() { page.store(nullptr, std::memory_order_release); }

struct SignalStack {
  static constexpr size_t kBytes = size_t{64} << 10;
  void* memory = nullptr;
  ~SignalStack() {
    if (memory == nullptr) return;
    stack_t now = {};
    if (sigaltstack(nullptr, &now) == 0 && now.ss_sp == memory) {
      stack_t none = {};
      none.ss_flags = SS_DISABLE;
      sigaltstack(&none, nullptr);
    }
    munmap(memory, kBytes);
  }
};

}  // namespace

void use_crash_stack() {
  thread_local SignalStack own;
  stack_t now = {};
  if (own.memory != nullptr || sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0)
    return;
  void* const memory = mmap(nullptr, SignalStack::kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return;  // then handlers run on the thread's stack
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = SignalStack::kBytes;
  if (sigaltstack(&stack, nullptr) == 0) {
    own.memory = memory;
  } else {
    munmap(memory, SignalStack::kBytes);
  }
}

void watch_crashes(LifePage* to, int alarm) {
  use_crash_stack();
  host::run_in_forked_children(forget_in_child);
  alarm_fd.store(alarm, std::memory_order_relaxed);
  page.store(to, std::memory_order_release);
  if (installed) return;  // they stay for good: whoever came after us may call them
  installed = true;
  for (const int signal : kSignals) {
    struct sigaction action = {};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(signal, nullptr, &earlier[signal]);
    sigaction(signal, &action, nullptr);
  }
}

void ignore_crashes() { page.store(nullptr, std::memory_order_release); }

}  // namespace rueda::life
