#include "runtime/engine/coordinator.h"

#include <algorithm>
#include <utility>

#include "collectives/base/log.h"
#include "collectives/shm/cma.h"
#include "proto/negotiation_codec.h"
#include "runtime/engine/disk_use.h"
#include "runtime/engine/slow_rank.h"

namespace rueda::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kGlancesPerRound = 16;
constexpr std::chrono::milliseconds kLookAgain{1};

// A few milliseconds behind, and a fraction of the cost.
Clock::time_point coarse_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) +
                           std::chrono::nanoseconds(now.tv_nsec));
}

}  // namespace

Coordinator::Coordinator(const Config& config, std::shared_ptr<RequestQueue> queue,
                         const Parts& parts)
    : config_(config),
      queue_(std::move(queue)),
      membership_(*parts.membership),
      fabric_(*parts.fabric),
      memory_(*parts.memory),
      agents_(*parts.agents),
      machine_(parts.machine),
      sets_(parts.sets),
      recorder_(parts.recorder),
      flight_(parts.flight),
      late_(around(parts.blocked)),
      counters_(parts.counters),
      finisher_(queue_.get(), flight_, agents_.blame),
      round_mark_(recorder_),
      device_messages_(fabric_.transport.get(), &membership_, machine_, &finisher_),
      ordered_({&config_, &membership_, &fabric_, &memory_, agents_.life.get(), &finisher_,
                recorder_, flight_, &late_, machine_, &device_messages_}) {
  open_group(sets_->global(), Clock::now());
  try_cma();
  if (memory_.own() != nullptr) flight_->stats().show_data(&memory_.own()->channel(0)->pace.data);
  transport::TransportEvents events;
  events.on_control = [this](Rank peer, std::string_view message) { on_control(peer, message); };
  events.on_peer_end = [this](Rank peer, const Status& status) { handle_peer_end(peer, status); };
  events.on_abort = [this](Rank, const Status& verdict) { break_down(verdict); };
  fabric_.transport->set_events(std::move(events));
  const auto watched = fabric_.transport->watch_peers(
      std::chrono::nanoseconds(static_cast<int64_t>(config.dead_seconds * 1e9)));
  if (!watched.ok()) RUEDA_WARN("transport", "{}", watched.to_string());
}

void Coordinator::request_shutdown() {
  shutdown_requested_.store(true, std::memory_order_release);
  queue_->wake();
}

void Coordinator::request_failure(const Status& verdict) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (requested_failure_.ok()) requested_failure_ = verdict;
  }
  failure_requested_.store(true, std::memory_order_release);
  queue_->wake();
}

void Coordinator::hear_requested_failure() {
  failure_requested_.store(false, std::memory_order_relaxed);
  Status verdict;
  {
    const std::lock_guard lock(failure_mutex_);
    verdict = requested_failure_;
  }
  if (state_ == State::kRunning) break_down(verdict);
}

bool Coordinator::step() {
  if (state_ == State::kEnded) return false;
  const Time now = Clock::now();
  root_deadline_known_ = false;
  round_mark_.round_begins();
  if (agents_.life) {
    agents_.life->round();
    if (agents_.life->take_news()) hear_verdict();
    if (suspects() && look_at_suspicion(now)) return false;
  }
  if (failure_requested_.load(std::memory_order_acquire)) hear_requested_failure();
  bool moved = take_all(now);
  if (state_ != State::kBroken) {
    moved |= fabric_.transport->progress();
    // A loss was seen: nothing ends before it is known whose it is.
    if (suspects() && state_ != State::kBroken) return true;
    for (const auto& group : groups_) {
      moved |= group->step(now);
      hear(group.get());
    }
    if (change_) moved |= advance_change(now);
    moved |= ordered_.step(now);
    moved |= device_messages_.step(now);
    hear_messages();
  }
  if (shutdown_requested_.load(std::memory_order_acquire)) moved |= leave();
  quiet_ = !moved;
  return moved;
}

