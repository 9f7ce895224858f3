// Writes queued text to a descriptor that other programs share, without ever blocking for long.
//
// The descriptor's flags are left alone (O_NONBLOCK would change it for the shell, too): text is
// written only while poll says that there is room, in pieces that end with a line where possible.
// Borrows the descriptor. Failure: after a write error broken() is true and text is dropped.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rueda::launcher {

class OutputSink {
 public:
  explicit OutputSink(int fd) : fd_(fd) {}

  void queue(std::string_view text);
  // Writes what there is room for.
  void flush();

  int fd() const { return fd_; }
  size_t pending() const { return text_.size() - done_; }
  bool broken() const { return broken_; }

 private:
  const int fd_;
  std::string text_;
  size_t done_ = 0;  // bytes of text_ already written
  bool broken_ = false;
};

}  // namespace rueda::launcher
