#include "launcher/rank_process.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

namespace rueda::launcher {
namespace {

constexpr size_t kReadAtOnce = 64 << 10;
constexpr size_t kRememberedLines = 10;
constexpr size_t kRememberedBytes = 400;  // of each line

}  // namespace

RankProcess::RankProcess(const RankPlace& place, Console* console)
    : place_(place),
      console_(console),
      pipes_{{UniqueFd(), LineSplitter(console->keeps_redraws(Stream::kStdout))},
             {UniqueFd(), LineSplitter(console->keeps_redraws(Stream::kStderr))}} {}

void RankProcess::started(pid_t pid, UniqueFd out, UniqueFd err) {
  pid_ = pid;
  running_ = true;
  pipe(Stream::kStdout).fd = std::move(out);
  pipe(Stream::kStderr).fd = std::move(err);
}

void RankProcess::signal(int signal) const {
  if (!running_) return;
  // setsid() happens in the child: until then the group does not exist, but the process does.
  if (kill(-pid_, signal) != 0 && errno == ESRCH) kill(pid_, signal);
}

LineSplitter::Emit RankProcess::printer(Stream stream) {
  return [this, stream](const Piece& piece) {
    if (stream == Stream::kStderr && piece.end == '\n') remember(piece.text);
    console_->print(place_.rank, stream, piece);
  };
}

void RankProcess::remember(std::string_view line) {
  if (line.find_first_not_of(" \t") == std::string_view::npos) return;
  words_.emplace_back(line.substr(0, kRememberedBytes));
  if (words_.size() > kRememberedLines) words_.pop_front();
}

bool RankProcess::pump(Stream stream) {
  Pipe& from = pipe(stream);
  if (!from.fd) return false;
  char bytes[kReadAtOnce];
  const ssize_t got = read(from.fd.get(), bytes, sizeof(bytes));
  if (got > 0) {
    const Status copied = copy_.write(stream, {bytes, static_cast<size_t>(got)});
    if (!copied.ok()) console_->say(copied.message());
    from.splitter.feed({bytes, static_cast<size_t>(got)}, printer(stream));
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  from.splitter.finish(printer(stream));
  from.fd.reset();
  return false;
}

void RankProcess::drain() {
  for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
    while (pump(stream)) {
    }
    pipe(stream).splitter.finish(printer(stream));
    pipe(stream).fd.reset();
  }
}

}  // namespace rueda::launcher
