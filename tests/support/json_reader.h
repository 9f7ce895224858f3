// JsonReader: reads one JSON value strictly; only says whether it is one.
#pragma once

#include <cctype>
#include <string_view>

namespace rueda::testing {

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}
  bool whole() {
    const bool good = value();
    space();
    return good && at_ == text_.size();
  }

 private:
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    for (; at_ < text_.size(); ++at_) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c < 0x20) return false;
      if (c == '"') return ++at_, true;
      if (c != '\\') continue;
      if (++at_ >= text_.size()) return false;
      if (text_[at_] == 'u') {
        for (int i = 0; i < 4; ++i) {
          if (++at_ >= text_.size() || !std::isxdigit(static_cast<unsigned char>(text_[at_])))
            return false;
        }
      } else if (std::string_view("\"\\/bfnrt").find(text_[at_]) == std::string_view::npos) {
        return false;
      }
    }
    return false;
  }
  bool list(char end, bool named) {
    if (take(end)) return true;
    do {
      if (named && !(string() && take(':'))) return false;
      if (!value()) return false;
    } while (take(','));
    return take(end);
  }
  bool value() {
    space();
    if (at_ >= text_.size()) return false;
    if (text_[at_] == '"') return string();
    if (take('{')) return list('}', true);
    if (take('[')) return list(']', false);
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at_).starts_with(word)) return at_ += word.size(), true;
    }
    const size_t begin = at_;
    if (text_[at_] == '-') ++at_;
    while (at_ < text_.size() &&
           (std::isdigit(static_cast<unsigned char>(text_[at_])) || text_[at_] == '.'))
      ++at_;
    return at_ > begin;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace rueda::testing
