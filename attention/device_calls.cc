#include "attention/device_calls.h"

#include <cstring>
#include <mutex>

#include "attention/executor.h"
#include "attention/link_messages.h"
#include "attention/virtual_world.h"
#include "collectives/base/utf8.h"

namespace rueda::attention {

std::string with_reason(std::string what, const DeviceKernels& kernels) {
  const size_t length =
      kernels.reason == nullptr ? 0 : strnlen(kernels.reason, kernels.reason_bytes);
  if (length > 0) what += ": " + clean_text({kernels.reason, length}, length);
  return what;
}

namespace {

class DeviceWork final : public Work {
 public:
  DeviceWork(const DeviceKernels& kernels, Rank place) : kernels_(kernels), place_(place) {}
  Result<std::byte*> take(int slot, int64_t bytes) override {
    void* const memory = kernels_.take(kernels_.user, place_, slot, bytes);
    if (memory != nullptr) return static_cast<std::byte*>(memory);
    return Status(
        Code::kResourceExhausted,
        with_reason("attention: no memory for " + std::to_string(bytes) + " bytes of a call",
                    kernels_));
  }
  void give(int slot, std::byte*) override { kernels_.give(kernels_.user, place_, slot); }
  Status perform(int number, const Instruction& one, std::span<std::byte* const>) override {
    if (kernels_.perform(kernels_.user, place_, number) == 0) return {};
    return internal_error(with_reason(std::string("attention: the kernel of '") + name_of(one.op) +
                                          "' failed, instruction " + std::to_string(number),
                                      kernels_));
  }

 private:
  const DeviceKernels& kernels_;
  const Rank place_;
};

// Streams for copies are kept for the next call: making one costs more than a call may.
class SpareStreams {
 public:
  Result<std::unique_ptr<cuda::Stream>> take(const cuda::DevicePtr& device) {
    {
      const std::lock_guard lock(mutex_);
      for (auto& spare : spare_) {
        if (spare == nullptr || spare->device() != device) continue;
        auto taken = std::move(spare);
        std::erase(spare_, nullptr);
        return taken;
      }
    }
    return cuda::Stream::create(device);
  }
  void give(std::unique_ptr<cuda::Stream> stream) {
    const std::lock_guard lock(mutex_);
    spare_.push_back(std::move(stream));
  }
  // For as long as the process lives: a driver may be gone before our last destructors.
  static SpareStreams& all() {
    static auto* const all = new SpareStreams;
    return *all;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<cuda::Stream>> spare_;
};

struct VirtualRank {
  VirtualRank(const Program& program, std::unique_ptr<Messages> side, const DeviceKernels& kernels,
              Rank place)
      : messages(std::move(side)), work(kernels, place), executor(program, messages.get(), &work) {}
  std::unique_ptr<Messages> messages;
  DeviceWork work;
  Executor executor;
  bool ended = false;
};

// In turns, each as far as it comes.
Status run_all(std::span<const std::unique_ptr<VirtualRank>> ranks) {
  for (size_t left = ranks.size(); left > 0;) {
    bool moved = false;
    for (const auto& rank : ranks) {
      if (rank->ended) continue;
      const size_t before = rank->executor.place();
      RUEDA_ASSIGN_OR_RETURN(rank->ended, rank->executor.go_on());
      moved = moved || rank->ended || rank->executor.place() != before;
      if (rank->ended) --left;
    }
    if (!moved) return internal_error("attention: virtual ranks wait for each other");
  }
  return {};
}

}  // namespace

Status run_on_device(const AttentionPlan& plan, bool backward, Link* link,
                     const DeviceKernels& kernels) {
  link->on_device(kernels.device, kernels.stream);
  const Program& program = program_of(plan, backward, true);
  LinkMessages messages(plan, program, link);
  DeviceWork work(kernels, 0);
  return Executor(program, &messages, &work).go_on().status();
}

Status run_virtual(std::span<const AttentionPlan* const> plans, bool backward,
                   cuda::DevicePtr device, const DeviceKernels& kernels,
                   std::vector<int64_t>* sent) {
  std::unique_ptr<cuda::Stream> stream;
  std::unique_ptr<Copies> copies;
  if (device == nullptr) {
    copies = std::make_unique<HostCopies>();
  } else {
    RUEDA_ASSIGN_OR_RETURN(stream, SpareStreams::all().take(device));
    copies = std::make_unique<StreamCopies>(stream.get(), kernels.stream);
  }
  VirtualWorld world(static_cast<Rank>(plans.size()), copies.get());
  std::vector<std::unique_ptr<VirtualRank>> ranks;
  for (const AttentionPlan* plan : plans) {
    const auto place = static_cast<Rank>(ranks.size());
    const Program& program = program_of(*plan, backward, true);
    ranks.push_back(
        std::make_unique<VirtualRank>(program, world.messages_of(place, program), kernels, place));
  }
  const Status status = run_all(ranks);
  const Status joined = world.join();
  if (stream != nullptr) SpareStreams::all().give(std::move(stream));
  *sent = world.bytes();
  return status.ok() ? joined : status;
}

}  // namespace rueda::attention
