// The ranks' streams to the store, cut into whole requests and answers, so that another controller
// can be asked again what the last one has not answered.
//
// A rank never sees half an answer, and the store never half a request. What is no frame goes
// through as it is, and cannot be asked again. Pure; no sockets.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/job/member.h"

namespace rueda::launcher {

class StoreStreams {
 public:
  // Of what one member has not been answered.
  static constexpr size_t kMostRequests = 4096;
  static constexpr size_t kMostBytes = size_t{64} << 20;

  using Send = std::function<void(MemberId member, std::string_view bytes, bool end)>;

  // What the rank has written; `send`: to the store.
  void from_rank(MemberId member, std::string_view bytes, bool end, const Send& send);
  // What the store has written; returns what the rank is to have of it now.
  std::string from_store(MemberId member, std::string_view bytes, bool end);
  // At another controller, whose store has never heard of it. Returns whose streams cannot go on.
  std::vector<MemberId> ask_again(const Send& send);

 private:
  struct Stream {
    std::string request, answer;  // the beginning of one
    std::deque<std::pair<uint64_t, std::string>> unanswered;
    size_t bytes = 0;  // of these
    bool raw = false;  // no frames, or too many
  };

  std::map<MemberId, Stream> streams_;
};

}  // namespace rueda::launcher
