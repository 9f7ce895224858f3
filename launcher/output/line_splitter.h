// Cuts a stream of bytes into pieces that may be printed one after the other: whole lines, and the
// redraws of a progress bar ("\r").
//
//   "loss 0.3\n"          one piece "loss 0.3", end '\n'
//   "10%\r20%\r30%\n"     a terminal gets "10%" '\r', "20%" '\r', "30%" '\n'; a file gets "30%"
//   '\n' "a\r\n"               one piece "a", end '\n'
//
// A line longer than the limit is given out in several pieces, never cut inside a UTF-8 character.
// Pure; not for use from two threads. Emitted views are valid inside the callback only.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace rueda::launcher {

struct Piece {
  std::string_view text;
  char end = '\n';  // '\n' or '\r'
};

class LineSplitter {
 public:
  using Emit = std::function<void(const Piece&)>;
  static constexpr size_t kMaxPiece = 64 << 10;

  // keep_redraws: emit pieces that end in '\r'; otherwise only the last redraw of a line is kept.
  explicit LineSplitter(bool keep_redraws, size_t max_piece = kMaxPiece)
      : keep_redraws_(keep_redraws), max_piece_(max_piece) {}

  void feed(std::string_view bytes, const Emit& emit);
  // The stream has ended: what is left is emitted as a line. Nothing may be fed afterwards.
  void finish(const Emit& emit);

 private:
  void append(std::string_view text, const Emit& emit);
  void begin_redraw(const Emit& emit);
  void end_line(const Emit& emit);

  const bool keep_redraws_;
  const size_t max_piece_;
  std::string pending_;
  bool returned_ = false;  // the last byte was '\r': a redraw, unless '\n' comes next
  bool redrawn_ = false;   // pending_ began after a '\r'
  size_t shown_ = 0;       // bytes of pending_ already emitted as a redraw
};

}  // namespace rueda::launcher
