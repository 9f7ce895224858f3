#include "launcher/processes/discovery.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <sstream>

#include "launcher/job/discovered.h"
#include "launcher/job/exit_report.h"
#include "launcher/processes/spawn.h"

namespace rueda::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLookAgain = std::chrono::milliseconds(20);  // where the kernel cannot tell an end
constexpr size_t kMostErrorBytes = 4096;
constexpr size_t kMostSaid = 100;  // texts; a script that finds new ones for ever is not quoted

bool exists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

Status make_pipe(UniqueFd* reading, UniqueFd* writing) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_status("cannot open a pipe", errno);
  reading->reset(ends[0]);
  writing->reset(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {};
}

// Everything that is there; false at the end of the file.
bool read_all(int fd, size_t most, std::string* text) {
  char bytes[16384];
  while (text->size() <= most) {
    const ssize_t got = read(fd, bytes, sizeof(bytes));
    if (got == 0) return false;
    if (got > 0) text->append(bytes, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) return errno == EAGAIN;
  }
  return true;
}

std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

bool same(const std::vector<HostSlots>& a, const std::vector<HostSlots>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.host == other.host && one.slots == other.slots;
  });
}

std::string named(const std::string& script) { return "--host-discovery-script '" + script + "'"; }

}  // namespace

Discovery::Discovery(DiscoveryPlan plan) : plan_(std::move(plan)), is_file_(exists(plan_.script)) {}

Discovery::~Discovery() {
  kill_group();
  const pid_t left = pid_ > 0 ? pid_ : killed_pid_;
  constexpr timespec kPause = {0, 10'000'000};
  // A killed process ends soon, unless it is stuck in the kernel.
  for (int look = 0; left > 0 && look < 100 && waitpid(left, nullptr, WNOHANG) == 0; ++look)
    nanosleep(&kPause, nullptr);
}

void Discovery::add_to_poll(std::vector<pollfd>* fds) const {
  for (const UniqueFd* fd : {&life_, &output_, &errors_}) {
    if (*fd) fds->push_back({fd->get(), POLLIN, 0});
  }
}

Discovery::TimePoint Discovery::next_deadline() const {
  if (!failed_.ok()) return TimePoint::max();
  if (killed_pid_ > 0) return Clock::now() + kLookAgain;
  if (pid_ <= 0) return next_start_;
  const auto limit = started_ + std::chrono::ceil<Clock::duration>(plan_.limit);
  return life_ ? limit : std::min(limit, Clock::now() + kLookAgain);
}

std::optional<std::vector<HostSlots>> Discovery::work(TimePoint now) {
  if (killed_pid_ > 0 && waitpid(killed_pid_, nullptr, WNOHANG) != 0) killed_pid_ = -1;
  if (!failed_.ok()) return std::nullopt;
  if (pid_ > 0) {
    const auto problem = look_for_end(now);
    return problem ? finish(*problem, now) : std::nullopt;
  }
  if (killed_pid_ > 0 || now < next_start_) return std::nullopt;
  started_ = now;
  const Status status = start();
  return status.ok() ? std::nullopt : finish(status.message(), now);
}

bool Discovery::ended(pid_t pid, int wait_status) {
  if (pid == killed_pid_ && pid > 0) {
    killed_pid_ = -1;
    return true;
  }
  if (pid != pid_ || pid <= 0) return false;
  kill_group();  // as long as somebody is left in it, its number is nobody else's
  wait_status_ = wait_status;
  return true;
}

std::vector<std::string> Discovery::take_said() { return std::exchange(to_say_, {}); }

Status Discovery::start() {
  text_.clear();
  error_text_.clear();
  wait_status_.reset();
  UniqueFd output, errors;
  RUEDA_RETURN_IF_ERROR(make_pipe(&output_, &output));
  RUEDA_RETURN_IF_ERROR(make_pipe(&errors_, &errors));
  const UniqueFd input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input) return errno_status("cannot open /dev/null", errno);
  SpawnRequest request;
  request.environment = plan_.environment;
  request.stdin_fd = input.get();
  request.stdout_fd = output.get();
  request.stderr_fd = errors.get();
  if (is_file_) {
    const bool has_folder = plan_.script.find('/') != std::string::npos;
    request.program = has_folder ? plan_.script : "./" + plan_.script;
    request.arguments = {request.program};
  } else {
    request.program = "/bin/sh";
    request.arguments = {"/bin/sh", "-c", plan_.script};
  }
  RUEDA_ASSIGN_OR_RETURN(pid_, spawn_rank(request));
  life_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  return {};
}

