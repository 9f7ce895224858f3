#include "runtime/coordinator.h"

#include <algorithm>
#include <utility>

#include "collectives/base/log.h"
#include "collectives/communicator/pull.h"

namespace rueda::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPlanLane = 1;
constexpr uint32_t kGlancesPerRound = 16;

// A few milliseconds behind, and a fraction of the cost.
Clock::time_point coarse_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) +
                           std::chrono::nanoseconds(now.tv_nsec));
}

}  // namespace

Coordinator::Coordinator(const Config& config, bootstrap::World* world,
                         std::shared_ptr<SubmissionQueue> queue, Timeline timeline,
                         Counters* counters, std::function<void(const std::string&)> blame)
    : config_(config),
      world_(world),
      queue_(std::move(queue)),
      timeline_(std::move(timeline)),
      counters_(counters),
      blame_(std::move(blame)),
      communicator_(world->everyone()),
      runner_(&communicator_, &timeline_,
              [this](Submission& s, const Status& status) { finish(s, status); }),
      point_to_point_(world->transport.get(),
                      [this](Submission& s, const Status& status) { finish(s, status); }),
      plan_runner_(communicator_.lane(kPlanLane) == nullptr
                       ? nullptr
                       : std::make_unique<PlanRunner>(
                             world->rank, communicator_.lane(kPlanLane), kPlanLane, world->arenas,
                             world->ringers,
                             [this](Ticket t, Time entered) { complete(t, entered); })),
      negotiator_(config, {world->rank, world->size, world->epoch, world->names}, this,
                  plan_runner_.get()) {
  communicator_.on_measured([this](const communicator::Job& job, int64_t bytes, int64_t ns) {
    negotiator_.measured(job.kind, bytes, static_cast<uint32_t>(job.road), ns, Clock::now());
  });
  if (plan_runner_ && timeline_.enabled()) plan_runner_->time_batches();
  try_pull();
  transport::TransportEvents events;
  events.on_control = [this](Rank peer, std::string_view message) {
    negotiator_.on_message(peer, message, Clock::now());
  };
  events.on_peer_end = [this](Rank peer, const Status& status) { handle_peer_end(peer, status); };
  events.on_abort = [this](Rank, const Status& verdict) { break_down(verdict); };
  world_->transport->set_events(std::move(events));
}

void Coordinator::request_shutdown() {
  shutdown_requested_.store(true, std::memory_order_release);
  queue_->wake();
}

bool Coordinator::step() {
  if (state_ == State::kEnded) return false;
  const Time now = Clock::now();
  root_deadline_known_ = false;
  bool moved = take_submissions(now);
  if (state_ != State::kBroken) {
    moved |= world_->transport->progress();
    moved |= negotiator_.on_time(now);
    moved |= runner_.advance();
    if (plan_runner_) moved |= plan_runner_->advance();
    moved |= point_to_point_.advance();
    if (!runner_.failure().ok()) break_down(runner_.failure());
    if (plan_runner_ && !plan_runner_->failure().ok()) break_down(plan_runner_->failure());
  }
  if (shutdown_requested_.load(std::memory_order_acquire)) moved |= leave();
  quiet_ = !moved;
  return moved;
}

bool Coordinator::advance() {
  if (plan_runner_ && !plan_runner_->idle() && state_ == State::kRunning) {
    if (plan_runner_->advance()) return true;
    if (++glances_ % kGlancesPerRound != 0) return false;
  }
  return step();
}

bool Coordinator::needs_thread(Time wakes_at) {
  if (ended() || !quiet_ || waits_for_lanes()) return true;
  if (shutdown_requested_.load(std::memory_order_relaxed)) return true;
  if (!std::exchange(root_deadline_known_, true)) root_deadline_ = negotiator_.root_deadline();
  if (root_deadline_ && *root_deadline_ < wakes_at) return true;
  const std::optional<Time> deadline = negotiator_.plan_deadline();
  return deadline && *deadline < wakes_at;
}

std::chrono::nanoseconds Coordinator::nap() const {
  std::optional<Time> deadline = negotiator_.next_deadline();
  if (state_ == State::kLeaving && (!deadline || leave_deadline_ < *deadline))
    deadline = leave_deadline_;
  if (!deadline) return std::chrono::nanoseconds(-1);
  return std::max<std::chrono::nanoseconds>(*deadline - Clock::now(), std::chrono::nanoseconds(0));
}

// ---- submissions ----

bool Coordinator::take_submissions(Time now) {
  // Seen before the queue is drained: what a blocked thread submitted before is then in it.
  std::vector<std::string> blocked;
  if (queue_->take_wake()) {
    for (const auto& [ticket, pending] : tickets_) {
      const Submission& submission = pending->submission;
      if (submission.work->wanted()) blocked.push_back(submission.request.name);
    }
    for (Prepared* const prepared : held_) {
      if (prepared->pending()->submission.work->wanted()) blocked_slots_.push_back(prepared->slot);
    }
  }
  bool moved = false;
  do {
    blocked_already_ = false;
    moved |= take_prepared();
    for (Submission& submission : queue_->drain()) {
      moved = true;
      take(std::move(submission));
    }
  } while (blocked_already_);
  for (const std::string& name : blocked) negotiator_.wanted(name);
  for (const uint32_t slot : blocked_slots_) negotiator_.wanted(slot);
  blocked_slots_.clear();
  return negotiator_.flush(now) || moved;
}

