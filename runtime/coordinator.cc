#include "runtime/coordinator.h"

#include <algorithm>
#include <utility>

#include "collectives/base/log.h"

namespace rueda::runtime {
namespace {

using Clock = std::chrono::steady_clock;

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
      negotiator_(config, {world->rank, world->size, world->epoch, world->names}, this) {
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
  bool moved = take_submissions();
  if (state_ != State::kBroken) {
    moved |= world_->transport->progress();
    moved |= negotiator_.on_time(Clock::now());
    moved |= runner_.advance();
    moved |= point_to_point_.advance();
    if (!runner_.failure().ok()) break_down(runner_.failure());
  }
  if (shutdown_requested_.load(std::memory_order_acquire)) moved |= leave();
  quiet_ = !moved;
  return moved;
}

bool Coordinator::advance() { return step(); }

bool Coordinator::needs_thread(Time wakes_at) const {
  if (ended() || !quiet_ || shutdown_requested_.load(std::memory_order_relaxed) || waits_for_lanes())
    return true;
  const std::optional<Time> deadline = negotiator_.next_deadline();
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

bool Coordinator::take_submissions() {
  // Seen before the queue is drained: what a blocked thread submitted before is then in it.
  std::vector<std::string> blocked;
  if (queue_->take_wake()) {
    for (const auto& [ticket, pending] : tickets_) {
      const Submission& submission = pending->submission;
      if (submission.work->wanted()) blocked.push_back(submission.request.name);
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
  return negotiator_.flush(Clock::now()) || moved;
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

void Coordinator::take(Prepared* prepared) { take(prepared->as_submission()); }

void Coordinator::take(Submission submission) {
  const CollectiveKind kind = submission.request.kind;
  if (state_ == State::kBroken) {
    finish(submission, verdict_);
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
  return std::move(*tickets_.extract(ticket).mapped());
}

void Coordinator::send_control(Rank to, const std::string& message) {
  world_->transport->send_control(to, message);
}

void Coordinator::launch(const wire::Response& batch, const std::vector<Ticket>& tickets) {
  std::vector<Pending> members;
  for (const Ticket ticket : tickets) members.push_back(take_back(ticket));
  runner_.start(batch.kind, std::move(members), batch.entries);
}

void Coordinator::finish(Ticket ticket, const Status& status) {
  Pending pending = take_back(ticket);
  finish(pending.submission, status);
}

void Coordinator::note(Ticket ticket, const std::string& text) {
  static_cast<Pending*>(ticket)->submission.work->set_note(text);
}

bool Coordinator::may_hold(Ticket ticket) {
  const bool blocked = static_cast<Pending*>(ticket)->submission.work->mark_holdable();
  blocked_already_ |= blocked;
  return blocked;
}

void Coordinator::warn(const std::string& text) { RUEDA_WARN("coordinator", "{}", text); }

void Coordinator::give_up(const Status& verdict) { break_down(verdict); }

}  // namespace rueda::runtime
