#include "tests/launcher/job.h"
#include "tests/support/built.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

namespace rueda::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

void make_pipe(UniqueFd* reading, UniqueFd* writing) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) abort();
  reading->reset(ends[0]);
  writing->reset(ends[1]);
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++found;
  return found;
}

}  // namespace

Job::Job(const std::vector<std::string>& arguments, const Setup& setup) {
  static std::atomic<int> next{0};
  canary_ = "LAUNCHER_TEST_JOB=" + std::to_string(getpid()) + "." + std::to_string(next++);
  std::vector<std::string> command = {setup.program.empty() ? built::kRuedarun : setup.program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = setup.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  environment.push_back(canary_);

  UniqueFd out_write, err_write, in_read, in_write;
  make_pipe(&out_, &out_write);
  make_pipe(&err_, &err_write);
  make_pipe(&in_read, &in_write);
  // Short enough for the pipe's buffer.
  if (write(in_write.get(), setup.input.data(), setup.input.size()) < 0) abort();
  in_write.reset();
  int fds[3] = {in_read.get(), out_write.get(), err_write.get()};
  if (setup.errors_with_output) fds[2] = fds[1];
  if (setup.terminal >= 0) fds[0] = fds[1] = fds[2] = setup.terminal;

  const std::vector<char*> argv = pointers(command);
  const std::vector<char*> envp = pointers(environment);
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    for (int i = 0; i < 3; ++i) dup2(fds[i], i);
    close_range(3, ~0U, 0);  // what whoever runs the tests left open
    execve(argv[0], argv.data(), envp.data());
    _exit(125);
  }
}

Job::~Job() {
  if (!reaped_ && pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const pid_t pid : processes()) kill(pid, SIGKILL);
}

bool Job::read_some(Clock::time_point deadline) {
  pollfd fds[2] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};  // -1 is skipped by poll
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  if (left <= 0 || poll(fds, 2, static_cast<int>(left)) <= 0) return false;
  for (int i = 0; i < 2; ++i) {
    if (fds[i].revents == 0) continue;
    UniqueFd& fd = i == 0 ? out_ : err_;
    char bytes[8192];
    const ssize_t got = read(fd.get(), bytes, sizeof(bytes));
    if (got > 0) (i == 0 ? out_text_ : err_text_).append(bytes, static_cast<size_t>(got));
    if (got <= 0) fd.reset();
  }
  return true;
}

bool Job::wait_for_output(const std::string& text, int times) {
  const auto deadline = Clock::now() + kPatience;
  while (count(out_text_, text) + count(err_text_, text) < times) {
    if ((!out_ && !err_) || !read_some(deadline)) return false;
  }
  return true;
}

int Job::wait() {
  const auto deadline = Clock::now() + kPatience;
  while (out_ || err_) {
    if (!read_some(deadline)) return -1;
  }
  int status = 0;
  if (!eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
  reaped_ = true;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool Job::wait_until_gone() const {
  return eventually([this] { return processes().empty(); });
}

std::vector<pid_t> Job::processes() const {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  while (const dirent* entry = readdir(proc.get())) {
    const pid_t pid = static_cast<pid_t>(atoi(entry->d_name));
    if (pid <= 0) continue;
    // Variables are separated by zeros; the canary ends with one.
    const std::string environment = read_file("/proc/" + std::to_string(pid) + "/environ");
    if (environment.find(canary_ + '\0') != std::string::npos) found.push_back(pid);
  }
  return found;
}

pid_t Job::agent() const {
  for (const pid_t pid : processes()) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    std::istringstream rest(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    char state = 0;
    pid_t parent = 0;
    if (rest >> state >> parent && parent == pid_) return pid;
  }
  return -1;
}

std::vector<std::string> Job::out_lines() const { return lines_of(out_text_); }
std::vector<std::string> Job::err_lines() const { return lines_of(err_text_); }

bool eventually(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + kPatience;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    usleep(2000);  // nothing wakes us when /proc changes
  }
  return true;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace rueda::testing
