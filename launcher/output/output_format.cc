#include "launcher/output/output_format.h"

#include <algorithm>

#include "collectives/base/number_text.h"

namespace rueda::launcher {
namespace {

// Six colours that read on dark and on light ground.
constexpr int kColours[] = {36, 33, 32, 35, 34, 31};
constexpr const char* kWipeToEnd = "\x1b[K";

// `number`: of the rank, or of several. `colour`: 0 for none.
void append_prefix(const OutputStyle& style, std::string number, int colour, Stream stream,
                   std::string* out) {
  if (!style.terminal) {
    *out += "[" + number + (stream == Stream::kStdout ? "]<stdout>: " : "]<stderr>: ");
    return;
  }
  const size_t width = static_cast<size_t>(std::max(style.rank_width, 1));
  if (number.size() < width) number.insert(0, width - number.size(), ' ');
  const bool coloured = style.colour && colour != 0;
  if (coloured) *out += "\x1b[" + std::to_string(colour) + "m";
  *out += number + "│";
  if (coloured) *out += "\x1b[0m";
  *out += ' ';
}

void append_text(const OutputStyle& style, const Piece& piece, bool* redraw_open,
                 std::string* out) {
  *out += piece.text;
  if (style.terminal && (*redraw_open || piece.end == '\r')) *out += kWipeToEnd;
  *out += piece.end;
  *redraw_open = piece.end == '\r';
}

}  // namespace

void append_piece(const OutputStyle& style, Rank rank, Stream stream, const Piece& piece,
                  bool* redraw_open, std::string* out) {
  if (style.prefix) append_prefix(style, std::to_string(rank), kColours[rank % 6], stream, out);
  append_text(style, piece, redraw_open, out);
}

void append_line(const OutputStyle& style, const std::vector<Rank>& ranks, Stream stream,
                 const std::string& text, bool* redraw_open, std::string* out) {
  if (ranks.size() == 1)
    return append_piece(style, ranks.front(), stream, {text, '\n'}, redraw_open, out);
  if (style.prefix) append_prefix(style, ranges_text(ranks), 0, stream, out);
  append_text(style, {text, '\n'}, redraw_open, out);
}

}  // namespace rueda::launcher
