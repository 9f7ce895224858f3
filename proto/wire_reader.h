// Reader: one message's fields, each checked before it is believed. The codecs' inner tool.
//
// protozero does the parsing; Reader adds what it leaves to its caller: lengths that do not fit 32
// bits, tags longer than five bytes, UTF-8, limits, ranges. A field whose wire type is not the
// expected one is skipped like an unknown field, as libprotobuf does. Numbers wider than their
// field lose their upper bits, as in libprotobuf; enums are refused instead.
//
// Borrows the bytes. Failure: throws Refused or protozero::exception; guarded_decode, the border,
// is the only place that catches them.
#pragma once

#include <protozero/pbf_reader.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/utf8.h"
#include "proto/limits.h"

namespace rueda::wire::detail {

inline bool is_code(Code code) { return code >= Code::kOk && code <= Code::kUnauthenticated; }

struct Refused {
  std::string why;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : pbf_(bytes.data(), bytes.size()) {}

  // Moves to the next field; false at the end.
  bool next() {
    const std::string_view rest = remaining();
    if (rest.empty()) return false;
    const char* at = rest.data();
    const auto tag =
        static_cast<uint32_t>(protozero::decode_varint(&at, rest.data() + rest.size()));
    if (at - rest.data() > kMax32BitVarintBytes) throw Refused{"a tag is longer than five bytes"};
    const uint32_t number = tag >> 3U;
    const uint32_t type = tag & 7U;
    if (number >= 19000 && number <= 19999) throw Refused{"a reserved field number is not allowed"};
    if (number != 0 && (type == 3 || type == 4)) throw Refused{"groups are not allowed"};
    return pbf_.next();
  }
  uint32_t field() const { return pbf_.tag(); }

  void skip() {
    if (pbf_.wire_type() == protozero::pbf_wire_type::length_delimited) {
      view();
    } else {
      pbf_.skip();
    }
  }

  void read(bool* out) {
    if (has_varint()) *out = pbf_.get_uint64() != 0;
  }
  void read(uint32_t* out) {
    if (has_varint()) *out = static_cast<uint32_t>(pbf_.get_uint64());
  }
  void read(uint64_t* out) {
    if (has_varint()) *out = pbf_.get_uint64();
  }
  void read(int64_t* out) {
    if (has_varint()) *out = pbf_.get_int64();
  }
  void read_zigzag(int32_t* out) {
    if (has_varint()) *out = protozero::decode_zigzag32(static_cast<uint32_t>(pbf_.get_uint64()));
  }
  void read_zigzag(int64_t* out) {
    if (has_varint()) *out = protozero::decode_zigzag64(pbf_.get_uint64());
  }
  void read(double* out) {
    if (has(protozero::pbf_wire_type::fixed64)) *out = pbf_.get_double();
  }

  // Enum is one byte wide, or rueda::Code; `valid` decides about the numbers that fit.
  template <typename Enum, typename Valid>
  void read_enum(Enum* out, const char* what, Valid valid) {
    if (!has_varint()) return;
    const uint64_t value = pbf_.get_uint64();
    if (value > 255 || !valid(static_cast<Enum>(value))) {
      throw Refused{std::string(what) + " " + std::to_string(value) + " is not allowed"};
    }
    *out = static_cast<Enum>(value);
  }

  void read_text(std::string* out, const char* what, size_t max_bytes) {
    if (!has(protozero::pbf_wire_type::length_delimited)) return;
    const std::string_view text = view();
    if (!is_valid_utf8(text)) throw Refused{std::string(what) + " is not UTF-8"};
    check_limit(what, text.size(), max_bytes, "bytes");
    out->assign(text);
  }
  void read_bytes(std::string* out, const char* what, size_t max_bytes) {
    if (!has(protozero::pbf_wire_type::length_delimited)) return;
    const std::string_view bytes = view();
    check_limit(what, bytes.size(), max_bytes, "bytes");
    out->assign(bytes);
  }
  void append_text(std::vector<std::string>* out, const char* what, size_t max_count,
                   size_t max_bytes) {
    if (!has(protozero::pbf_wire_type::length_delimited)) return;
    check_limit(what, out->size() + 1, max_count, "entries");
    const std::string_view bytes = view();
    if (!is_valid_utf8(bytes)) throw Refused{std::string(what) + " is not UTF-8"};
    check_limit(what, bytes.size(), max_bytes, "bytes");
    out->emplace_back(bytes);
  }

  // Numbers, packed or one by one.
  void append(std::vector<int64_t>* out, const char* what, size_t max_count) {
    append_numbers(out, what, max_count, [](uint64_t v) { return static_cast<int64_t>(v); });
  }
  void append(std::vector<uint64_t>* out, const char* what, size_t max_count) {
    append_numbers(out, what, max_count, [](uint64_t v) { return v; });
  }
  void append_zigzag(std::vector<int32_t>* out, const char* what, size_t max_count) {
    append_numbers(out, what, max_count,
                   [](uint64_t v) { return protozero::decode_zigzag32(static_cast<uint32_t>(v)); });
  }

  // A sub-message, appended and filled by `fill(Reader&, Message*)`.
  template <typename Message, typename Fill>
  void append_message(std::vector<Message>* out, const char* what, size_t max_count, Fill fill) {
    if (!has(protozero::pbf_wire_type::length_delimited)) return;
    check_limit(what, out->size() + 1, max_count, "entries");
    Reader inner(view());
    fill(inner, &out->emplace_back());
  }

  static void check_limit(const char* what, size_t size, size_t max, const char* unit) {
    if (size <= max) return;
    throw Refused{std::string(what) + " has " + std::to_string(size) + " " + unit +
                  ", over the limit of " + std::to_string(max)};
  }

 private:
  static constexpr int kMax32BitVarintBytes = 5;

  std::string_view remaining() const { return {pbf_.data().data(), pbf_.data().size()}; }

  bool has(protozero::pbf_wire_type type) {
    if (pbf_.has_wire_type(type)) return true;
    skip();
    return false;
  }
  bool has_varint() { return has(protozero::pbf_wire_type::varint); }

  // The current length-delimited field. protozero cuts its length to 32 bits, so look first;
  // libprotobuf refuses lengths written with more than five bytes, so this does too.
  std::string_view view() {
    const std::string_view rest = remaining();
    const char* at = rest.data();
    const char* end = rest.data() + rest.size();
    const uint64_t length = protozero::decode_varint(&at, end);
    if (at - rest.data() > kMax32BitVarintBytes)
      throw Refused{"a length is longer than five bytes"};
    if (length > static_cast<uint64_t>(end - at)) {
      throw Refused{"a field is longer than its message"};
    }
    const protozero::data_view found = pbf_.get_view();
    return {found.data(), found.size()};
  }

  template <typename T, typename Convert>
  void append_numbers(std::vector<T>* out, const char* what, size_t max_count, Convert convert) {
    if (pbf_.has_wire_type(protozero::pbf_wire_type::varint)) {
      check_limit(what, out->size() + 1, max_count, "entries");
      out->push_back(convert(pbf_.get_uint64()));
      return;
    }
    if (!has(protozero::pbf_wire_type::length_delimited)) return;
    const std::string_view packed = view();
    const char* at = packed.data();
    const char* end = packed.data() + packed.size();
    while (at != end) {
      check_limit(what, out->size() + 1, max_count, "entries");
      out->push_back(convert(protozero::decode_varint(&at, end)));
    }
  }

  protozero::pbf_reader pbf_;
};

}  // namespace rueda::wire::detail
