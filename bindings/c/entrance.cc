#include "bindings/c/entrance.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <string>

#include "bindings/c/include/rueda/rueda.h"
#include "collectives/host/fork_guard.h"

namespace rueda::c_abi {
namespace {

// The epoch that this process was given last, whether or not all have met in it; 0: none yet.
std::atomic<uint64_t> last_epoch{0};

}  // namespace

Result<Entrance> enter(const membership::Place& place, const Config& config,
                       wire::Standing standing, const std::atomic<bool>* given_up) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  Entrance entrance;
  // What this rank starts or forks itself shall not inherit them.
  for (const int fd : {place.key_fd, place.agent_fd}) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    host::close_in_forked_children(fd);
  }
  RUEDA_ASSIGN_OR_RETURN(entrance.key, rendezvous::JobKey::read_from(place.key_fd));
  UniqueFd socket(fcntl(place.agent_fd, F_DUPFD_CLOEXEC, 3));
  if (!socket) {
    return errno_status("RUEDA_AGENT_FD is not open: was this process started by a rank?", errno);
  }
  entrance.store = std::make_shared<rendezvous::StoreClient>(std::move(socket));
  standing.member = place.member;
  standing.epoch = last_epoch.load();
  if (standing.epoch != 0 && standing.cause == wire::EnterCause::kFirst)
    standing.cause = wire::EnterCause::kLeft;
  standing.version = RUEDA_VERSION;
  standing.settings = agreed_settings(config);
  standing.pid = getpid();
  // In an elastic job the answer may wait for other members; who never comes is the launcher's
  // business, whose end is noticed.
  const auto patience = place.elastic ? std::chrono::hours(8760)
                                      : std::chrono::hours(0) + rendezvous::StoreClient::kGrace;
  RUEDA_ASSIGN_OR_RETURN(
      entrance.epoch, entrance.store->enter(standing, rendezvous::deadline_in(patience), given_up));
  const wire::NewEpoch& epoch = entrance.epoch;
  switch (epoch.answer) {
    case wire::EpochAnswer::kEnter: break;
    case wire::EpochAnswer::kProvisional: return entrance;
    case wire::EpochAnswer::kRemoved: return cancelled(epoch.text);
    case wire::EpochAnswer::kRefused: return failed_precondition(epoch.text);
  }
  if (epoch.epoch <= standing.epoch || epoch.size < 1 || epoch.rank < 0 ||
      epoch.rank >= epoch.size) {
    return internal_error("the launcher's answer makes no sense: rank " +
                          std::to_string(epoch.rank) + " of " + std::to_string(epoch.size) +
                          " in epoch " + std::to_string(epoch.epoch) + ", after epoch " +
                          std::to_string(standing.epoch));
  }
  last_epoch.store(epoch.epoch);
  return entrance;
}

}  // namespace rueda::c_abi
