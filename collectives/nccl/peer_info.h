// PeerInfo: what the ranks of a group tell each other before NCCL starts, and what they look for in
// it.
//
// NCCL hangs or fails without naming anybody when versions differ or two ranks use one GPU; here
// both are errors, the same on all ranks, that name them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/nccl/functions.h"

namespace rueda::nccl {

// Of one rank. Fixed size: it travels as it is, between processes of one byte order.
struct PeerInfo {
  uint64_t magic = kMagic;
  int32_t version = 0;        // of NCCL
  int32_t ranks_per_gpu = 1;  // may use one; RUEDA_ALLOW_SHARED_GPU: any number
  int32_t failed = 0;         // this rank cannot take part; `path` says why
  int32_t kernels = 0;        // version of rueda's own kernels; 0: this rank has none
  int32_t splits = 0;         // its NCCL has ncclCommSplit
  int32_t capability = 0;     // of its GPU: 90 is 9.0
  int32_t windows = 0;        // kMakesWindows, and kBufferCanBeOne of its buffer for packed tensors
  int32_t part = 0;           // it holds a part that was split off the communicator of all ranks
  UniqueId id{};              // of the group's first rank alone
  char uuid[48] = "";         // of its GPU
  char host[64] = "";
  char path[512] = "";  // of NCCL's library

  static constexpr uint64_t kMagic = 0x3430746165536352;  // "RcSeat04"
  static constexpr int32_t kMakesWindows = 1;
  static constexpr int32_t kBufferCanBeOne = 2;
};
static_assert(sizeof(PeerInfo) == 40 + 128 + 48 + 64 + 512);

// Copies what fits, with a zero at the end.
void set_text(const std::string& text, char* to, size_t room);

// names: "rank 1 (pid 4711 on node2)", of the group's ranks. Same text on all ranks.
Status check_peers(const std::vector<PeerInfo>& infos, const std::vector<std::string>& names);

}  // namespace rueda::nccl
