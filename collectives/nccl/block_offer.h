// BlockOffer: which of the pool's blocks the ranks of a communicator make symmetric windows of
// together. Each offers those that it has not registered yet, by their sizes; for each size they
// make as many windows as the rank that has the fewest, the first ones of each rank. What is left
// over is registered by each rank for itself when a tensor lies in it. Pure but for new_blocks.
//
//   rank 0 offers 20 2 20 MiB, rank 1 offers 20 2 MiB:  windows of the first 20 and the 2 on both
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/nccl/pool.h"
#include "collectives/nccl/session.h"

namespace rueda::nccl {

// Of one rank. Travels as it is, between processes of one byte order.
struct BlockOffer {
  static constexpr uint64_t kMagic = 0x3130776f646e6957;  // "Window01"
  static constexpr size_t kMost = 62;                     // the others wait for the next time

  BlockOffer() = default;
  BlockOffer(const std::vector<Block>& blocks, bool captured);

  uint64_t magic = kMagic;
  uint32_t count = 0;
  uint32_t captured = 0;  // this rank's stream is: nobody makes windows now
  uint64_t bytes[kMost] = {};
};
static_assert(sizeof(BlockOffer) == 512);

// Those of the session's device and NCCL that it has not registered, in the order of the pool.
std::vector<Block> new_blocks(const Session& session, const BlockPool& pool);
bool is_captured_anywhere(const std::vector<BlockOffer>& offers);
// Sizes of the windows to be made, in their order; the same on all ranks. DataLoss: damaged.
Result<std::vector<uint64_t>> agree_on(const std::vector<BlockOffer>& offers);
// This rank's block for each.
std::vector<Block> choose(const std::vector<Block>& blocks, const std::vector<uint64_t>& sizes);

}  // namespace rueda::nccl
