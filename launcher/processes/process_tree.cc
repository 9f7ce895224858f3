#include "launcher/processes/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "collectives/base/unique_fd.h"

namespace rueda::launcher {
namespace {

struct Stat {
  char state = '?';
  pid_t parent = 0;
  unsigned long flags = 0;
  uint64_t started = 0;
};

// /proc/<pid>/stat: "pid (name) state ppid pgrp session tty tpgid flags ..."; the name may hold
// anything, parentheses included.
std::optional<Stat> read_stat(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t got = fd ? read(fd.get(), text, sizeof(text)) : -1;
  if (got <= 0) return std::nullopt;
  const std::string line(text, static_cast<size_t>(got));
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  Stat stat;
  long skip = 0;
  fields >> stat.state >> stat.parent >> skip >> skip >> skip >> skip >> stat.flags;
  constexpr int kBetween = 12;  // minflt ... itrealvalue
  for (int i = 0; i < kBetween; ++i) fields >> skip;
  fields >> stat.started;
  if (!fields) return std::nullopt;
  return stat;
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (proc == nullptr) return children;
  while (const dirent* entry = readdir(proc.get())) {
    const pid_t pid = static_cast<pid_t>(std::atoi(entry->d_name));
    if (pid <= 0) continue;
    const auto stat = read_stat(pid);
    if (stat && stat->parent == parent) children.push_back(pid);
  }
  return children;
}

bool is_exiting(pid_t pid) {
  constexpr unsigned long kPfExiting = 0x4;  // PF_EXITING of linux/sched.h
  const auto stat = read_stat(pid);
  return !stat || stat->state == 'Z' || stat->state == 'X' || (stat->flags & kPfExiting) != 0;
}

uint64_t started_at(pid_t pid) {
  const auto stat = read_stat(pid);
  return stat ? stat->started : 0;
}

bool all_threads_exiting(pid_t pid) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir(tasks.c_str()), closedir);
  if (threads == nullptr) return errno == ENOENT;
  // An exiting thread starts no other.
  while (const dirent* entry = readdir(threads.get())) {
    if (std::atoi(entry->d_name) > 0 && !is_exiting(static_cast<pid_t>(std::atoi(entry->d_name))))
      return false;
  }
  return true;
}

constexpr unsigned long kPfDumpCore = 0x200;  // of linux/sched.h

bool is_dying(pid_t pid) {
  constexpr unsigned long kPfSignaled = 0x400;  // likewise
  const auto stat = read_stat(pid);
  return is_exiting(pid) || (stat && (stat->flags & (kPfDumpCore | kPfSignaled)) != 0) ||
         read_process_state(pid).dumping_core;
}

ProcessState read_process_state(pid_t pid) {
  ProcessState state;
  const auto stat = read_stat(pid);
  state.letter = stat ? stat->state : 'X';
  if (!stat || stat->state == 'T') return state;
  // One that runs may be writing its core itself; else another of its threads does.
  state.dumping_core = (stat->flags & kPfDumpCore) != 0;
  if (state.dumping_core || stat->state == 'R') return state;
  const std::string path = "/proc/" + std::to_string(pid) + "/status";
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t got = fd ? read(fd.get(), text, sizeof(text) - 1) : -1;
  if (got <= 0) return state;
  text[got] = '\0';
  state.dumping_core = strstr(text, "CoreDumping:\t1") != nullptr;
  return state;
}

bool descends_from(pid_t pid, pid_t ancestor) {
  constexpr int kMostGenerations = 64;
  for (int i = 0; i < kMostGenerations && pid > 1; ++i) {
    if (pid == ancestor) return true;
    const auto stat = read_stat(pid);
    if (!stat) return false;
    pid = stat->parent;
  }
  return false;
}

std::vector<pid_t> kill_children(const std::set<pid_t>& spared, std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  for (;;) {
    std::vector<pid_t> left;
    bool found = false;
    for (const pid_t pid : children_of(getpid())) {
      if (spared.contains(pid)) continue;
      found = true;
      kill(pid, SIGKILL);
      if (waitpid(pid, nullptr, WNOHANG) == 0) left.push_back(pid);
    }
    if (!found || std::chrono::steady_clock::now() >= deadline) return left;
    // A child that we reaped may have left us its own since we looked: only a look that finds
    // nobody is the end.
    if (left.empty()) continue;
    const timespec at_most = {0, 100'000'000};  // for what is reparented without a SIGCHLD
    sigtimedwait(&child_ended, nullptr, &at_most);
  }
}

}  // namespace rueda::launcher