bool Coordinator::advance() {
  if (state_ == State::kRunning && !suspects()) {
    bool busy = false;
    for (const auto& group : groups_) {
      if (!group->plan_is_busy()) continue;
      if (group->advance_plan()) return true;
      busy = true;
    }
    if (ordered_.busy()) {
      if (ordered_.advance()) return true;
      busy = true;
    }
    if (busy && ++glances_ % kGlancesPerRound != 0) return false;
  }
  return step();
}

bool Coordinator::waits_for_channels() const {
  return ordered_.waits_for_channels() ||
         std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->waits_for_channels(); });
}

// The earliest of what the groups answer.
template <typename Deadline>
std::optional<Coordinator::Time> Coordinator::earliest(Deadline of) const {
  std::optional<Time> deadline;
  for (const auto& group : groups_) {
    const auto next = of(*group);
    if (next && (!deadline || *next < *deadline)) deadline = next;
  }
  return deadline;
}

bool Coordinator::needs_thread(Time wakes_at) {
  const bool at_rest =
      !ordered_.busy() && std::all_of(groups_.begin(), groups_.end(),
                                      [](const auto& group) { return group->is_at_rest(); });
  if (ended() || !quiet_ || (!at_rest && waits_for_channels())) return true;
  if (shutdown_requested_.load(std::memory_order_relaxed) ||
      failure_requested_.load(std::memory_order_relaxed))
    return true;
  if (!std::exchange(root_deadline_known_, true))
    root_deadline_ = earliest([](const GroupEngine& group) { return group.root_deadline(); });
  if (root_deadline_ && *root_deadline_ < wakes_at) return true;
  if (suspects() && suspicion_ends_ < wakes_at) return true;
  for (const auto& deadline : {ordered_.deadline(), device_messages_.deadline()})
    if (deadline && *deadline < wakes_at) return true;
  if (at_rest) return false;
  const std::optional<Time> deadline =
      earliest([](const GroupEngine& group) { return group.plan_deadline(); });
  return deadline && *deadline < wakes_at;
}

Coordinator::Time Coordinator::wakes_at() const {
  std::optional<Time> deadline =
      earliest([](const GroupEngine& group) { return group.next_deadline(); });
  for (const auto& next : {ordered_.deadline(), device_messages_.deadline()})
    if (next && (!deadline || *next < *deadline)) deadline = next;
  if (state_ == State::kLeaving && (!deadline || leave_deadline_ < *deadline))
    deadline = leave_deadline_;
  // That everything has arrived is no news that wakes anybody.
  if (state_ == State::kLeaving && goodbye_said_) deadline = Clock::now() + kLookAgain;
  if (suspects() && state_ != State::kBroken) deadline = suspicion_ends_;
  return deadline.value_or(Time::max());
}

// ---- requests ----

bool Coordinator::take_all(Time now) {
  // Seen before the queue is emptied: what a blocked thread started before is then in it.
  if (queue_->take_wake()) {
    for (const auto& group : groups_) group->look_for_blocked();
  }
  bool moved = false;
  do {
    blocked_already_ = false;
    moved |= take_requests();
  } while (blocked_already_);
  for (const auto& group : groups_) {
    moved |= group->tell(now);
    hear(group.get());
  }
  return moved;
}

void Coordinator::hear(GroupEngine* group) {
  if (!group->has_news()) return;
  GroupEngine::News news = group->take_news();
  if (news.blocked_already) {
    blocked_already_ = true;
    quiet_ = false;
  }
  if (news.change) take_agreed(*news.change);
  if (news.change_failed) end_change(*news.change_failed);
  if (news.fatal) break_down(*news.fatal);
}

bool Coordinator::take_requests() {
  Request* next = queue_->take();
  if (next == nullptr) return false;
  while (next != nullptr) {
    Request* const request = next;
    next = request->next();
    take(request);
  }
  return true;
}

