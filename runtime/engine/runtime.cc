#include "runtime/engine/runtime.h"

#include <algorithm>
#include <limits>

#include "collectives/host/heap.h"
#include "collectives/host/monotonic.h"
#include "collectives/host/process_memory.h"
#include "collectives/host/threads.h"
#include "runtime/observe/flight/stack_dump.h"

namespace rueda::engine {
namespace {

// Waiters look, spin and yield only where they can drive: where all ranks share memory.
host::WaitPolicy wait_policy_of(const membership::Joined& joined,
                                const std::optional<host::WaitPolicy>& waiting) {
  if (!joined.memory.has_all()) return {};
  if (waiting) return *waiting;
  return host::WaitPolicy::measure(joined.membership.local_size, joined.membership.local_pids());
}

// How tensors of the host reach the other ranks.
const char* transport_of(const Config& config, const membership::Joined& joined) {
  if (joined.memory.has_all()) return "shm";
  const bool by_mpi = config.transport == "mpi" || config.transport == "mpi-only";
  const bool shares = joined.memory.own() != nullptr && joined.membership.local_size > 1;
  if (shares) return by_mpi ? "shm+mpi" : "shm+tcp";
  return by_mpi ? "mpi" : "tcp";
}

flight::Identity identity_of(const Config& config, const membership::Joined& joined) {
  const membership::Membership& all = joined.membership;
  const std::string& host = all.hosts[static_cast<size_t>(all.rank)];
  return {all.rank, all.size, all.epoch, host, "", transport_of(config, joined)};
}

std::shared_ptr<nccl::Machine> make_machine(const Config& config, host::Ringer ringer,
                                            life::LifeLine* life) {
  nccl::Machine::Options options;
  options.driver = config.cuda_driver;
  options.library = config.nccl_library;
  options.kernels = config.cuda_kernels;
  options.registers = config.nccl_register == "none"    ? nccl::Registers::kNone
                      : config.nccl_register == "local" ? nccl::Registers::kLocal
                                                        : nccl::Registers::kWindows;
  options.ranks_per_gpu = config.allow_shared_gpu ? std::numeric_limits<int32_t>::max()
                                                  : static_cast<int32_t>(config.ranks_per_gpu);
  options.patience = std::chrono::nanoseconds(
      static_cast<int64_t>(std::min(config.start_timeout_seconds, 1e9) * 1e9));
  options.ring = [ringer] { ringer.ring(); };
  // While a call of the runtime, which has both, prepares a mark.
  if (life != nullptr) options.chosen = [life](const std::string& uuid) { life->uses_gpu(uuid); };
  return std::make_shared<nccl::Machine>(std::move(options));
}

timeline::Origin origin_of(const membership::Joined& joined) {
  timeline::Origin origin;
  origin.rank = joined.membership.rank;
  origin.name = joined.membership.own_name();
  origin.clock_offset = joined.fabric.clock.offset;
  origin.clock_error = joined.fabric.clock.error;
  return origin;
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::create(const Config& config,
                                                 std::unique_ptr<membership::Joined> joined,
                                                 Agents agents,
                                                 std::optional<host::WaitPolicy> waiting) {
  auto flight = flight::FlightRecorder::open(agents.flight_fd, identity_of(config, *joined));
  if (flight == nullptr) {
    return Status(Code::kResourceExhausted,
                  "no memory for the flight recorder (" +
                      std::to_string(flight::kTotalBytes >> 10) +
                      " KiB): is the address space of this process limited (ulimit -v)?")
        .with_limit(Limit::kMemory);
  }
  std::unique_ptr<Runtime> runtime(
      new Runtime(config, std::move(joined), std::move(agents), std::move(flight), waiting));
  RUEDA_RETURN_IF_ERROR(runtime->coordinator_.form_sets(runtime->agents_.process_sets));
  if (life::LifeLine* const life = runtime->agents_.life.get())
    RUEDA_RETURN_IF_ERROR(life->watch(runtime->joined_->fabric.loop.get()));
  // Before the first message of a peer is looked at: it belongs into the timeline.
  const Status opened = runtime->record(config.timeline, config.timeline_mark_cycles);
  RUEDA_ASSIGN_OR_RETURN(runtime->thread_,
                         host::start_thread([driver = runtime->progress_] { driver->loop(); }));
  if (runtime->agents_.life) runtime->agents_.life->wait_until_begun();
  if (!opened.ok()) return opened.with_message(opened.message() + " (RUEDA_TIMELINE)");
  return runtime;
}

Runtime::Runtime(const Config& config, std::unique_ptr<membership::Joined> joined, Agents agents,
                 std::unique_ptr<flight::FlightRecorder> flight,
                 std::optional<host::WaitPolicy> waiting)
    : config_(config),
      joined_(std::move(joined)),
      agents_(std::move(agents)),
      machine_(make_machine(config_, joined_->fabric.doorbell->ringer(), agents_.life.get())),
      sets_(membership().rank, membership().size),
      queue_(std::make_shared<RequestQueue>(joined_->fabric.doorbell->ringer())),
      progress_(std::make_shared<ProgressEngine>(queue_, wait_policy_of(*joined_, waiting),
                                                 joined_->memory.has_all())),
      recorder_(origin_of(*joined_), config_.summary, agents_.nvtx_library),
      flight_(std::move(flight)),
      coordinator_(config_, queue_,
                   {&joined_->membership, &joined_->fabric, &joined_->memory, &agents_, machine_,
                    &sets_, &recorder_, flight_.get(), &progress_->blocked, &counters_}) {
  stats_since_ = stats::read(flight_->stats_page());
  stats_since_ns_ = host::monotonic_ns();
  stats::Page& page = flight_->stats().page();
  progress_->waiting.show(&page.waiting_since, &page.waiting_ns, flight_->mapping());
  progress_->attach(&coordinator_, &joined_->fabric, agents_.life.get());
  if (flight_->is_shared()) {
    const flight::StackDump stacks = flight::stack_dump();
    flight_->can_show_stacks(stacks.signal, stacks.fd);
  }
}

Runtime::~Runtime() { shutdown(); }

void Runtime::shutdown(bool goes_on) {
  if (!thread_.joinable()) return;
  if (goes_on && agents_.life) agents_.life->goes_on();
  // Who leaves because the epoch has ended leaves nothing behind that ends otherwise.
  progress_->with_progress_lock([](Coordinator* coordinator) {
    if (coordinator != nullptr) coordinator->hear_verdict();
  });
  coordinator_.request_shutdown();
  thread_.join();
  progress_->finish_callbacks();
  queue_->detach();
  stop_timeline();
  flight_->leave();
  if (agents_.life) agents_.life->close();
}

bool Runtime::ended_by_loss(std::chrono::nanoseconds wait) {
  const auto end = std::chrono::steady_clock::now() + wait;
  for (;;) {
    const bool finishing = agents_.life && agents_.life->job_finishes();  // said after a loss
    if (agents_.life && agents_.life->lost()) return true;
    bool suspects = false;
    progress_->with_progress_lock([&](Coordinator* coordinator) {
      if (coordinator == nullptr) return;
      // How who has left ends is not known yet.
      const bool doubts = agents_.life && agents_.life->elastic() && !finishing;
      suspects = coordinator->suspects() || (doubts && coordinator->somebody_left());
    });
    const Code code = queue_->closed().code();
    if (code == Code::kUnavailable || code == Code::kDataLoss) return true;
    if (code != Code::kOk || !suspects || std::chrono::steady_clock::now() >= end) return false;
    (void)agents_.life->wait_for_verdict(std::chrono::milliseconds(5));
  }
}

Status Runtime::record(const std::string& path, bool mark_cycles) {
  const Status started =
      recorder_.start(path, config_.timeline_all_ranks, mark_cycles, config_.timeline_seconds);
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
  if (agents_.life && mark == timeline::Mark::kBegin && name == "optimizer step")
    agents_.life->step_begins();
  stats::Stats& stats = flight_->stats();
  if (mark == timeline::Mark::kBegin && name == "optimizer step") stats.step_begins();
  if (mark == timeline::Mark::kBegin && name == "wait for data") stats.data_wait_begins();
  if (mark == timeline::Mark::kEnd && name == "wait for data") stats.data_wait_ends();
  recorder_.mark(name, mark);
}

std::optional<life::LostRank> Runtime::lost(Rank suspect) const {
  if (agents_.life) {
    if (auto told = agents_.life->lost()) return told;
  }
  // Without an agent's verdict: what was known at init of the rank that everything ended for. An
  // operation may end a moment before everything does.
  const Status end = queue_->closed();
  const Rank rank = end.facts().rank >= 0 ? end.facts().rank : suspect;
  if (rank < 0 || rank >= membership().size || rank == membership().rank) return std::nullopt;
  life::LostRank lost;
  lost.rank = rank;
  lost.pid = membership().pids[static_cast<size_t>(rank)];
  lost.host.set(membership().hosts[static_cast<size_t>(rank)]);
  lost.cause.set("its connection was closed");
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
  summary->resident_peak = host::resident_peak(host::read_small_file);
  if (const host::Heap* const heap = host::Heap::existing()) summary->heap_peak = heap->peak();
  const auto rank = static_cast<size_t>(membership().rank);
  summary->host = membership().host_of[rank];
  summary->host_name = membership().hosts[rank];
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
  if (const host::Heap* const heap = host::Heap::existing()) {
    now.heap_in_use = static_cast<int64_t>(heap->in_use());
    now.heap_peak = static_cast<int64_t>(heap->peak());
    now.heap_limit = static_cast<int64_t>(heap->bytes());
  }
  return now;
}

Runtime::Stats Runtime::stats(bool reset) {
  const std::lock_guard lock(stats_mutex_);
  const stats::Numbers now = stats::read(flight_->stats_page());
  const stats::Stats::Nanos at = host::monotonic_ns();
  const double passed = static_cast<double>(at - stats_since_ns_) * 1e-9;
  Stats out{stats::summarize(now, stats_since_, passed, membership().size, at),
            stats::late_ranks(now, stats_since_)};
  if (reset) {
    stats_since_ = stats::as_of(now, at);
    stats_since_ns_ = at;
  }
  return out;
}

const char* Runtime::transport() const { return transport_of(config_, *joined_); }

int64_t Runtime::counter(std::string_view name) {
  for (const counters::ValuesRow& row : counters::kValues) {
    if (row.name == name) return counters().*row.field;
  }
  return -1;
}

}  // namespace rueda::engine
