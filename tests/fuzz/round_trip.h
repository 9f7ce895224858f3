// What can be read can be written, and reads the same again: of any message that has encode() and
// decode().
#pragma once

#include <string>
#include <string_view>

#include "tests/fuzz/input.h"

namespace rueda::fuzz {

template <typename Message>
void round_trip(std::string_view bytes) {
  Message first, second;
  if (!decode(bytes, &first).ok()) return;
  const std::string again = encode(first);
  expect(decode(again, &second).ok(), "what was written can be read");
  expect(encode(second) == again, "and is the same");
}

}  // namespace rueda::fuzz
