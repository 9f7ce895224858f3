#include "launcher/output/line_splitter.h"

#include <algorithm>

namespace rueda::launcher {
namespace {

// The longest prefix of at most `limit` bytes that does not end inside a UTF-8 character.
size_t whole_characters(std::string_view text, size_t limit) {
  size_t cut = std::min(limit, text.size());
  if (cut == text.size()) return cut;
  size_t back = cut;
  while (back > 0 && cut - back < 4 && (static_cast<unsigned char>(text[back]) & 0xC0) == 0x80)
    --back;
  const bool boundary = (static_cast<unsigned char>(text[back]) & 0xC0) != 0x80;
  return boundary && back > 0 ? back : cut;
}

}  // namespace

void LineSplitter::append(std::string_view text, const Emit& emit) {
  if (text.empty()) return;
  if (returned_) begin_redraw(emit);
  pending_ += text;
  while (pending_.size() > max_piece_) {
    const size_t cut = whole_characters(pending_, max_piece_);
    emit({std::string_view(pending_).substr(0, cut), '\n'});
    pending_.erase(0, cut);
    shown_ = 0;
  }
}

void LineSplitter::begin_redraw(const Emit& emit) {
  if (keep_redraws_ && shown_ < pending_.size()) emit({pending_, '\r'});
  pending_.clear();
  shown_ = 0;
  returned_ = false;
  redrawn_ = true;
}

void LineSplitter::end_line(const Emit& emit) {
  emit({pending_, '\n'});
  pending_.clear();
  shown_ = 0;
  returned_ = false;
  redrawn_ = false;
}

void LineSplitter::feed(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    const size_t stop = bytes.find_first_of("\r\n");
    append(bytes.substr(0, stop), emit);
    if (stop == std::string_view::npos) break;
    if (bytes[stop] == '\n') {
      end_line(emit);
    } else {
      returned_ = true;
    }
    bytes.remove_prefix(stop + 1);
  }
  // A progress bar waits for its next tick; show what it has drawn so far. The text stays pending:
  // should '\n' follow, it is a line.
  if (keep_redraws_ && (returned_ || redrawn_) && shown_ < pending_.size()) {
    emit({pending_, '\r'});
    shown_ = pending_.size();
  }
}

void LineSplitter::finish(const Emit& emit) {
  if (!pending_.empty()) end_line(emit);
}

}  // namespace rueda::launcher
