// The composition root: builds everything that one rank consists of, and takes it apart.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "attention/kernel_registry.h"
#include "bindings/c/context.h"
#include "bindings/c/entrance.h"
#include "collectives/base/log.h"
#include "collectives/host/fork_guard.h"
#include "collectives/kernels/kernels.h"
#include "collectives/transport/mpi/load.h"
#include "proto/store_codec.h"
#include "runtime/membership/launchers/meet.h"
#include "runtime/membership/place.h"
#include "runtime/rendezvous/store_client.h"

using rueda::Status;

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
  return std::optional(std::move(given));
}

// size: of the job, as soon as it is known.
rueda::Result<rueda::c_abi::MemberPtr> init(const rueda_init_options* said, rueda::Rank* size) {
  RUEDA_ASSIGN_OR_RETURN(rueda::Config config, rueda::load_config(::getenv));
  std::optional<rueda::rendezvous::JobKey> key;
  RUEDA_ASSIGN_OR_RETURN(const auto given, given_place(said, &config, &key));
  rueda::membership::JoinOptions options;
  RUEDA_ASSIGN_OR_RETURN(options.place, rueda::membership::read_place(::getenv, given));
  *size = options.place.size;
  rueda::log::init_log(
      config.log_level,
      "rank " + std::to_string(options.place.rank) + "/" + std::to_string(options.place.size),
      config.log_hide_time);
  RUEDA_RETURN_IF_ERROR(choose_kernels(config.simd_target));
  RUEDA_RETURN_IF_ERROR(rueda::attention::use_kernel(config.attention_kernel));
  RUEDA_DEBUG("bootstrap", "rank {} of {}, from {}", options.place.rank, options.place.size,
              options.place.source);
  if (!options.place.remark.empty()) RUEDA_WARN("bootstrap", "{}", options.place.remark);
  rueda::engine::Agents agents;
  agents.flight_fd = options.place.flight_fd;
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
  options.config = config;
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
  rueda::c_abi::Entrance launcher;
  if (options.place.agent_fd >= 0) {
    RUEDA_ASSIGN_OR_RETURN(launcher, rueda::c_abi::enter(options.place, config, {}, false));
    RUEDA_RETURN_IF_ERROR(take_place(launcher.epoch, given, &options));
    *size = options.place.size;
    if (agents.life != nullptr) agents.life->enter(options.epoch, options.place.elastic);
  }
  if (agents.life != nullptr) {
    // A connection that ended says who closed it; the agents' verdict says who was lost first.
    options.agents_verdict = [&agents] {
      const auto lost = agents.life->wait_for_verdict(std::chrono::milliseconds(500));
      return lost ? lost->verdict(agents.life->epoch()) : Status();
    };
  }
  auto joining = options.place.agentless
                     ? join_without_agent(&options, key)
                     : rueda::membership::join(options, launcher.store.get(),
                                               launcher.key ? &*launcher.key : nullptr);
  const rueda::Code code = joining.status().code();
  if ((code == rueda::Code::kUnavailable || code == rueda::Code::kDeadlineExceeded) &&
      launcher.store != nullptr) {
    // Another rank's fault: the launcher shall know whom this one blames. Best effort.
    (void)launcher.store->report("failure", joining.status().message());
  }
  RUEDA_ASSIGN_OR_RETURN(auto joined, std::move(joining));
  auto member = std::make_shared<rueda::c_abi::Member>();
  member->heap_bytes = config.heap_bytes;
  member->preemption_signals = config.preemption_signal;
  member->store = launcher.store;
  if (launcher.store != nullptr) {
    agents.init_verdict = [store = launcher.store, epoch = options.epoch] {
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

}  // namespace

extern "C" {

int32_t rueda_init(const rueda_init_options* options, rueda_context** context, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (context == nullptr) return rueda::invalid_argument("nowhere to put the context (NULL)");
    *context = nullptr;
    auto made = std::make_unique<rueda_context>();
    made->process = rueda::host::fork_generation();
    rueda::Rank size = 1;
    auto member = init(options, &size);
    if (!member.ok()) return with_need(member.status(), size);
    made->member = std::move(member).value();
    *context = made.release();
    return {};
  });
}

}  // extern "C"