bool Coordinator::take_prepared() {
  Prepared* next = queue_->take();
  if (next == nullptr) return false;
  while (next != nullptr) {
    Prepared* const prepared = next;
    next = prepared->next();
    take(prepared);
  }
  return true;
}

void Coordinator::take(Prepared* prepared) {
  Pending* const pending = prepared->pending();
  if (state_ != State::kRunning) return take(prepared->as_submission());
  if (prepared->slot == Prepared::kNoSlot)
    prepared->slot = negotiator_.slot_of(pending->submission.request).value_or(Prepared::kNoSlot);
  if (prepared->slot == Prepared::kNoSlot) return take(prepared->as_submission());
  const Time now = timeline_.enabled() ? Clock::now() : coarse_now();
  pending->since = now;
  const int64_t planned = negotiator_.planned_submissions();
  negotiator_.submit_cached(prepared->slot, pending, now);
  if (negotiator_.planned_submissions() == planned) quiet_ = false;
}

void Coordinator::take(Submission submission) {
  const CollectiveKind kind = submission.request.kind;
  quiet_ = false;
  if (state_ == State::kBroken) {
    finish(submission, verdict_);
  } else if (state_ == State::kEnded) {
    finish(submission, queue_->closed());
  } else if (kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv) {
    point_to_point_.start(std::move(submission));
  } else {
    auto pending = std::make_unique<Pending>(Pending{std::move(submission), Clock::now()});
    Pending* ticket = pending.get();
    tickets_.emplace(ticket, std::move(pending));
    negotiator_.submit(ticket->submission.request, ticket, ticket->since);
  }
}

// ---- what the agreement asks for ----

Pending Coordinator::take_back(Ticket ticket) {
  auto* const pending = static_cast<Pending*>(ticket);
  if (Prepared* const prepared = pending->prepared) {
    unhold(prepared);
    Pending copy;
    copy.since = pending->since;
    copy.submission = prepared->as_submission();
    return copy;
  }
  return std::move(*tickets_.extract(ticket).mapped());
}

void Coordinator::send_control(Rank to, const std::string& message) {
  world_->transport->send_control(to, message);
}

void Coordinator::launch(const wire::Response& batch, const std::vector<Ticket>& tickets) {
  std::vector<Pending> members;
  for (const Ticket ticket : tickets) members.push_back(take_back(ticket));
  look_for_pull();
  communicator_.use_road(static_cast<communicator::Road>(batch.road));
  runner_.start(batch, std::move(members));
}

void Coordinator::finish(Ticket ticket, const Status& status) {
  Pending pending = take_back(ticket);
  finish(pending.submission, status);
}

void Coordinator::note(Ticket ticket, const std::string& text) {
  static_cast<Pending*>(ticket)->submission.work->set_note(text);
}

bool Coordinator::may_hold(Ticket ticket) {
  auto* const pending = static_cast<Pending*>(ticket);
  const bool blocked = pending->submission.work->mark_holdable();
  if (pending->prepared != nullptr) hold(pending->prepared);
  blocked_already_ |= blocked;
  if (blocked) quiet_ = false;
  return blocked;
}

void Coordinator::hold(Prepared* prepared) {
  if (prepared->held != Prepared::kNotHeld) return;
  prepared->held = held_.size();
  held_.push_back(prepared);
}

void Coordinator::unhold(Prepared* prepared) {
  if (prepared->held == Prepared::kNotHeld) return;
  held_.back()->held = prepared->held;
  held_[prepared->held] = held_.back();
  held_.pop_back();
  prepared->held = Prepared::kNotHeld;
}

// Can this rank read its peers' private memory? All have to be able to.
void Coordinator::try_pull() {
  if (!plan_runner_) return;
  bool able = true;
  for (const auto& arena : world_->arenas) able = able && communicator::probe_pull(*arena);
  world_->arenas[static_cast<size_t>(world_->rank)]->lane(0)->can_pull.store(
      able ? transport::LaneControl::kCanPull : transport::LaneControl::kCannotPull,
      std::memory_order_release);
}

void Coordinator::look_for_pull() {
  if (pull_known_ || !plan_runner_ || world_->rank != negotiation::Negotiator::kRoot) return;
  bool able = true;
  for (const auto& arena : world_->arenas) {
    const uint32_t answer = arena->lane(0)->can_pull.load(std::memory_order_acquire);
    if (answer == transport::LaneControl::kUntried) return;
    able = able && answer == transport::LaneControl::kCanPull;
  }
  pull_known_ = true;
  negotiator_.set_pull_available(able);
}

// A planned batch has run.
void Coordinator::complete(Ticket ticket, Time entered) {
  auto* const pending = static_cast<Pending*>(ticket);
  if (timeline_.enabled()) {
    show_phases(&timeline_, *pending, entered, Clock::now(),
                runner_.batches() + plan_runner_->batches());
  }
  if (pending->prepared == nullptr) return finish(ticket, {});
  unhold(pending->prepared);
  pending->prepared->complete();
}

void Coordinator::warn(const std::string& text) { RUEDA_WARN("coordinator", "{}", text); }

void Coordinator::give_up(const Status& verdict) { break_down(verdict); }

}  // namespace rueda::runtime
