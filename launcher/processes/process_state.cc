#include "launcher/processes/process_state.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "collectives/host/cgroup.h"

namespace rueda::launcher {
namespace {

std::string file_of(pid_t pid, const char* name) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/" + name);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string field(const std::string& status, const std::string& name) {
  const size_t at = status.find("\n" + name + ":");
  if (at == std::string::npos) return "";
  const size_t begin = status.find_first_not_of(" \t", at + name.size() + 2);
  return begin == std::string::npos ? "" : status.substr(begin, status.find('\n', begin) - begin);
}

// Those that exist on every architecture and in which programs wait.
struct Call {
  long number;
  const char* name;
  bool on_descriptor;
};
const Call kCalls[] = {
    {SYS_read, "read", true},
    {SYS_write, "write", true},
    {SYS_readv, "readv", true},
    {SYS_pread64, "pread", true},
    {SYS_recvfrom, "recvfrom", true},
    {SYS_recvmsg, "recvmsg", true},
    {SYS_accept, "accept", true},
    {SYS_accept4, "accept", true},
    {SYS_connect, "connect", true},
    {SYS_fsync, "fsync", true},
    {SYS_flock, "flock", true},
    {SYS_nanosleep, "nanosleep", false},
    {SYS_clock_nanosleep, "nanosleep", false},
    {SYS_futex, "a lock (futex)", false},
    {SYS_ppoll, "poll", false},
    {SYS_pselect6, "select", false},
    {SYS_epoll_pwait, "epoll_wait", false},
    {SYS_wait4, "wait for a child", false},
    {SYS_waitid, "wait for a child", false},
    {SYS_rt_sigtimedwait, "wait for a signal", false},
#ifdef SYS_poll
    {SYS_poll, "poll", false},
    {SYS_select, "select", false},
    {SYS_epoll_wait, "epoll_wait", false},
    {SYS_pause, "pause", false},
#endif
};

std::string call_of(pid_t pid) {
  const std::string text = file_of(pid, "syscall");
  char* rest = nullptr;
  const long number = std::strtol(text.c_str(), &rest, 10);
  if (rest == text.c_str() || number < 0) return "";
  const unsigned long first = std::strtoul(rest, nullptr, 16);
  for (const Call& call : kCalls) {
    if (call.number != number) continue;
    return std::string(call.name) +
           (call.on_descriptor ? " of descriptor " + std::to_string(first) : "");
  }
  return "system call " + std::to_string(number);
}

}  // namespace

ProcessActivity process_activity(pid_t pid) {
  const std::string status = file_of(pid, "status");
  const std::string state = field(status, "State");
  if (state.empty()) return {true, "no process any more"};
  if (field(status, "CoreDumping") == "1") return {true, "dumping core"};
  if (state[0] == 'S' || state[0] == 'D') {  // so /proc shows it
    if (const auto frozen = host::frozen_by(host::read_small_file, pid))
      return {true, "frozen by its control group (thaw it with: echo " + frozen->thaw + " > " +
                        frozen->file + ")"};
  }
  switch (state[0]) {
    case 'T':
      return {true,
              "stopped by a signal (continue it with kill -CONT " + std::to_string(pid) + ")"};
    case 't': return {true, "stopped in a debugger (process " + field(status, "TracerPid") + ")"};
    case 'D': return {true, "waiting for a disk or a device in the kernel"};
    case 'Z':
    case 'X': return {true, "ended"};
    case 'R': return {false, "computing"};
    default: break;
  }
  const std::string call = call_of(pid);
  return {false, call.empty() ? "sleeping" : "blocked in " + call};
}

ProcessUse process_use(pid_t pid) {
  ProcessUse use;
  const std::string status = file_of(pid, "status");
  const auto kib = [&](const char* name) {
    return std::strtoll(field(status, name).c_str(), nullptr, 10) * 1024;
  };
  use.resident_bytes = kib("VmRSS");
  use.shared_memory_bytes = kib("RssShmem");
  // Behind the program's name, which may hold anything: state, ... utime is the 12th, stime next.
  const std::string stat = file_of(pid, "stat");
  const size_t name_end = stat.rfind(')');
  long long ticks = 0, user = 0, system = 0;
  if (name_end != std::string::npos &&
      std::sscanf(stat.c_str() + name_end + 1,
                  " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld", &user, &system) == 2)
    ticks = user + system;
  use.cpu_ns = ticks * (1'000'000'000 / sysconf(_SC_CLK_TCK));
  long long ran = 0, delayed = 0;
  if (std::sscanf(file_of(pid, "schedstat").c_str(), "%lld %lld", &ran, &delayed) == 2)
    use.delayed_ns = delayed;
  return use;
}

int64_t host_cpu_ns() {
  // The first line of what may be a long file: user, nice, system, idle, iowait, irq, softirq.
  std::ifstream file("/proc/stat");
  std::string line;
  std::getline(file, line);
  long long user = 0, nice = 0, system = 0, interrupts = 0, soft = 0;
  if (std::sscanf(line.c_str(), "cpu %lld %lld %lld %*d %*d %lld %lld", &user, &nice, &system,
                  &interrupts, &soft) != 5)
    return 0;
  return (user + nice + system + interrupts + soft) * (1'000'000'000 / sysconf(_SC_CLK_TCK));
}

bool catches_signal(pid_t pid, int signal) {
  const std::string caught = field(file_of(pid, "status"), "SigCgt");
  return !caught.empty() && signal > 0 && signal <= 64 &&
         (std::strtoull(caught.c_str(), nullptr, 16) >> (signal - 1) & 1) != 0;
}

}  // namespace rueda::launcher
