#include "runtime/coordinator.h"

#include <algorithm>
#include <utility>

#include "collectives/base/log.h"
#include "proto/negotiation_codec.h"
#include "runtime/negotiation/portions.h"

namespace rueda::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kStepsBetweenPolls = 64;

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
      cache_(static_cast<size_t>(config.cache_capacity)) {
  if (is_root())
    root_ = std::make_unique<negotiation::Root>(config_, world_->epoch, world_->names, &cache_);
  transport::TransportEvents events;
  events.on_control = [this](Rank peer, std::string_view message) {
    handle_control(peer, message);
  };
  events.on_peer_end = [this](Rank peer, const Status& status) { handle_peer_end(peer, status); };
  events.on_abort = [this](Rank, const Status& verdict) { break_down(verdict); };
  world_->transport->set_events(std::move(events));
}

void Coordinator::request_shutdown() {
  shutdown_requested_.store(true, std::memory_order_release);
  queue_->wake();
}

void Coordinator::run() {
  for (uint64_t busy = 1; !ended(); ++busy) {
    if (step()) {
      // Sockets are looked at while sleeping; a rank that is busy with its local peers looks now
      // and then.
      if (busy % kStepsBetweenPolls == 0) world_->transport->park(std::chrono::nanoseconds(0));
      continue;
    }
    world_->doorbell->arm();
    world_->doorbell->arm_lane();
    if (step()) {
      world_->doorbell->disarm();
      continue;
    }
    world_->transport->park(nap());
  }
}

bool Coordinator::step() {
  if (state_ == State::kEnded) return false;
  bool moved = take_submissions();
  if (state_ != State::kBroken) {
    moved |= world_->transport->progress();
    moved |= check_stalls();
    moved |= publish_responses();
    moved |= runner_.advance();
    moved |= point_to_point_.advance();
    if (!runner_.failure().ok()) break_down(runner_.failure());
  }
  if (shutdown_requested_.load(std::memory_order_acquire)) moved |= leave();
  if (moved) count();
  return moved;
}

// How long there is nothing to do unless somebody rings.
std::chrono::nanoseconds Coordinator::nap() const {
  std::optional<Time> deadline;
  if (root_ != nullptr && state_ != State::kBroken) deadline = root_->next_deadline();
  if (state_ == State::kLeaving && (!deadline || leave_deadline_ < *deadline))
    deadline = leave_deadline_;
  if (!deadline) return std::chrono::nanoseconds(-1);
  return std::max<std::chrono::nanoseconds>(*deadline - Clock::now(), std::chrono::nanoseconds(0));
}

// ---- submissions ----

bool Coordinator::take_submissions() {
  std::vector<Submission> submissions = queue_->drain();
  wire::RequestList list;
  for (Submission& submission : submissions) {
    if (state_ == State::kBroken) {
      finish(submission, verdict_);
      continue;
    }
    const wire::Request& request = submission.request;
    if (request.kind == CollectiveKind::kSend || request.kind == CollectiveKind::kRecv) {
      point_to_point_.start(std::move(submission));
      continue;
    }
    if (root_left_) {
      finish(submission, cancelled(world_->names[kRoot] +
                                   " has been shut down: no operation can be agreed any more"));
      continue;
    }
    const auto slot = cache_.find(request);
    if (slot) {
      list.cached.push_back(*slot);
      counters_->cached_tensors.fetch_add(1, std::memory_order_relaxed);
    } else {
      list.requests.push_back(request);
    }
    const auto company = has_company_.find(request.name);
    if (company != has_company_.end() && company->second && submission.work->mark_holdable()) {
      list.wanted.push_back(request.name);
    }
    const std::string name = request.name;
    pending_[name] = {std::move(submission), Clock::now()};
  }
  if (queue_->take_wake()) tell_wanted(&list.wanted);
  if (list.requests.empty() && list.cached.empty() && list.wanted.empty())
    return !submissions.empty();
  send_requests(std::move(list));
  return true;
}

// Threads began to wait for tensors that the root may hold back for their batch's sake.
void Coordinator::tell_wanted(std::vector<std::string>* wanted) {
  for (auto& [name, pending] : pending_) {
    if (pending.wanted_told || !pending.submission.work->wanted()) continue;
    const auto company = has_company_.find(name);
    if (company == has_company_.end() || !company->second) continue;
    pending.wanted_told = true;
    if (std::find(wanted->begin(), wanted->end(), name) == wanted->end()) wanted->push_back(name);
  }
}

void Coordinator::send_requests(wire::RequestList list) {
  list.epoch = world_->epoch;
  if (root_ == nullptr) {
    if (root_left_) return;
    for (const wire::RequestList& portion : negotiation::portions(std::move(list))) {
      world_->transport->send_control(kRoot, wire::encode(portion));
    }
    return;
  }
  const Status status = root_->on_requests(kRoot, list, Clock::now());
  if (!status.ok()) break_down(status);
}