void Coordinator::hear_messages() {
  const Status failure =
      device_messages_.failure().ok() ? ordered_.failure() : device_messages_.failure();
  if (!failure.ok()) break_down(failure);
}

void Coordinator::take(Request* request) {
  const CollectiveKind kind = request->announcement.kind;
  const Time now = recorder_->on() ? Clock::now() : coarse_now();
  if (request->set != nullptr && request->set->ordered) return take_ordered(request, now);
  if (agents_.life)
    agents_.life->submitted(request->announcement.name, now.time_since_epoch().count());
  if (state_ == State::kBroken) return finisher_.finish(request, verdict_);
  if (state_ == State::kEnded) return finisher_.finish(request, queue_->closed());
  if (is_point_to_point(kind)) {
    quiet_ = false;
    return request->device >= 0 ? device_messages_.start(request) : global().start_message(request);
  }
  if (kind == CollectiveKind::kProcessSet) return begin_change(request);
  GroupEngine* const group = request->set->group;
  if (group == nullptr) {
    return finisher_.finish(request,
                            invalid_argument(request->set->describe() + " has been removed"));
  }
  if (group->take(request, now)) quiet_ = false;
  hear(group);
}

void Coordinator::take_ordered(Request* request, Time now) {
  if (state_ == State::kBroken) return finisher_.finish(request, verdict_);
  if (state_ != State::kRunning) return finisher_.finish(request, queue_->closed());
  ordered_.take(request, now);
  quiet_ = false;
}

void Coordinator::on_control(Rank peer, std::string_view message) {
  if (wire::is_group_word(message)) {
    const Status heard = ordered_.on_control(peer, message);
    if (!heard.ok()) break_down(heard);
    return;
  }
  constexpr size_t kMostEarlyBytes = size_t{64} << 20;
  const uint32_t serial = wire::process_set_of(message);
  for (const auto& group : groups_) {
    if (group->set()->serial != serial) continue;
    group->on_message(peer, message, Clock::now());
    return hear(group.get());
  }
  // A member that has seen the set being added before this rank; or one that removes it.
  if (serial <= newest_serial_) return;
  early_bytes_ += message.size();
  if (early_bytes_ > kMostEarlyBytes) {
    return break_down(Status(Code::kDataLoss, "damaged message from " + membership_.name(peer) +
                                                  ": too much for unknown process sets")
                          .with_rank(peer));
  }
  early_.push_back({serial, peer, std::string(message)});
}

// Can this rank read the private memory of all ranks of its host?
void Coordinator::try_cma() {
  host::Arena* const own = memory_.own();
  if (own == nullptr) return;
  bool able = true;
  for (const auto& arena : memory_.arenas)
    able = able && (arena == nullptr || shm::probe_cma(*arena));
  own->channel(0)->has_cma.store(
      able ? host::ChannelControl::kHasCma : host::ChannelControl::kNoCma,
      std::memory_order_release);
}

LateRanks::Around Coordinator::around(const BlockedClock* blocked) {
  LateRanks::Around around;
  around.rank = membership_.rank;
  for (const auto& arena : memory_.arenas)
    around.paces.push_back(arena == nullptr ? nullptr : &arena->channel(0)->pace);
  around.disk = [this](Rank rank) { return disk_use(membership_.pids[static_cast<size_t>(rank)]); };
  around.blocked = blocked;
  around.now = [] { return timeline::nanos(Clock::now()); };
  around.name = [this](const Stragglers::Finding& finding) { name_straggler(finding); };
  around.worst = [this](const wire::Waited& waited) { flight_->waited(waited); };
  around.late = [this](Rank rank, int64_t cost) { flight_->stats().late(rank, cost); };
  return around;
}

void Coordinator::name_straggler(const Stragglers::Finding& finding) {
  if (!config_.name_slow_ranks) return;
  RUEDA_WARN("coordinator", "{}",
             slow_rank_text(membership_.name(finding.rank), finding, membership_.size));
}

}  // namespace rueda::engine
