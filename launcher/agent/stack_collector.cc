#include "launcher/agent/stack_collector.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cxxabi.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <thread>

#include "collectives/base/unique_fd.h"
#include "launcher/processes/process_state.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMostBytes = 64 << 10;

std::string read_all(int fd) {
  std::string text(kMostBytes, '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  text.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return text;
}

// "_ZN5rueda4fooEv + 0x5 in x.so" -> "rueda::foo() + 0x5 in x.so": the rank's handler may not
// allocate, we may.
std::string demangled(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t name = line.find_first_not_of(' ');
    const size_t end = line.find(" + ", std::min(name, line.size()));
    if (end != std::string::npos && line.compare(name, 2, "_Z") == 0) {
      const std::unique_ptr<char, decltype(&std::free)> plain(
          abi::__cxa_demangle(line.substr(name, end - name).c_str(), nullptr, nullptr, nullptr),
          &std::free);
      if (plain != nullptr) line.replace(name, end - name, plain.get());
    }
    out += line + "\n";
  }
  return out;
}

}  // namespace

std::string collect_stacks(pid_t pid, int signal, int fd, std::chrono::milliseconds patience) {
  if (signal <= 0 || fd < 0) return "(no stacks: the rank has no handler for them)";
  const ProcessActivity state = process_activity(pid);
  if (state.silent) return "(no stacks: " + state.text + ")";
  if (!catches_signal(pid, signal))
    return "(no stacks: the program has taken the handler's signal)";
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  struct stat info = {};
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 0 ||
      ftruncate(file.get(), 0) != 0) {
    return "(no stacks: the rank's file for them cannot be opened)";
  }
  if (syscall(SYS_tgkill, pid, pid, signal) != 0)
    return std::string("(no stacks: ") + strerror(errno) + ")";
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::string text;
  for (;;) {
    text = read_all(file.get());
    if (text.ends_with(kStacksEnd)) {
      text.resize(text.size() - std::strlen(kStacksEnd));
      return demangled(text);
    }
    if (std::chrono::steady_clock::now() >= deadline || text.size() == kMostBytes) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return text + "(the rank did not finish its stacks within " + std::to_string(patience.count()) +
         " ms: its main thread may block the signal)";
}

}  // namespace rueda::launcher
