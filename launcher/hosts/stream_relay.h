// Carries the byte streams between ranks and the store through something that knows messages only:
// the agent has the rank's end of a stream, the controller the store's.
//
// Owns the sockets. One thread. What cannot be written yet is kept; a stream is not read from while
// more than kMaxKept of the other direction is kept, as its owner then does not read either.
#pragma once

#include <poll.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/unique_fd.h"
#include "launcher/job/member.h"

namespace rueda::launcher {

class StreamRelay {
 public:
  static constexpr size_t kMaxKept = 4 << 20;
  static constexpr size_t kPiece = 256 << 10;

  // `end`: the stream has ended and nothing follows.
  using Carry = std::function<void(MemberId member, std::string_view bytes, bool end)>;

  void add(MemberId member, UniqueFd fd);
  void add_to_poll(std::vector<pollfd>* fds) const;
  // Reads what can be read and hands it to `carry`; writes what was kept.
  void pump(const Carry& carry);
  // What the other side has read.
  void deliver(MemberId member, std::string_view bytes, bool end);
  // Closes the member's stream.
  void drop(MemberId member) { streams_.erase(member); }

 private:
  struct Stream {
    UniqueFd fd;
    std::string kept;
    bool ending = false;  // once `kept` is written
  };
  bool write_kept(Stream* stream);

  std::map<MemberId, Stream> streams_;
};

}  // namespace rueda::launcher
