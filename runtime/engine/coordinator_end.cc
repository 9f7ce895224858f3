// How things end: a request, a peer, the root, this rank's own leaving, and the break-down after a
// loss.
#include <algorithm>
#include <utility>

#include "collectives/base/log.h"
#include "runtime/engine/coordinator.h"

namespace rueda::engine {
namespace {

using Clock = std::chrono::steady_clock;

// How long the agents' verdict may take that a lost peer's own connections have announced.
constexpr std::chrono::seconds kVerdictPatience{1};
constexpr std::chrono::seconds kGpusPatience{2};

}  // namespace

void Coordinator::handle_peer_end(Rank peer, const Status& status) {
  ++ended_peers_;
  if (goodbye_said_) return;
  if (!status.ok()) return break_down(status);
  left_.push_back(peer);
  if (left_.size() == 2 && state_ == State::kRunning) {
    const Rank first = left_.front();
    finisher_.set_first_to_leave(first, membership_.name(first));
  }
  for (const auto& group : groups_) {
    group->on_peer_left(peer, Clock::now());
    hear(group.get());
  }
  ordered_.on_peer_left(peer);
  device_messages_.on_peer_left(peer, Clock::now());
}

// A peer that is lost to this rank alone, or to another that says so: the agents know more, and
// their verdict is on its way if it is a death. If none comes, the connection was lost and not the
// rank.
void Coordinator::break_down(const Status& verdict) {
  if (verdict.code() != Code::kUnavailable || !agents_.life) return end_everything(verdict);
  if (state_ == State::kBroken || state_ == State::kEnded || suspects()) return;
  suspicion_ = verdict;
  suspicion_ends_ = Clock::now() + kVerdictPatience;
  quiet_ = false;
  hear_verdict();
}

void Coordinator::hear_verdict() {
  if (!agents_.life || goodbye_said_) return;
  const std::optional<life::LostRank> lost = agents_.life->lost();
  if (!lost) return;
  const Status verdict = lost->verdict(membership_.epoch);
  const Rank rank = verdict.facts().rank;
  // Who had said goodbye before is missed by nobody where the job ends with the loss. Where an
  // epoch ends it ends for all: a rank may leave in order and fail then.
  const bool had_left = std::find(left_.begin(), left_.end(), rank) != left_.end();
  if (lost->epoch == 0 && !suspects() && had_left) return;
  end_everything(verdict, true);
}

// While a suspicion lasts nothing is run; what is started is taken, as nobody sleeps who has left
// something in the queue. True if it lasts.
bool Coordinator::look_at_suspicion(Time now) {
  if (state_ == State::kBroken || state_ == State::kEnded) return false;
  if (now >= suspicion_ends_) {
    // Who closed its connections may still have been in init, and have said why.
    const Status earlier = agents_.init_verdict ? agents_.init_verdict() : Status();
    end_everything(earlier.ok() ? *suspicion_ : earlier);
    return false;
  }
  if (state_ == State::kRunning) take_all(now);
  fabric_.transport->progress();
  quiet_ = true;
  return state_ == State::kRunning || state_ == State::kLeaving;
}

// The first verdict wins; everything that waits gets it, every peer is told, no memory is touched
// any more.
void Coordinator::end_everything(const Status& verdict, bool peers_know) {
  if (state_ == State::kBroken || state_ == State::kEnded) return;
  const bool others_fault = verdict.code() == Code::kUnavailable;
  // First, unless the launcher knows already: it may take a moment to listen.
  if (others_fault && !peers_know) finisher_.blame(verdict.message());
  state_ = State::kBroken;
  finisher_.forget_first_to_leave();
  verdict_ = verdict;
  const Facts& about = verdict.facts();
  if (about.rank >= 0 && about.rank < membership_.size && about.host.empty())
    verdict_ = verdict.with_host(membership_.hosts[static_cast<size_t>(about.rank)]);
  RUEDA_INFO("coordinator", "giving up: {}", verdict.message());
  fabric_.transport->abort(verdict_, peers_know);
  queue_->close(verdict_);
  for (const auto& group : groups_) {
    for (const RequestPtr& waiting : queue_->take_waiting(group->set().get()))
      finisher_.finish(waiting.get(), verdict_);
    group->break_down(verdict_);
    hear(group.get());
  }
  global().fail_messages(verdict_);
  device_messages_.fail(verdict_);
  ordered_.break_down(verdict_);
  end_change(verdict_);
  if (others_fault && peers_know) finisher_.blame(verdict.message());
}

// Leaving in order, as far as it has come. True if it moved on.
bool Coordinator::leave() {
  if (state_ == State::kBroken) {
    end();
    return true;
  }
  bool moved = false;
  if (state_ == State::kRunning) {
    state_ = State::kLeaving;
    finisher_.forget_first_to_leave();
    leave_deadline_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(config_.shutdown_timeout_seconds));
    queue_->close(cancelled("rueda has been shut down on this rank"));
    take_all(Clock::now());
    for (const auto& group : groups_) {
      for (const RequestPtr& waiting : queue_->take_waiting(group->set().get()))
        finisher_.finish(waiting.get(), cancelled("rueda has been shut down on this rank"));
      group->leave(Clock::now());
      hear(group.get());
    }
    ordered_.leave(
        cancelled("rueda has been shut down on this rank before every member had called it"));
    moved = true;
  }
  const bool late = Clock::now() >= leave_deadline_;
  const Status unfinished =
      cancelled("rueda has been shut down on this rank before every rank had submitted it");
  for (const auto& group : groups_) {
    if (!group->root_left() && !late) return moved;
  }
  // Everything that all ranks had agreed on before has begun; the rest ends here.
  for (const auto& group : groups_) {
    moved |= group->drop(unfinished);
    hear(group.get());
  }
  end_change(unfinished);
  const bool idle = ordered_.have_left() && device_messages_.idle() &&
                    std::all_of(groups_.begin(), groups_.end(),
                                [](const auto& group) { return group->is_idle(); });
  if (!idle && !late) return moved;
  if (!goodbye_said_) {
    goodbye_said_ = true;
    if (!idle) {
      break_down(deadline_exceeded(
          membership_.own_name() +
          " shut down while a collective was under way (RUEDA_SHUTDOWN_TIMEOUT)"));
      end();
      return true;
    }
    fabric_.transport->say_goodbye();
    fabric_.transport->progress();
    if (uses_gpu()) leave_deadline_ = std::min(leave_deadline_, Clock::now() + kGpusPatience);
    moved = true;
  }
  const bool is_heard = fabric_.transport->flushed() && fabric_.transport->has_arrived();
  if ((is_heard && gpus_are_done()) || late) {
    end();
    moved = true;
  }
  return moved;
}