bool Discovery::read_output() {
  if (output_ && !read_all(output_.get(), kMostDiscoveredBytes, &text_)) output_.reset();
  std::string errors;
  // What it says at great length is not for us: the end of it is kept, and it is never blocked.
  if (errors_ && !read_all(errors_.get(), size_t{1} << 16, &errors)) errors_.reset();
  error_text_ += errors;
  if (error_text_.size() > kMostErrorBytes)
    error_text_.erase(0, error_text_.size() - kMostErrorBytes);
  return text_.size() <= kMostDiscoveredBytes;
}

std::optional<std::string> Discovery::look_for_end(TimePoint now) {
  if (!wait_status_) {
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
      wait_status_ = -1;
    } else if (info.si_pid == pid_) {
      kill_group();  // before its number can be given to another
      int status = 0;
      wait_status_ = waitpid(pid_, &status, 0) == pid_ ? status : -1;
    }
  }
  if (!read_output()) return "it has printed more than 1 MiB";
  if (wait_status_) return why_it_failed();
  if (now - started_ < plan_.limit) return std::nullopt;
  std::ostringstream text;
  text << "it was ended after " << plan_.limit.count() << " s";
  return text.str();
}

// Empty: it did not.
std::string Discovery::why_it_failed() const {
  if (wait_status_ == 0) return "";
  if (wait_status_ == -1) return "nobody knows how it ended";
  const std::string said = last_line(error_text_);
  return "it failed: " + describe_wait_status(*wait_status_) + (said.empty() ? "" : ": " + said);
}

void Discovery::kill_group() const {
  if (pid_ > 0) kill(-pid_, SIGKILL);
}

std::optional<std::vector<HostSlots>> Discovery::finish(const std::string& problem, TimePoint now) {
  if (pid_ > 0 && !wait_status_) {
    kill_group();
    killed_pid_ = pid_;
  }
  pid_ = -1;
  life_.reset();
  output_.reset();
  errors_.reset();
  next_start_ = now + std::chrono::ceil<Clock::duration>(plan_.interval);
  Status wrong = problem.empty() ? Status() : invalid_argument(problem);
  if (wrong.ok()) {
    auto hosts = parse_discovered(text_, plan_.slots_per_host);
    if (hosts.ok()) {
      if (answer_ && same(*answer_, hosts.value())) return std::nullopt;
      return answer_ = std::move(hosts).value();
    }
    wrong = invalid_argument("what it has printed is refused: " + hosts.status().message());
  }
  if (!answer_) {
    failed_ = invalid_argument(named(plan_.script) + ": " + wrong.message());
  } else if (said_.size() < kMostSaid && said_.insert(wrong.message()).second) {
    to_say_.push_back(named(plan_.script) + ": " + wrong.message() +
                      "; the hosts that it found before stay");
  }
  return std::nullopt;
}

Status check_discovery_script(const std::string& script, const char* search_path) {
  const auto wrong = [&](const std::string& why) {
    return invalid_argument(named(script) + ": " + why);
  };
  const std::string first = script.substr(0, script.find_first_of(" \t\n"));
  const bool is_file = exists(script);
  const std::string path = is_file ? script : first;
  struct stat info = {};
  if (is_file || path.find('/') != std::string::npos) {
    if (stat(path.c_str(), &info) != 0)
      return wrong(errno == ENOENT ? "there is no such file" : errno_status(path, errno).message());
    if (!S_ISREG(info.st_mode)) return wrong("it is no file");
    if (access(path.c_str(), X_OK) != 0) return wrong("it is not executable; chmod +x makes it so");
  } else if (first == script && resolve_command(script, search_path).exit_code != 0) {
    return wrong("there is no such file, and no such command");
  }
  return {};  // more words are the shell's, which says what is wrong with them when it runs them
}

}  // namespace rueda::launcher
