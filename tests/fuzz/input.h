// Input: what a fuzzer gives, taken piece by piece. When it is used up, everything is zero or
// empty.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace rueda::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }
  template <typename Number>
  Number number() {
    Number value{};
    const size_t count = std::min(sizeof(value), left_.size());
    std::memcpy(&value, left_.data(), count);
    left_.remove_prefix(count);
    return value;
  }
  // A length of two bytes, then that many.
  std::string_view bytes() { return bytes(number<uint16_t>()); }
  std::string_view bytes(size_t count) {
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() { return bytes(left_.size()); }

 private:
  std::string_view left_;
};

// What must hold whatever the input: a finding otherwise.
inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
