// A gzip member that says in its header how long it is, so that a file of members that was cut can
// be shortened to the whole ones without decompressing anything (as in BGZF):
//
//   1f 8b 08 04 ........ xx ff  0c 00  'R' 'u' 08 00 <length of the member, 8 bytes>
//   deflated bytes, CRC-32, length of what was deflated
//
// Every tool that reads gzip reads the members of a file as one text. zlib is opened when it is
// needed first: librueda needs it for nothing else, and Debian's archive cannot be put into a
// shared library.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "collectives/base/status.h"

namespace rueda::timeline {

// The members at the beginning of `bytes` that are there to their end.
std::string_view whole_members(std::string_view bytes);

// Makes members. One thread.
class Gzip {
 public:
  // kUnavailable: there is no zlib here.
  static Result<std::unique_ptr<Gzip>> open();
  virtual ~Gzip() = default;
  virtual Status append_member(std::string_view text, std::string* out) = 0;
};

}  // namespace rueda::timeline
