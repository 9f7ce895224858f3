// TransferList: a test's transfers, whose addresses stay. Stands behind the memory that they move.
#pragma once

#include <algorithm>
#include <deque>

#include "collectives/transport/transport.h"

namespace rueda::testing {

class TransferList {
 public:
  using Transfer = transport::Transfer;

  Transfer& send(transport::Transport* transport, Rank peer, transport::Tag tag, ByteView bytes,
                 uint16_t meta = 0) {
    transport->send(&list_.emplace_back(), peer, tag, bytes, meta);
    return list_.back();
  }
  Transfer& recv(transport::Transport* transport, Rank peer, transport::Tag tag, ByteSpan bytes,
                 uint16_t meta = 0) {
    transport->recv(&list_.emplace_back(), peer, tag, bytes, meta);
    return list_.back();
  }
  bool all_done() const {
    return std::all_of(begin(), end(), [](const Transfer& t) { return t.done(); });
  }
  bool all_ok() const {
    return std::all_of(begin(), end(),
                       [](const Transfer& t) { return t.done() && t.status().ok(); });
  }
  std::deque<Transfer>::const_iterator begin() const { return list_.begin(); }
  std::deque<Transfer>::const_iterator end() const { return list_.end(); }
  Transfer& operator[](size_t index) { return list_[index]; }

 private:
  std::deque<Transfer> list_;
};

}  // namespace rueda::testing
