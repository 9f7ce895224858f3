#include "launcher/output/output_sink.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace rueda::launcher {

void OutputSink::queue(std::string_view text) {
  if (!broken_) text_ += text;
}

void OutputSink::flush() {
  while (pending() > 0) {
    pollfd room = {fd_, POLLOUT, 0};
    if (poll(&room, 1, 0) <= 0) break;
    // A pipe with room takes PIPE_BUF bytes at once, undivided. End with a line if one ends there,
    // so that whoever shares the pipe does not write into the middle of it.
    std::string_view next(text_);
    next = next.substr(done_, PIPE_BUF);
    const size_t line = next.rfind('\n');
    if (line != std::string_view::npos) next = next.substr(0, line + 1);
    const ssize_t wrote = write(fd_, next.data(), next.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) break;
    if (wrote < 0) {
      broken_ = true;
      text_.clear();
      done_ = 0;
      return;
    }
    done_ += static_cast<size_t>(wrote);
  }
  if (done_ == text_.size() || done_ > (64 << 10)) {
    text_.erase(0, done_);
    done_ = 0;
  }
}

}  // namespace rueda::launcher
