// UTF-8: what every text is that leaves a process (proto3 and JSON demand it), and free text made
// to obey.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rueda {

// Length of the well-formed character that `text` begins with; 0 when it begins with none. Overlong
// forms, surrogates and values above U+10FFFF are not well formed (Unicode 15, table 3-7).
inline size_t utf8_char_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (text.empty()) return 0;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  size_t length = 0;
  uint8_t low = 0x80;  // bounds of the second byte; later ones are 80..BF
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  if (length == 0 || text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

inline bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_char_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// `text` with '?' for every byte that belongs to no character, cut between characters to at most
// `max_bytes`: for error texts, which must arrive even when their tail or a stray byte cannot.
inline std::string clean_text(std::string_view text, size_t max_bytes) {
  std::string clean;
  clean.reserve(text.size() < max_bytes ? text.size() : max_bytes);
  while (!text.empty()) {
    const size_t length = utf8_char_length(text);
    if (clean.size() + (length == 0 ? 1 : length) > max_bytes) break;
    if (length == 0) {
      clean += '?';
      text.remove_prefix(1);
    } else {
      clean.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return clean;
}

// The same on one line without control characters, for terminals and for JSON: whatever the bytes
// are.
inline std::string printable_text(std::string_view text, size_t max_bytes = std::string::npos) {
  std::string clean = clean_text(text, max_bytes);
  for (size_t i = 0; i < clean.size(); ++i) {
    const auto byte = static_cast<uint8_t>(clean[i]);
    const bool is_c1 =
        byte == 0xC2 && static_cast<uint8_t>(clean[i + 1]) < 0xA0;  // U+0080 to U+009F
    if (is_c1) clean.erase(i + 1, 1);
    if (is_c1 || byte < 0x20 || byte == 0x7f) clean[i] = '?';
  }
  return clean;
}

}  // namespace rueda
