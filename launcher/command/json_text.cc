// Recursive descent. Positions only: values are for whoever reads the file.
#include "launcher/command/json_text.h"

#include <algorithm>
#include <cctype>

namespace rueda::launcher {
namespace {

constexpr int kDeepest = 100;

struct JsonReader {
  std::string_view text;
  size_t at = 0;
  std::string expected;  // not empty: what was not there

  bool fail(const std::string& what) {
    if (expected.empty()) expected = what;
    return false;
  }
  void skip_space() {
    while (at < text.size() && std::string_view(" \t\n\r").find(text[at]) != std::string::npos)
      ++at;
  }
  bool is(char c) {
    skip_space();
    return at < text.size() && text[at] == c;
  }
  bool take(char c) {
    if (!is(c)) return fail(std::string("'") + c + "' expected");
    ++at;
    return true;
  }
  size_t take_digits() {
    const size_t begin = at;
    while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
    return at - begin;
  }

  bool string() {
    if (!take('"')) return fail("a name or text in \" expected");
    for (; at < text.size() && text[at] != '"'; ++at) {
      if (static_cast<unsigned char>(text[at]) < 0x20) return fail("a text without its end");
      if (text[at] != '\\') continue;
      ++at;
      if (at >= text.size() || std::string_view("\"\\/bfnrtu").find(text[at]) == std::string::npos)
        return fail("a \\ that means nothing");
      if (text[at] != 'u') continue;
      for (int i = 0; i < 4; ++i) {
        ++at;
        if (at >= text.size() || !std::isxdigit(static_cast<unsigned char>(text[at])))
          return fail("four hexadecimal digits expected");
      }
    }
    return at < text.size() ? (++at, true) : fail("a text without its end");
  }

  bool number() {
    if (text[at] == '-') ++at;
    const size_t first = at;
    const size_t digits = take_digits();
    if (digits == 0 || (digits > 1 && text[first] == '0')) return fail("a number expected");
    if (at < text.size() && text[at] == '.') {
      ++at;
      if (take_digits() == 0) return fail("digits expected");
    }
    if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
      ++at;
      if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
      if (take_digits() == 0) return fail("digits expected");
    }
    return true;
  }

  bool word() {
    for (const std::string_view known : {"true", "false", "null"}) {
      if (text.substr(at, known.size()) == known) {
        at += known.size();
        return true;
      }
    }
    return fail("a value expected");
  }

  // What stands between brackets, separated by commas.
  template <typename Element>
  bool list(char open, char close, Element element) {
    if (!take(open)) return false;
    if (is(close)) return take(close);
    for (;;) {
      if (!element()) return false;
      if (is(close)) return take(close);
      if (!is(',')) return fail(std::string("',' or '") + close + "' expected");
      ++at;
    }
  }

  bool object(int depth) {
    return list('{', '}', [&] { return string() && take(':') && value(depth); });
  }

  bool value(int depth) {
    if (depth > kDeepest) return fail("too many brackets within each other");
    skip_space();
    if (at == text.size()) return fail("a value expected");
    const char c = text[at];
    if (c == '{') return object(depth + 1);
    if (c == '[') return list('[', ']', [&] { return value(depth + 1); });
    if (c == '"') return string();
    if (c == '-' || std::isdigit(static_cast<unsigned char>(c))) return number();
    return word();
  }
};

}  // namespace

std::optional<std::string> what_is_no_json_object(std::string_view text) {
  JsonReader reader{text};
  if (reader.object(0)) {
    reader.skip_space();
    if (reader.at == text.size()) return std::nullopt;
    reader.fail("nothing expected behind the last '}'");
  }
  const auto end = text.begin() + static_cast<ptrdiff_t>(std::min(reader.at, text.size()));
  return "line " + std::to_string(1 + std::count(text.begin(), end, '\n')) + ": " + reader.expected;
}

}  // namespace rueda::launcher
