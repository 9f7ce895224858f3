#include "launcher/processes/capture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "collectives/base/unique_fd.h"

namespace rueda::launcher {

std::optional<std::string> capture(const std::vector<const char*>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  UniqueFd reading(ends[0]), writing(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return std::nullopt;
  if (pid == 0) {
    dup2(writing.get(), STDOUT_FILENO);
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDERR_FILENO);
    execvp(command[0], const_cast<char* const*>(command.data()));
    _exit(127);
  }
  writing.reset();
  const auto deadline = std::chrono::steady_clock::now() + kCaptureLimit;
  std::string text;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready = {reading.get(), POLLIN, 0};
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) == 0) {
      kill(pid, SIGKILL);
      break;
    }
    char bytes[512];
    const ssize_t got = read(reading.get(), bytes, sizeof(bytes));
    if (got == 0) break;
    if (got > 0) text.append(bytes, static_cast<size_t>(got));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) return std::nullopt;
  return text;
}

std::string first_line_of(const std::vector<const char*>& command) {
  const auto text = capture(command);
  return text ? text->substr(0, text->find('\n')) : "";
}

}  // namespace rueda::launcher
