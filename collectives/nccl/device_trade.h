// What every rank of a communicator gives to every other of some tensors, as NCCL's calls of one
// group.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/base/types.h"
#include "collectives/nccl/session.h"

namespace rueda::nccl {

inline constexpr size_t kScratchAlignment = 256;  // bytes, of what lies in the scratch memory

// Of `parts` tensors: sent(peer, part) goes to each peer, received(peer, part) comes from there.
// Empty spans are left out, on both ranks alike.
template <typename Sent, typename Received>
Status trade(Session& session, Rank rank, Rank size, size_t parts, Sent sent, Received received) {
  const Library& nccl = session.library();
  for (Rank peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const int there = static_cast<int>(peer);
    for (size_t part = 0; part < parts; ++part) {
      if (const auto out = sent(peer, part); !out.empty()) {
        RUEDA_RETURN_IF_ERROR(
            session.call("ncclSend", nccl->send, out.data(), out.size(), Type::kInt8, there));
      }
      if (const auto in = received(peer, part); !in.empty()) {
        RUEDA_RETURN_IF_ERROR(
            session.call("ncclRecv", nccl->recv, in.data(), in.size(), Type::kInt8, there));
      }
    }
  }
  return {};
}

}  // namespace rueda::nccl
