#include "launcher/agent/rank_process.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

namespace rueda::launcher {
namespace {

constexpr size_t kReadAtOnce = 64 << 10;

}  // namespace

void RankProcess::started(pid_t pid, UniqueFd out, UniqueFd err) {
  pid_ = pid;
  running_ = true;
  pipe(Stream::kStdout) = std::move(out);
  pipe(Stream::kStderr) = std::move(err);
}

void RankProcess::signal(int signal) const {
  if (!running_) return;
  // setsid() happens in the child: until then the group does not exist, but the process does.
  if (kill(-pid_, signal) != 0 && errno == ESRCH) kill(pid_, signal);
}

bool RankProcess::pump(Stream stream) {
  UniqueFd& from = pipe(stream);
  if (!from) return false;
  char bytes[kReadAtOnce];
  const ssize_t got = read(from.get(), bytes, sizeof(bytes));
  if (got > 0) {
    output_->take(stream, {bytes, static_cast<size_t>(got)});
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  output_->end(stream);
  from.reset();
  return false;
}

void RankProcess::drain() {
  for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
    while (pump(stream)) {
    }
    output_->end(stream);
    pipe(stream).reset();
  }
}

}  // namespace rueda::launcher