bool Coordinator::uses_gpu() const {
  return ordered_.uses_gpu() || device_messages_.uses_gpu() ||
         std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->uses_gpu(); });
}

// This rank's GPU is. But NCCL may still have to send what it has given to a network, and its end
// would be felt by a peer whose GPU waits for that; who is done says goodbye.
bool Coordinator::gpus_are_done() const {
  return ended_peers_ >= membership_.size - 1 || !uses_gpu();
}

void Coordinator::end() {
  const Status shut_down = cancelled("rueda has been shut down on this rank");
  fabric_.transport->close(shut_down);
  global().fail_messages(shut_down);
  device_messages_.fail(shut_down);
  ordered_.fail_messages(shut_down);
  count();
  state_ = State::kEnded;
}

void Coordinator::count() {
  const auto sent = [this](const char* kind) {
    return static_cast<int64_t>(fabric_.transport->bytes_sent(kind));
  };
  counters::Values now = past_;
  for (const auto& group : groups_) group->add_to(&now);
  ordered_.add_to(&now);
  device_messages_.add_to(&now);
  now.control_messages = static_cast<int64_t>(fabric_.transport->control_messages_sent());
  now.shm_bytes = now.bytes_reduced + sent("shm");
  now.tcp_bytes = sent("tcp");
  now.mpi_bytes = sent("mpi");
  counters_->publish(now);
}

}  // namespace rueda::engine
