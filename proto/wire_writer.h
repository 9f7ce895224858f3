// Writer: appends fields to a string as proto3 does: defaults are left out, numbers packed. The
// codecs' inner tool. The result is canonical: the same bytes that libprotobuf writes.
#pragma once

#include <protozero/pbf_writer.hpp>

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/utf8.h"

namespace rueda::wire::detail {

class Writer {
 public:
  explicit Writer(std::string* out) : pbf_(*out) {}

  void put(uint32_t field, bool value) {
    if (value) pbf_.add_bool(field, true);
  }
  void put(uint32_t field, uint32_t value) {
    if (value != 0) pbf_.add_uint32(field, value);
  }
  void put(uint32_t field, uint64_t value) {
    if (value != 0) pbf_.add_uint64(field, value);
  }
  void put(uint32_t field, int64_t value) {
    if (value != 0) pbf_.add_int64(field, value);
  }
  void put_zigzag(uint32_t field, int32_t value) {
    if (value != 0) pbf_.add_sint32(field, value);
  }
  void put_zigzag(uint32_t field, int64_t value) {
    if (value != 0) pbf_.add_sint64(field, value);
  }
  // -0.0 is not the default: the bits decide.
  void put(uint32_t field, double value) {
    if (std::bit_cast<uint64_t>(value) != 0) pbf_.add_double(field, value);
  }
  template <typename Enum>
  void put_enum(uint32_t field, Enum value) {
    put(field, static_cast<uint32_t>(value));
  }
  void put_bytes(uint32_t field, std::string_view value) {
    if (!value.empty()) put_even_empty(field, value);
  }
  // Text for people: made to fit rather than refused.
  void put_free_text(uint32_t field, std::string_view text, size_t max_bytes) {
    if (text.size() <= max_bytes && is_valid_utf8(text)) {
      put_bytes(field, text);
    } else {
      put_bytes(field, clean_text(text, max_bytes));
    }
  }
  // An element of a repeated field: present even when empty.
  void put_even_empty(uint32_t field, std::string_view value) {
    pbf_.add_bytes(field, value.data(), value.size());
  }
  void put(uint32_t field, const std::vector<int64_t>& values) {
    pbf_.add_packed_int64(field, values.begin(), values.end());
  }
  void put(uint32_t field, const std::vector<uint64_t>& values) {
    pbf_.add_packed_uint64(field, values.begin(), values.end());
  }
  void put_zigzag(uint32_t field, const std::vector<int32_t>& values) {
    pbf_.add_packed_sint32(field, values.begin(), values.end());
  }

 private:
  protozero::pbf_writer pbf_;
};

}  // namespace rueda::wire::detail
