#include "runtime/engine/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "runtime/observe/flight/stack_dump.h"

namespace rueda::engine {
namespace {

// Waiters look, spin and yield only where they can drive: where all ranks share memory.
host::WaitPolicy wait_policy_of(const membership::World& world) {
  return world.shares_memory() ? host::WaitPolicy::measure(world.local_size, world.local_pids)
                               : host::WaitPolicy{};
}

flight::Identity identity_of(const membership::World& world) {
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  return {world.rank, world.size, world.epoch, host, ""};
}

// Nothing is opened before the first GPU tensor.
std::unique_ptr<membership::World> with_machine(std::unique_ptr<membership::World> world,
                                                const Config& config) {
  nccl::Machine::Options options;
  options.driver = config.cuda_driver;
  options.library = config.nccl_library;
  options.kernels = config.cuda_kernels;
  options.allow_shared_gpu = config.allow_shared_gpu;
  options.patience = std::chrono::nanoseconds(
      static_cast<int64_t>(std::min(config.start_timeout_seconds, 1e9) * 1e9));
  options.ring = [ringer = world->doorbell->ringer()] { ringer.ring(); };
  world->machine = std::make_shared<nccl::Machine>(std::move(options));
  return world;
}

timeline::Origin origin_of(const membership::World& world) {
  timeline::Origin origin;
  origin.rank = world.rank;
  origin.name = world.names[static_cast<size_t>(world.rank)];
  origin.clock_offset = world.clock.offset;
  origin.clock_error = world.clock.error;
  return origin;
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::create(const Config& config,
                                                 std::unique_ptr<membership::World> world,
                                                 std::function<void(const std::string&)> blame) {
  auto flight = flight::FlightRecorder::open(world->flight_fd, identity_of(*world));
  if (flight == nullptr) {
    return Status(Code::kResourceExhausted,
                  "no memory for the flight recorder (" +
                      std::to_string(flight::kTotalBytes >> 10) +
                      " KiB): is the address space of this process limited (ulimit -v)?");
  }
  std::unique_ptr<Runtime> runtime(
      new Runtime(config, std::move(world), std::move(flight), std::move(blame)));
  // Before the first message of a peer is looked at: it belongs into the timeline.
  const Status opened = runtime->record(config.timeline, config.timeline_mark_cycles);
  runtime->thread_ = std::thread([driver = runtime->progress_] { driver->loop(); });
  if (runtime->world_->life) runtime->world_->life->wait_until_owned();
  if (!opened.ok()) return Status(opened.code(), opened.message() + " (RUEDA_TIMELINE)");
  return runtime;
}

Runtime::Runtime(const Config& config, std::unique_ptr<membership::World> world,
                 std::unique_ptr<flight::FlightRecorder> flight,
                 std::function<void(const std::string&)> blame)
    : config_(config),
      world_(with_machine(std::move(world), config_)),
      sets_(world_->rank, world_->size),
      queue_(std::make_shared<RequestQueue>(world_->doorbell->ringer())),
      progress_(std::make_shared<ProgressEngine>(queue_, wait_policy_of(*world_),
                                                 world_->shares_memory())),
      recorder_(origin_of(*world_), config_.summary),
      flight_(std::move(flight)),
      coordinator_(config_, world_.get(), queue_, &sets_, &recorder_, flight_.get(),
                   &progress_->blocked, &counters_, std::move(blame)) {
  progress_->attach(&coordinator_, world_.get());
  if (flight_->is_shared()) {
    const flight::StackDump stacks = flight::stack_dump();
    flight_->can_show_stacks(stacks.signal, stacks.fd);
  }
}

Runtime::~Runtime() { shutdown(); }

void Runtime::shutdown() {
  if (!thread_.joinable()) return;
  coordinator_.request_shutdown();
  thread_.join();
  queue_->detach();
  stop_timeline();
  flight_->leave();
}

Status Runtime::record(const std::string& path, bool mark_cycles) {
  const Status started = recorder_.start(path, config_.timeline_all_ranks, mark_cycles);
  progress_->set_recording(recorder_.on());
  return started;
}

Status Runtime::start_timeline(const std::string& path, bool mark_cycles) {
  if (path.empty()) return invalid_argument("the timeline's file has no name");
  if (path == "DYNAMIC")
    return invalid_argument("DYNAMIC is for RUEDA_TIMELINE; name the file to start a timeline");
  RUEDA_RETURN_IF_ERROR(queue_->closed());
  return record(path, mark_cycles);
}

void Runtime::mark(const std::string& name, timeline::Mark mark) {
  if (world_->life && mark == timeline::Mark::kBegin && name == "optimizer step")
    world_->life->step_begins();
  recorder_.mark(name, mark);
}

std::optional<life::LostRank> Runtime::lost() const {
  if (world_->life) {
    if (auto told = world_->life->lost()) return told;
  }
  const Rank peer = coordinator_.lost_peer();
  if (peer < 0) return std::nullopt;
  // Without an agent's verdict: what was known of it at init.
  life::LostRank lost;
  lost.rank = peer;
  lost.cause.set("its connection was closed");
  char host[64] = "";
  if (std::sscanf(world_->names[static_cast<size_t>(peer)].c_str(), "rank %*d (pid %d on %63[^)])",
                  &lost.pid, host) == 2) {
    lost.host.set(host);
  }
  return lost;
}

void Runtime::stop_timeline() {
  recorder_.stop();
  progress_->set_recording(recorder_.on());
}

std::optional<wire::RankSummary> Runtime::summary() {
  auto summary = recorder_.totals();
  if (!summary) return std::nullopt;
  progress_->with_progress_lock([&](Coordinator*) { summary->waited = coordinator_.waited(); });
  return summary;
}

counters::Values Runtime::counters() {
  // Inside a callback this thread may have the lock: what was counted last has to do.
  if (!Completion::in_callback()) {
    progress_->with_progress_lock([](Coordinator* coordinator) {
      if (coordinator != nullptr) coordinator->count();
    });
  }
  counters::Values now = counters_.read();
  now.wakeups = progress_->wakeups();
  now.recording = recorder_.on() ? 1 : 0;
  return now;
}

int64_t Runtime::counter(std::string_view name) {
  for (const counters::ValuesRow& row : counters::kValues) {
    if (row.name == name) return counters().*row.field;
  }
  return -1;
}

}  // namespace rueda::engine
