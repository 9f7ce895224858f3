#include "collectives/nccl/pool.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "collectives/base/log.h"

namespace rueda::nccl {
namespace {

// Frees by the driver wait for the GPU; those by NCCL do not say so.
bool wait_for_gpu(const cuda::Device& device) {
  const cuda::ContextScope scope(device);
  if (!scope.status().ok()) return false;
  const cuda::BesideCaptures beside(device.driver());
  return device.driver()->synchronize() == cuda::kSuccess;
}

}  // namespace

BlockPool& BlockPool::of_process() {
  static auto* const pool = new BlockPool;  // tensors are freed until the very end
  return *pool;
}

BlockPool::BlockPool() : process_(getpid()) {}

Status BlockPool::open(cuda::DevicePtr device, std::shared_ptr<const Library> library) {
  // Says now what is missing.
  RUEDA_RETURN_IF_ERROR(allocate_of_nccl(device, library, 1).status());
  const std::lock_guard lock(mutex_);
  const int ordinal = device->ordinal();
  sources_[ordinal] = {std::move(device), std::move(library)};
  return {};
}

void* BlockPool::allocate(size_t bytes, int device) {
  if (getpid() != process_) return nullptr;
  free_with_late({});
  Source source;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sources_.find(device);
    if (found == sources_.end()) {
      RUEDA_WARN("cuda", "no memory of GPU {}: rueda's pool was made for another one", device);
      return nullptr;
    }
    source = found->second;
  }
  auto made = allocate_of_nccl(source.device, source.library, std::max<size_t>(bytes, 1));
  if (!made.ok()) {
    RUEDA_INFO("cuda", "{}", made.status().message());
    return nullptr;  // who asks says that there is none left
  }
  const std::lock_guard lock(mutex_);
  const std::byte* const data = made.value().data.get();
  known_[data] = {std::move(made).value(), ++given_};
  count_.store(known_.size(), std::memory_order_release);
  return const_cast<std::byte*>(data);
}

void BlockPool::free(void* memory) {
  if (getpid() != process_) return;
  std::vector<Block> mine;
  {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(static_cast<const std::byte*>(memory));
    if (found == known_.end()) return;
    mine.push_back(std::move(found->second.block));
    known_.erase(found);
    count_.store(known_.size(), std::memory_order_release);
  }
  free_with_late(std::move(mine));
}

void BlockPool::free_with_late(std::vector<Block> blocks) {
  std::vector<std::shared_ptr<User>> users;
  {
    const std::lock_guard lock(mutex_);
    blocks.insert(blocks.end(), late_.begin(), late_.end());
    late_.clear();
    if (blocks.empty()) return;
    std::erase_if(users_, [](const auto& user) { return user.expired(); });
    for (const auto& user : users_) users.push_back(user.lock());
  }
  for (Block& block : blocks) {
    if (!wait_for_gpu(*block.device)) continue;
    for (const auto& user : users) {
      if (user != nullptr) user->let_go(block.data.get());
    }
    if (block.data.use_count() == 1) block = {};  // freed here
  }
  std::erase_if(blocks, [](const Block& block) { return block.data == nullptr; });
  if (blocks.empty()) return;
  const std::lock_guard lock(mutex_);
  late_.insert(late_.end(), blocks.begin(), blocks.end());
}

Block BlockPool::find(const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  auto above = known_.upper_bound(address);
  if (above == known_.begin()) return {};
  const Block& block = std::prev(above)->second.block;
  return block.contains(address) ? block : Block();
}

std::vector<Block> BlockPool::blocks(int device) const {
  std::vector<Known> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [data, known] : known_) {
      if (known.block.device->ordinal() == device) found.push_back(known);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Known& a, const Known& b) { return a.number < b.number; });
  std::vector<Block> blocks;
  for (Known& known : found) blocks.push_back(std::move(known.block));
  return blocks;
}

void BlockPool::add_user(std::weak_ptr<User> user) {
  const std::lock_guard lock(mutex_);
  std::erase_if(users_, [](const auto& each) { return each.expired(); });
  users_.push_back(std::move(user));
}

}  // namespace rueda::nccl
