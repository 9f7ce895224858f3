#include "launcher/controller/starter.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collectives/base/memory_file.h"
#include "launcher/hosts/late_start.h"
#include "launcher/job/exit_report.h"
#include "launcher/job/rank_environment.h"
#include "launcher/processes/spawn.h"

namespace rueda::launcher {

Result<std::unique_ptr<Starter>> Starter::start(const std::string& name,
                                                const std::vector<std::string>& command,
                                                const std::vector<std::string>& environment,
                                                const std::string& ticket, bool outlives_us) {
  const ResolvedCommand found =
      resolve_command(command.front(), find_variable(environment, "PATH"));
  if (found.exit_code != 0)
    return unavailable("host " + name + " cannot be started: " + found.reason);
  RUEDA_ASSIGN_OR_RETURN(const UniqueFd input,
                         memory_file("rueda-ticket", "cannot keep the job's ticket in memory"));
  if (write(input.get(), ticket.data(), ticket.size()) != static_cast<ssize_t>(ticket.size()) ||
      lseek(input.get(), 0, SEEK_SET) != 0) {
    return errno_status("cannot keep the job's ticket in memory", errno);
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_status("cannot open a pipe", errno);
  std::unique_ptr<Starter> starter(
      new Starter(name, command.front().substr(command.front().rfind('/') + 1)));
  starter->output_.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  SpawnRequest request;
  request.program = found.path;
  request.arguments = command;
  request.environment = environment;
  request.stdin_fd = input.get();
  request.outlives_us = outlives_us;
  request.stdout_fd = request.stderr_fd = write_end.get();
  RUEDA_ASSIGN_OR_RETURN(starter->pid_, spawn_rank(request));
  return starter;
}

void Starter::add_to_poll(std::vector<pollfd>* fds) const {
  if (output_) fds->push_back({output_.get(), POLLIN, 0});
}

void Starter::pump(const std::function<void(const std::string&)>& say) {
  const auto take = [&](const Piece& piece) {
    if (!piece.text.starts_with("  ")) last_message_.clear();
    last_message_ += piece.text;
    if (!piece.text.empty()) say(std::string(piece.text));
  };
  char bytes[4096];
  while (output_) {
    const ssize_t got = read(output_.get(), bytes, sizeof(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0) {
      splitter_.feed({bytes, static_cast<size_t>(got)}, take);
      continue;
    }
    splitter_.finish(take);
    output_.reset();
  }
}

void Starter::ended(int wait_status) {
  running_ = false;
  wait_status_ = wait_status;
}

void Starter::kill() const {
  if (running_) ::kill(pid_, SIGKILL);
}

bool Starter::may_come_later() const {
  return !running_ && launcher::may_come_later(program_, wait_status_, last_message_);
}

std::string Starter::describe() const {
  const std::string how = describe_wait_status(wait_status_);
  std::string text = "host " + name_ + " cannot be started: " + program_ + " " +
                     (how.starts_with("killed") ? "was " : "") + how;
  if (!last_message_.empty()) text += ": " + last_message_;
  return text;
}

}  // namespace rueda::launcher
