#include "bindings/c/init.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "bindings/c/entrance.h"
#include "collectives/base/log.h"
#include "collectives/host/fork_guard.h"
#include "collectives/host/heap.h"
#include "collectives/kernels/kernels.h"
#include "collectives/transport/mpi/load.h"
#include "proto/store_codec.h"
#include "runtime/membership/launchers/meet.h"
#include "runtime/membership/place.h"
#include "runtime/rendezvous/store_client.h"

using rueda::Status;
using rueda::c_abi::Made;
using rueda::c_abi::MemberPtr;

namespace {

// How often this process has met the ranks of a job that no agent started, itself included: all of
// them count alike.
uint64_t count_meeting(const std::string& job) {
  static std::mutex mutex;
  static std::map<std::string, uint64_t> meetings;
  const std::lock_guard<std::mutex> lock(mutex);
  return ++meetings[job];
}

// A job of several ranks that mpirun, torchrun, srun or the like started: there is no agent, and
// the store is there for as long as init takes.
rueda::Result<std::unique_ptr<rueda::membership::Joined>> join_without_agent(
    rueda::membership::JoinOptions* options, const std::optional<rueda::rendezvous::JobKey>& key) {
  rueda::membership::Place& place = options->place;
  RUEDA_ASSIGN_OR_RETURN(
      auto met, rueda::launchers::meet(place, options->config, count_meeting(place.job_id), key));
  options->epoch = met.epoch;
  place.job_id = met.job_id;
  const auto timeout = std::chrono::duration<double>(options->config.start_timeout_seconds);
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::nanoseconds>(timeout);
  if (options->config.tcp_address.empty())
    options->config.tcp_address = met.reachable_address(deadline);
  RUEDA_ASSIGN_OR_RETURN(auto joined, rueda::membership::join(*options, met.store.get(), &met.key));
  RUEDA_RETURN_IF_ERROR(met.part(place, deadline));
  return joined;
}

Status choose_kernels(const std::string& target) {
  if (target.empty() || rueda::kernels::use_target(target)) return {};
  std::string known;
  for (const std::string& name : rueda::kernels::available_targets())
    known += (known.empty() ? "" : ", ") + name;
  return rueda::invalid_argument("RUEDA_SIMD_TARGET='" + target + "': this CPU has " + known);
}

// The rank and address of an epoch, for who is in the job of an agent.
Status take_place(const rueda::wire::NewEpoch& epoch,
                  const std::optional<rueda::membership::GivenPlace>& given,
                  rueda::membership::JoinOptions* options) {
  if (given && (given->rank != epoch.rank || given->size != epoch.size)) {
    return rueda::failed_precondition("the program asks to be rank " + std::to_string(given->rank) +
                                      " of " + std::to_string(given->size) +
                                      ", but in the epoch that begins it is rank " +
                                      std::to_string(epoch.rank) + " of " +
                                      std::to_string(epoch.size) + ": leave rank and size out");
  }
  options->place.rank = epoch.rank;
  options->place.size = epoch.size;
  options->epoch = epoch.epoch;
  if (!epoch.tcp_address.empty()) options->config.tcp_address = epoch.tcp_address;
  return {};
}

// Who has too few descriptors is told how many it takes: three for each other rank of the host (its
// memory, its doorbell, a socket), one for each rank elsewhere.
Status with_need(const Status& status, rueda::Rank size) {
  if (status.facts().limit != rueda::Limit::kDescriptors) return status;
  const int64_t needed = 10 + 3 * (int64_t{size} - 1);
  return status.with_message(status.message() + "; rueda needs up to " + std::to_string(needed) +
                             " in a job of " + std::to_string(size) +
                             " ranks, besides the program's own");
}

// What the program says of its place; nothing where it leaves that to its launcher. Where ranks
// meet goes into the settings.
rueda::Result<std::optional<rueda::membership::GivenPlace>> given_place(
    const rueda_init_options* options, rueda::Config* config,
    std::optional<rueda::rendezvous::JobKey>* key) {
  rueda_init_options said = RUEDA_INIT_OPTIONS_INIT;
  if (options != nullptr) {
    RUEDA_RETURN_IF_ERROR(
        rueda::c_abi::read_struct(options, sizeof(size_t), "rueda_init_options", &said));
  }
  const bool more = said.job != nullptr || said.rendezvous != nullptr || said.key != nullptr ||
                    said.key_bytes > 0;
  if (said.rank < 0 && said.size < 0) {
    if (more) {
      return rueda::invalid_argument(
          "init was given a job, a meeting point or a key, but neither rank nor size");
    }
    return std::optional<rueda::membership::GivenPlace>();
  }
  if (said.rank < 0 || said.size < 0) {
    return rueda::invalid_argument(std::string("init was given ") +
                                   (said.rank < 0 ? "a size and no rank" : "a rank and no size") +
                                   ": give both, or neither");
  }
  rueda::membership::GivenPlace given;
  given.rank = said.rank;
  given.size = said.size;
  if (said.job != nullptr) given.job = said.job;
  if (said.rendezvous != nullptr) config->rendezvous = said.rendezvous;
  given.by_address = !config->rendezvous.empty();
  if (said.key != nullptr || said.key_bytes > 0) {
    RUEDA_ASSIGN_OR_RETURN(*key, rueda::rendezvous::JobKey::from_secret(
                                     {static_cast<const char*>(said.key), said.key_bytes}));
    given.has_key = true;
  }
  given.whole = said.job != nullptr && said.rendezvous != nullptr && given.has_key;
  return std::optional(std::move(given));
}

// What a member keeps of its launcher's answer.
std::shared_ptr<const rueda::c_abi::EpochRecord> record_of(const rueda::wire::NewEpoch& said,
                                                           const rueda::membership::Place& place,
                                                           const rueda::Config& config) {
  auto record = std::make_shared<rueda::c_abi::EpochRecord>();
  record->said = said;
  record->member = place.member;
  record->elastic = place.elastic;
  record->heap_bytes = config.heap_bytes;
  if (const auto fds = rueda::life::LifeFds::parse(place.life_fds); fds.ok()) {
    if (const auto life = rueda::life::LifeKeeper::of(fds.value()); life.ok())
      record->life = life.value();
  }
  // As its launcher expected when it started it.
  const auto number = [](const char* name, int otherwise) {
    const char* const text = getenv(name);
    return text != nullptr ? std::max(std::atoi(text), 0) : otherwise;
  };
  rueda::membership::Membership& expected = record->expected;
  expected.rank = said.rank;
  expected.size = said.size;
  expected.local_rank = number("RUEDA_LOCAL_RANK", 0);
  expected.local_size = std::max(number("RUEDA_LOCAL_SIZE", 1), 1);
  expected.cross_rank = number("RUEDA_CROSS_RANK", 0);
  expected.cross_size = std::max(number("RUEDA_CROSS_SIZE", 1), 1);
  return record;
}

// Process sets of an epoch, as members.
std::vector<std::vector<uint64_t>> sets_of(const rueda::wire::NewEpoch& epoch) {
  std::vector<std::vector<uint64_t>> sets;
  for (const auto& ranks : epoch.process_sets) {
    sets.emplace_back();
    for (const int32_t rank : ranks) {
      const auto at = static_cast<size_t>(rank);
      if (at < epoch.members.size()) sets.back().push_back(epoch.members[at].member);
    }
  }
  return sets;
}

// What stays the same however often a process has to try.
struct Start {
  rueda::membership::JoinOptions options;
  std::optional<rueda::membership::GivenPlace> given;
  std::optional<rueda::rendezvous::JobKey> key;
  rueda::engine::Agents agents;
};

Status prepare(const rueda_init_options* said, Start* start) {
  rueda::membership::JoinOptions& options = start->options;
  RUEDA_ASSIGN_OR_RETURN(options.config, rueda::load_config(::getenv));
  rueda::Config& config = options.config;
  RUEDA_ASSIGN_OR_RETURN(start->given, given_place(said, &config, &start->key));
  RUEDA_ASSIGN_OR_RETURN(options.place, rueda::membership::read_place(::getenv, start->given));
  rueda::log::init_log(
      config.log_level,
      "rank " + std::to_string(options.place.rank) + "/" + std::to_string(options.place.size),
      config.log_hide_time);
  RUEDA_RETURN_IF_ERROR(choose_kernels(config.simd_target));
  RUEDA_RETURN_IF_ERROR(rueda::c_abi::kernels().use_setting(config.attention_kernel));
  RUEDA_DEBUG("bootstrap", "rank {} of {}, from {}", options.place.rank, options.place.size,
              options.place.source);
  if (config.autotune && options.place.rank == 0) {
    RUEDA_WARN("bootstrap",
               "nothing is tuned: no setting gained 5 % over the defaults where it was measured "
               "(RUEDA_AUTOTUNE; docs/benchmarks.md, scripts/tune_grid)");
  }
  if (!options.place.remark.empty()) RUEDA_WARN("bootstrap", "{}", options.place.remark);
  rueda::engine::Agents& agents = start->agents;
  agents.flight_fd = options.place.flight_fd;
  const char* const unseen = getenv("HOROVOD_DISABLE_NVTX_RANGES");
  if (const char* const profiler = getenv("NVTX_INJECTION64_PATH");
      profiler != nullptr && (unseen == nullptr || std::atoi(unseen) == 0))
    agents.nvtx_library = profiler;
  if (!options.place.life_fds.empty()) {
    RUEDA_ASSIGN_OR_RETURN(const auto fds, rueda::life::LifeFds::parse(options.place.life_fds));
    RUEDA_ASSIGN_OR_RETURN(agents.life, rueda::life::LifeLine::open(fds, config.crash_handlers));
  }
  // After it, which knows whether these descriptors are the rank's or some other file of a child of
  // it.
  if (options.place.flight_fd >= 0) {  // not for what this rank starts or forks
    fcntl(options.place.flight_fd, F_SETFD, FD_CLOEXEC);
    rueda::host::close_in_forked_children(options.place.flight_fd);
  }
  if (options.place.size > 1 && (config.transport == "mpi" || config.transport == "mpi-only")) {
    if (!options.place.agentless) {
      return rueda::failed_precondition(
          "RUEDA_TRANSPORT=" + config.transport +
          " needs ranks that mpirun has started: `ruedarun --mpi ...` or `mpirun -np " +
          std::to_string(options.place.size) + " ...`");
    }
    RUEDA_ASSIGN_OR_RETURN(
        options.mpi, rueda::mpi::engine_of_process(static_cast<size_t>(config.mpi_chunk_bytes)));
  }
  if (agents.life != nullptr) {
    // A connection that ended says who closed it; the agents' verdict says who was lost first.
    options.agents_verdict = [life = agents.life.get()] {
      const auto lost = life->wait_for_verdict(std::chrono::milliseconds(500));
      return lost ? lost->verdict(life->epoch()) : Status();
    };
  }
  return {};
}

// The rank is in its epoch; what it keeps of its launcher there.
rueda::Result<MemberPtr> build(Start* start, std::unique_ptr<rueda::membership::Joined> joined,
                               const rueda::c_abi::Entrance& launcher) {
  const rueda::Config& config = start->options.config;
  auto member = std::make_shared<rueda::c_abi::Member>();
  member->heap_bytes = config.heap_bytes;
  member->check_programs = config.check_programs;
  member->preemption_signals = config.preemption_signal;
  member->store = launcher.store;
  rueda::engine::Agents& agents = start->agents;
  agents.process_sets = launcher.epoch.process_sets;
  if (launcher.store != nullptr) {
    agents.init_verdict = [store = launcher.store, epoch = start->options.epoch] {
      return rueda::membership::said_at_init(store.get(), epoch);
    };
    member->tell_summary = [store = launcher.store](const rueda::wire::RankSummary& summary) {
      if (const Status told = store->report("summary", rueda::wire::encode(summary)); !told.ok())
        RUEDA_DEBUG("bindings", "{}", told.message());
    };
    agents.blame = [store = launcher.store](const std::string& text) {
      // Best effort: without it the launcher only knows less.
      if (const Status told = store->report("failure", text); !told.ok())
        RUEDA_DEBUG("bindings", "{}", told.message());
    };
  }
  RUEDA_ASSIGN_OR_RETURN(member->runtime, rueda::engine::Runtime::create(config, std::move(joined),
                                                                         std::move(agents)));
  return member;
}

rueda::Result<Made> meet_others(Start* start, rueda::wire::Standing* standing,
                                const std::atomic<bool>* given_up) {
  rueda::membership::JoinOptions& options = start->options;
  rueda::life::LifeLine* const life = start->agents.life.get();
  for (;;) {
    Made made;
    rueda::c_abi::Entrance launcher;
    if (options.place.agent_fd >= 0) {
      // From now on the others may count on it.
      if (life != nullptr && standing->cause == rueda::wire::EnterCause::kReady) life->is_ready();
      auto entered = rueda::c_abi::enter(options.place, options.config, *standing, given_up);
      // Who asks again, or will, is as it was.
      const bool later =
          entered.ok() && entered.value().epoch.answer == rueda::wire::EpochAnswer::kProvisional;
      if (life != nullptr && (later || entered.status().code() == rueda::Code::kAborted))
        life->goes_on();
      RUEDA_ASSIGN_OR_RETURN(launcher, std::move(entered));
      made.epoch = record_of(launcher.epoch, options.place, options.config);
      if (later) return made;
      RUEDA_RETURN_IF_ERROR(take_place(launcher.epoch, start->given, &options));
      if (life != nullptr) life->enter(options.epoch, options.place.elastic);
      rueda::host::Heap* const heap = rueda::host::Heap::existing();
      if (launcher.epoch.fresh_memory && heap != nullptr)
        RUEDA_RETURN_IF_ERROR(heap->move_to_fresh_memory());
    }
    auto joining = options.place.agentless
                       ? join_without_agent(&options, start->key)
                       : rueda::membership::join(options, launcher.store.get(),
                                                 launcher.key ? &*launcher.key : nullptr);
    const rueda::Code code = joining.status().code();
    const bool others = code == rueda::Code::kUnavailable || code == rueda::Code::kDeadlineExceeded;
    if (others && options.place.elastic && launcher.store != nullptr) {
      RUEDA_INFO("bootstrap", "epoch {} has ended before all had met: {}", options.epoch,
                 joining.status().message());
      standing->cause = rueda::wire::EnterCause::kEpochEnded;
      standing->process_sets = sets_of(launcher.epoch);
      continue;
    }
    if (others && launcher.store != nullptr) {
      // Another rank's fault: the launcher shall know whom this one blames. Best effort.
      (void)launcher.store->report("failure", joining.status().message());
    }
    RUEDA_ASSIGN_OR_RETURN(auto joined, std::move(joining));
    RUEDA_ASSIGN_OR_RETURN(made.member, build(start, std::move(joined), launcher));
    return made;
  }
}

}  // namespace

namespace rueda::c_abi {

Result<Made> make_member(const rueda_init_options* said, wire::Standing* standing,
                         const std::atomic<bool>* given_up) {
  Start start;
  start.options.place.size = 1;
  Status prepared = prepare(said, &start);
  if (!prepared.ok()) return with_need(prepared, start.options.place.size);
  auto made = meet_others(&start, standing, given_up);
  if (!made.ok()) return with_need(made.status(), start.options.place.size);
  return made;
}

std::unique_ptr<rueda_context> make_context(Made made) {
  auto context = std::make_unique<rueda_context>();
  context->process = host::fork_generation();
  context->member = std::move(made.member);
  context->epoch = std::move(made.epoch);
  return context;
}

}  // namespace rueda::c_abi

extern "C" {

int32_t rueda_init(const rueda_init_options* options, rueda_context** context, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (context == nullptr) return rueda::invalid_argument("nowhere to put the context (NULL)");
    *context = nullptr;
    rueda::wire::Standing first;
    RUEDA_ASSIGN_OR_RETURN(auto made, rueda::c_abi::make_member(options, &first));
    *context = rueda::c_abi::make_context(std::move(made)).release();
    return {};
  });
}

}  // extern "C"
