// DeviceWorld: ranks as threads, each with a GPU of the fake driver and the stub of NCCL.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "collectives/desc/tags.h"
#include "collectives/nccl/device_communicator.h"
#include "tests/support/built.h"
#include "tests/support/host_work.h"
#include "tests/support/thread_world.h"

namespace rueda::testing {

// Set while it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

// A stream of the user's, on the fake driver.
class UserStream {
 public:
  explicit UserStream(cuda::DevicePtr device)
      : stream_(must(cuda::Stream::create(std::move(device)))) {}
  cuda::StreamHandle handle() const { return stream_->handle(); }
  void run(std::function<void()> work) { run_in_stream(handle(), std::move(work)); }
  cuda::EventPtr mark() {
    auto event = must(cuda::Event::create(stream_->device()));
    must(event->record(handle()));
    return event;
  }

 private:
  std::unique_ptr<cuda::Stream> stream_;
};

// What a rank function gets.
struct DeviceRank {
  ThreadRank& world;
  std::shared_ptr<nccl::Machine> machine;
  nccl::DeviceCommunicator communicator;

  Rank rank() const { return world.rank(); }
  cuda::DevicePtr device() { return must(machine->device(world.rank())); }
  // Starts a collective, drives it to its end on the host, and gives its order back.
  template <typename Start>
  std::pair<Status, nccl::StreamOrder> run(Start start,
                                           const std::vector<cuda::EventPtr>& ready = {}) {
    nccl::StreamOrder order{world.rank(), {}, nullptr};
    for (const cuda::EventPtr& event : ready) order.ready.push_back({event});
    const CollectivePtr collective = start(communicator);
    const Status status = drive(world, communicator, *collective, {nullptr, &order});
    return {status, std::move(order)};
  }
  // And waits for the GPU if it ended well.
  template <typename Start>
  Status outcome(Start start) {
    auto [status, order] = run(start);
    if (status.ok()) must(order.done->wait());
    return status;
  }
  template <typename Start>
  void finish(Start start) {
    must(outcome(start));
  }
};

inline nccl::Machine::Options machine_options(const host::Ringer& ringer) {
  nccl::Machine::Options options;
  options.driver = built::kFakeCuda;
  options.library = built::kStubNccl;
  options.kernels = built::kFakeKernels;
  options.patience = std::chrono::seconds(60);
  options.ring = [ringer] { ringer.ring(); };
  return options;
}

// fn(DeviceRank&) on one thread per rank; change(rank, options) before.
template <typename Function>
auto on_device_ranks(Rank size, Function fn,
                     const std::function<void(Rank, nccl::Machine::Options*)>& change = {}) {
  const Variable driver("RUEDA_CUDA_DRIVER", built::kFakeCuda);
  auto worlds = make_worlds(Kind::kInproc, size);
  return on_ranks(size, [&](Rank rank) {
    ThreadRank& world = *worlds[static_cast<size_t>(rank)];
    auto options = machine_options(world.fabric().doorbell->ringer());
    if (change) change(rank, &options);
    auto machine = std::make_shared<nccl::Machine>(options);
    nccl::DeviceGroup group;
    group.transport = &world.transport();
    for (Rank member = 0; member < size; ++member) group.members.push_back(member);
    group.names = world.membership().names;
    group.tag = tags::of_set_device(0, 0);
    group.machine = machine;
    DeviceRank here{world, machine, nccl::DeviceCommunicator(std::move(group))};
    return fn(here);
  });
}

}  // namespace rueda::testing
