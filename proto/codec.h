// The frame around every message's write() and read(): a string of bytes on one side, a Status on
// the other. The codecs' inner tool.
#pragma once

#include <string>
#include <string_view>

#include "proto/wire_reader.h"
#include "proto/wire_writer.h"

namespace rueda::wire::detail {

template <typename Message>
std::string encode_any(const Message& message) {
  std::string bytes;
  write(Writer(&bytes), message);
  return bytes;
}

// Turns whatever is thrown into a kDataLoss Status that names the message.
template <typename Message>
Status decode_any(const char* name, std::string_view bytes, Message* out) {
  std::string why;
  try {
    *out = Message{};
    Reader::check_limit("the message", bytes.size(), kMaxMessageBytes, "bytes");
    Reader in(bytes);
    read(in, out);
    return {};
  } catch (const Refused& refused) {
    why = refused.why;
  } catch (const protozero::exception& broken) {
    why = std::string("malformed: ") + broken.what();
  }
  return {Code::kDataLoss, std::string("cannot read ") + name + ": " + why};
}

}  // namespace rueda::wire::detail
