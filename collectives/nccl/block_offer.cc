#include "collectives/nccl/block_offer.h"

#include <algorithm>
#include <map>

namespace rueda::nccl {

BlockOffer::BlockOffer(const std::vector<Block>& blocks, bool is_captured)
    : count(static_cast<uint32_t>(std::min(blocks.size(), kMost))), captured(is_captured ? 1 : 0) {
  for (size_t i = 0; i < count; ++i) bytes[i] = blocks[i].bytes;
}

std::vector<Block> new_blocks(const Session& session, const BlockPool& pool) {
  if (pool.empty()) return {};
  std::vector<Block> blocks = pool.blocks(session.device()->ordinal());
  std::erase_if(blocks, [&](const Block& block) {
    return block.maker != session.library()->mem_alloc || session.uses_directly(block);
  });
  return blocks;
}

bool is_captured_anywhere(const std::vector<BlockOffer>& offers) {
  return std::any_of(offers.begin(), offers.end(),
                     [](const BlockOffer& offer) { return offer.captured != 0; });
}

Result<std::vector<uint64_t>> agree_on(const std::vector<BlockOffer>& offers) {
  std::map<uint64_t, size_t> fewest;  // of each size
  for (const BlockOffer& offer : offers) {
    if (offer.magic != BlockOffer::kMagic || offer.count > BlockOffer::kMost)
      return Status(Code::kDataLoss, "what a rank has told of its GPU memory is damaged");
    std::map<uint64_t, size_t> here;
    for (size_t i = 0; i < offer.count; ++i) ++here[offer.bytes[i]];
    if (&offer == &offers.front()) {
      fewest = std::move(here);
      continue;
    }
    for (auto& [size, count] : fewest)
      count = std::min(count, here.contains(size) ? here[size] : 0);
  }
  std::vector<uint64_t> sizes;
  if (is_captured_anywhere(offers)) return sizes;
  // In the order of the first rank's.
  for (size_t i = 0; i < offers.front().count; ++i) {
    size_t& left = fewest[offers.front().bytes[i]];
    if (left == 0) continue;
    --left;
    sizes.push_back(offers.front().bytes[i]);
  }
  return sizes;
}

std::vector<Block> choose(const std::vector<Block>& blocks, const std::vector<uint64_t>& sizes) {
  std::vector<Block> chosen;
  std::vector<bool> taken(blocks.size(), false);
  for (const uint64_t size : sizes) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (taken[i] || blocks[i].bytes != size) continue;
      taken[i] = true;
      chosen.push_back(blocks[i]);
      break;
    }
  }
  return chosen;
}

}  // namespace rueda::nccl
