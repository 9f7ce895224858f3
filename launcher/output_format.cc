#include "launcher/output_format.h"

#include <algorithm>

namespace rueda::launcher {
namespace {

// Six colours that read on dark and on light ground.
constexpr int kColours[] = {36, 33, 32, 35, 34, 31};
constexpr const char* kWipeToEnd = "\x1b[K";

void append_prefix(const OutputStyle& style, Rank rank, Stream stream, std::string* out) {
  std::string number = std::to_string(rank);
  if (!style.terminal) {
    *out += "[" + number + (stream == Stream::kStdout ? "]<stdout>: " : "]<stderr>: ");
    return;
  }
  const size_t width = static_cast<size_t>(std::max(style.rank_width, 1));
  if (number.size() < width) number.insert(0, width - number.size(), ' ');
  if (style.colour) *out += "\x1b[" + std::to_string(kColours[rank % 6]) + "m";
  *out += number + "│";
  if (style.colour) *out += "\x1b[0m";
  *out += ' ';
}

}  // namespace

void append_piece(const OutputStyle& style, Rank rank, Stream stream, const Piece& piece,
                  bool* redraw_open, std::string* out) {
  if (style.prefix) append_prefix(style, rank, stream, out);
  *out += piece.text;
  if (style.terminal && (*redraw_open || piece.end == '\r')) *out += kWipeToEnd;
  *out += piece.end;
  *redraw_open = piece.end == '\r';
}

}  // namespace rueda::launcher
