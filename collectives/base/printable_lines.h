// Foreign text on its way to a terminal.
#pragma once

#include <string>
#include <string_view>

#include "collectives/base/utf8.h"

namespace rueda {

// `text` without what a terminal would obey: colours and other CSI sequences (ECMA-48, 5.4) are
// left out, every other control character and stray byte becomes '?'. Lines and tabs stay.
inline std::string printable_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (text.starts_with("\x1b[")) {
      size_t end = 2;
      while (end < text.size() && text[end] >= 0x20 && text[end] < 0x40) ++end;
      if (end < text.size() && text[end] >= 0x40 && text[end] < 0x7f) {
        text.remove_prefix(end + 1);
        continue;
      }
    }
    if (text[0] == '\n' || text[0] == '\t') {
      out += text[0];
      text.remove_prefix(1);
      continue;
    }
    const size_t next = std::min(text.find_first_of("\n\t\x1b", 1), text.size());
    out += printable_text(text.substr(0, next));
    text.remove_prefix(next);
  }
  return out;
}

}  // namespace rueda
