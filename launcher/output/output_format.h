// How one piece of a rank's output looks.
//
//   not a terminal   [3]<stdout>: loss 0.3
//   a terminal       3│ loss 0.3        (the prefix in the rank's colour unless NO_COLOR is set)
//   of several       [0-3]<stdout>: loss 0.3    0-3│ loss 0.3
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/types.h"
#include "launcher/output/line_splitter.h"

namespace rueda::launcher {

enum class Stream { kStdout = 0, kStderr = 1 };

struct OutputStyle {
  bool prefix = true;
  bool terminal = false;
  bool colour = false;
  int rank_width = 1;  // digits of the highest rank
};

// Appends the piece to `out`. `redraw_open` belongs to the place it is printed to: whether the
// cursor's line holds a progress bar that the next piece must wipe out.
void append_piece(const OutputStyle& style, Rank rank, Stream stream, const Piece& piece,
                  bool* redraw_open, std::string* out);

// A line that these ranks have all written (line_folder.h); ascending, at least one.
void append_line(const OutputStyle& style, const std::vector<Rank>& ranks, Stream stream,
                 const std::string& text, bool* redraw_open, std::string* out);

}  // namespace rueda::launcher