// ---- agreement ----

void Coordinator::handle_control(Rank peer, std::string_view message) {
  Status status;
  if (root_ != nullptr) {
    wire::RequestList list;
    status = wire::decode(message, &list);
    if (status.ok() && list.epoch == world_->epoch)
      status = root_->on_requests(peer, list, Clock::now());
    if (status.ok() && list.leaving) {
      publish_responses();
      wire::ResponseList answer;
      answer.epoch = world_->epoch;
      answer.left = true;
      world_->transport->send_control(peer, wire::encode(answer));
    }
  } else if (peer == kRoot) {
    wire::ResponseList list;
    status = wire::decode(message, &list);
    if (status.ok() && list.epoch == world_->epoch) handle_responses(list);
  }
  if (!status.ok()) {
    break_down({status.code(), "damaged message from " + world_->names[static_cast<size_t>(peer)] +
                                   ": " + status.message()});
  }
}

// The root: what was decided goes to all ranks, itself included.
bool Coordinator::publish_responses() {
  if (root_ == nullptr || state_ == State::kBroken) return false;
  auto list = root_->take_responses(Clock::now());
  if (!list) return false;
  tell_everyone(std::move(*list));
  return true;
}

void Coordinator::tell_everyone(wire::ResponseList list) {
  for (const wire::ResponseList& portion : negotiation::portions(std::move(list))) {
    const std::string message = wire::encode(portion);
    for (Rank peer = 1; peer < world_->size; ++peer) world_->transport->send_control(peer, message);
    handle_responses(portion);
  }
}

void Coordinator::handle_responses(const wire::ResponseList& list) {
  for (const wire::Response& response : list.responses) {
    handle_response(response);
    if (state_ == State::kBroken) return;
  }
  for (const wire::Stall& stall : list.stalls) handle_stall(stall);
  if (list.left) root_has_left();
}

void Coordinator::handle_response(const wire::Response& response) {
  std::vector<Pending> members;
  // The members taken so far wait again, so that they end with the verdict too.
  const auto give_up = [&](const std::string& why) {
    for (Pending& member : members) {
      const std::string name = member.submission.request.name;
      pending_[name] = std::move(member);
    }
    break_down(internal_error(why));
  };
  for (const wire::ResponseEntry& entry : response.entries) {
    std::string name = entry.name;
    if (name.empty()) {
      const negotiation::RequestPtr known =
          cache_.get(static_cast<uint32_t>(std::max<int64_t>(entry.cache_slot, 0)));
      if (known == nullptr) return give_up("the root named a tensor that this rank does not know");
      name = known->name;
    }
    auto it = pending_.find(name);
    if (it == pending_.end()) {
      if (!response.error.empty()) continue;  // this rank did not wait for it
      return give_up("the root answered " + negotiation::title_of(name) +
                     ", which this rank has not submitted");
    }
    if (entry.cache_slot >= 0 && response.error.empty()) {
      const auto slot = static_cast<uint32_t>(entry.cache_slot);
      if (cache_.get(slot) == nullptr) {
        cache_.put(slot, std::make_shared<const wire::Request>(it->second.submission.request));
      }
    }
    // With its name: the root has just met it and may put it into a batch next time.
    if (entry.cache_slot >= 0)
      has_company_[name] = !entry.name.empty() || response.entries.size() > 1;
    members.push_back(std::move(it->second));
    pending_.erase(it);
  }
  if (!response.error.empty()) {
    if (response.error_code == Code::kCancelled && !members.empty()) blame(response.error);
    for (Pending& member : members)
      finish(member.submission, {response.error_code, response.error});
  } else if (!members.empty()) {
    runner_.start(response.kind, std::move(members), response.entries);
  }
}

void Coordinator::handle_stall(const wire::Stall& stall) {
  const auto it = pending_.find(stall.name);
  if (it == pending_.end()) return;
  std::string missing;
  for (const Rank rank : stall.missing) {
    if (rank < 0 || rank >= world_->size) continue;
    missing += (missing.empty() ? "" : ", ") + world_->names[static_cast<size_t>(rank)];
  }
  it->second.submission.work->set_note("not yet submitted by " + missing);
}

bool Coordinator::check_stalls() {
  if (root_ == nullptr) return false;
  const auto reports = root_->check_stalls(Clock::now());
  if (reports.empty()) return false;
  wire::ResponseList list;
  list.epoch = world_->epoch;
  for (const auto& report : reports) {
    if (!report.warning.empty()) RUEDA_WARN("coordinator", "{}", report.warning);
    list.stalls.push_back(report.stall);
  }
  tell_everyone(std::move(list));
  return true;
}

}  // namespace rueda::runtime
