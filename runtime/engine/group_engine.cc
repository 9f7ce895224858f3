#include "runtime/engine/group_engine.h"

#include <algorithm>
#include <utility>

#include "collectives/base/log.h"
#include "runtime/engine/neutral.h"

namespace rueda::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPlanChannel = 1;  // of the group's channels

algorithms::NativeGroup group_of(const membership::World& world, const ProcessSet& set) {
  algorithms::NativeGroup group = world.group(set.ranks);
  group.process_set = set.serial;
  if (set.channels) {
    group.first_channel = *set.channels * host::kChannels;
  } else {
    group.arenas.clear();
    group.host_of.clear();
  }
  return group;
}

std::unique_ptr<PlanRunner> make_plan_runner(
    const membership::World& world, const ProcessSet& set, const algorithms::NativeGroup& group,
    shm::Channel* channel, nccl::DeviceCommunicator* device, timeline::Recorder* recorder,
    flight::FlightRecorder* flight, PlanRunner::Complete complete) {
  if (channel == nullptr) return nullptr;
  std::vector<host::Ringer> ringers;
  for (const Rank rank : set.ranks) ringers.push_back(world.ringers[static_cast<size_t>(rank)]);
  return std::make_unique<PlanRunner>(*set.place, channel, group.first_channel + kPlanChannel,
                                      device, group.arenas, std::move(ringers), recorder, flight,
                                      set.id, std::move(complete));
}

nccl::DeviceGroup device_group_of(const membership::World& world, const ProcessSet& set,
                                  uint32_t number) {
  nccl::DeviceGroup group;
  group.transport = world.transport.get();
  group.members = set.ranks;
  for (const Rank rank : set.ranks) group.names.push_back(world.names[static_cast<size_t>(rank)]);
  group.process_set = set.serial;
  group.number = number;
  group.machine = world.machine;
  return group;
}

negotiation::GroupInfo group_info_of(const membership::World& world, const ProcessSet& set) {
  negotiation::Members members(world.names);
  if (set.id != 0) {
    members = {world.names, set.ranks,
               "has been shut down or has removed process set " + std::to_string(set.id)};
  }
  return {*set.place, set.size(), world.epoch, std::move(members), set.serial};
}

}  // namespace

GroupEngine::GroupEngine(const Config& config, membership::World* world,
                         timeline::Recorder* recorder, flight::FlightRecorder* flight,
                         LateRanks* late, Owner* owner, ProcessSetPtr set)
    : world_(world),
      recorder_(recorder),
      flight_(flight),
      owner_(owner),
      set_(std::move(set)),
      late_(late, set_->ranks, *set_->place),
      arenas_(group_of(*world, *set_).arenas),
      communicator_(group_of(*world, *set_)),
      device_communicator_(device_group_of(*world, *set_, 0)),
      planned_device_(device_group_of(*world, *set_, 1)),
      runner_(&communicator_, &device_communicator_, recorder, flight,
              [this](Submission& s, const Status& status) { owner_->finish(s, status); }),
      plan_runner_(make_plan_runner(*world, *set_, group_of(*world, *set_),
                                    communicator_.channel(kPlanChannel), &planned_device_, recorder,
                                    flight,
                                    [this](plan::Ticket t, const Status& s) { complete(t, s); })),
      negotiator_(config, group_info_of(*world, *set_), this, plan_runner_.get()) {
  communicator_.on_measured([this](const shm::Job& job, int64_t bytes, int64_t ns) {
    negotiator_.measured(job.kind, bytes, static_cast<uint32_t>(job.protocol), ns, Clock::now());
  });
  negotiator_.listen(this);
  if (set_->id != 0) flight_->members(set_->id, set_->ranks);
  if (plan_runner_) communicator_.channel(kPlanChannel)->watch(&late_);
}

// ---- operations ----

void GroupEngine::take(Submission submission) {
  if (leaving_ && set_->id != 0) {
    return owner_->finish(
        submission,
        cancelled(set_->describe() + " is used no more: it was removed, or rueda shut down"));
  }
  if (refuse_capture(&submission)) return;
  if (submission.request.kind == CollectiveKind::kJoin && owner_->names_are_waited_for(*set_)) {
    join_ = std::move(submission);
    return;
  }
  auto* const pending = static_cast<Pending*>(keep(std::move(submission)));
  negotiator_.submit(pending->submission.request, pending, pending->since);
}

// A capture must not depend on what ranks agree on while it lasts: only what a plan has fixed
// before can be captured. One rank agrees with itself.
bool GroupEngine::refuse_capture(Submission* submission) {
  if (!submission->ready.captured || set_->size() == 1) return false;
  if (negotiator_.follows(submission->request)) return false;
  owner_->finish(
      *submission,
      failed_precondition(
          "its stream is being captured into a CUDA graph, and it is in no step plan: run the "
          "same step some ten times before the capture, with the same names and shapes, on "
          "all ranks" +
          std::string(plan_runner_ ? "" : " (step plans need all of them on one host)")));
  return true;
}

plan::Ticket GroupEngine::keep(Submission submission) {
  auto pending = std::make_unique<Pending>(Pending{std::move(submission), Clock::now()});
  Pending* const ticket = pending.get();
  tickets_.emplace(ticket, std::move(pending));
  return ticket;
}

plan::Ticket GroupEngine::neutral(const wire::Request& request) {
  return keep(make_neutral(request, set_));
}

void GroupEngine::take(Prepared* prepared, Time now) {
  Pending* const pending = prepared->pending();
  if (pending->submission.ready.captured) {
    owner_->stir();
    return take(prepared->as_submission());
  }
  if (prepared->id == Prepared::kNoCacheId)
    prepared->id = negotiator_.id_of(pending->submission.request).value_or(Prepared::kNoCacheId);
  if (prepared->id == Prepared::kNoCacheId || leaving_) {
    owner_->stir();
    return take(prepared->as_submission());
  }
  pending->since = now;
  pending->submission.flight = 0;
  const int64_t planned = negotiator_.planned_submissions();
  negotiator_.submit_cached(prepared->id, pending, now);
  if (negotiator_.planned_submissions() == planned) owner_->stir();
}

// Before the queue is drained: what a blocked thread submitted before is then in it.
void GroupEngine::look_for_blocked() {
  for (const auto& [ticket, pending] : tickets_) {
    const Submission& submission = pending->submission;
    if (submission.work->wanted()) blocked_.push_back(submission.request.name);
  }
  for (Prepared* const prepared : held_) {
    if (prepared->pending()->submission.work->wanted()) blocked_ids_.push_back(prepared->id);
  }
}

bool GroupEngine::tell(Time now) {
  if (join_ && !owner_->names_are_waited_for(*set_)) take(*std::exchange(join_, std::nullopt));
  for (const std::string& name : blocked_) negotiator_.wanted(name);
  for (const uint32_t id : blocked_ids_) negotiator_.wanted(id);
  blocked_.clear();
  blocked_ids_.clear();
  return negotiator_.flush(now);
}

// ---- news ----

void GroupEngine::on_message(Rank from, std::string_view message, Time now) {
  const std::optional<Rank> place = set_->place_of(from);
  if (place) return negotiator_.on_message(*place, message, now);
  owner_->give_up({Code::kDataLoss,
                   world_->names[static_cast<size_t>(from)] + " speaks in " + set_->describe()});
}

void GroupEngine::on_peer_left(Rank peer, Time now) {
  if (const std::optional<Rank> place = set_->place_of(peer)) negotiator_.on_peer_left(*place, now);
}

bool GroupEngine::step(Time now) {
  bool moved = negotiator_.on_time(now);
  moved |= runner_.advance();
  if (plan_runner_) moved |= plan_runner_->advance();
  if (!runner_.failure().ok()) owner_->give_up(runner_.failure());
  if (plan_runner_ && !plan_runner_->failure().ok()) owner_->give_up(plan_runner_->failure());
  return moved;
}

void GroupEngine::split(uint64_t place, const ProcessSet& set, GroupEngine* part) {
  auto made = std::make_shared<nccl::SplitPart>();
  if (part != nullptr) part->device_communicator_.use_part(made);
  runner_.run(device_communicator_.split(place, set.place, set.describe(), std::move(made)));
}

// ---- the end ----

void GroupEngine::leave(Time now) {
  leaving_ = true;
  negotiator_.leave(now);
}

void GroupEngine::finish_join(const Status& status) {
  if (!join_) return;
  Submission join = std::move(*std::exchange(join_, std::nullopt));
  owner_->finish(join, status);
}

bool GroupEngine::drop(const Status& status) {
  finish_join(status);
  if (negotiator_.idle()) return false;
  negotiator_.drop(status);
  return true;
}

void GroupEngine::break_down(const Status& verdict) {
  finish_join(verdict);
  communicator_.abandon();
  device_communicator_.abandon();
  planned_device_.abandon();
  runner_.fail_all(verdict);
  if (plan_runner_) {
    for (const plan::Ticket ticket : plan_runner_->drop()) finish(ticket, verdict);
  }
  negotiator_.break_down(verdict);
}

void GroupEngine::add_to(counters::Values* totals) const {
  const int64_t planned = plan_runner_ ? plan_runner_->batches() : 0;
  totals->batches += runner_.batches() + planned;
  totals->planned_batches += planned;
  totals->tensors += runner_.tensors() + (plan_runner_ ? plan_runner_->tensors() : 0);
  totals->fused_tensors +=
      runner_.fused_tensors() + (plan_runner_ ? plan_runner_->fused_tensors() : 0);
  totals->cached_tensors += negotiator_.cached_submissions() + negotiator_.planned_submissions();
  totals->plans += negotiator_.plans();
  totals->revocations += negotiator_.revocations();
  const auto channels = communicator_.channel_totals();
  totals->bytes_reduced += static_cast<int64_t>(channels.total);
  totals->bytes_in_place += static_cast<int64_t>(channels.in_place);
  totals->bytes_cma += static_cast<int64_t>(channels.cma);
}

// ---- what the agreement asks for ----

Pending GroupEngine::take_back(plan::Ticket ticket) {
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

void GroupEngine::send_control(Rank to, const std::string& message) {
  world_->transport->send_control(set_->ranks[static_cast<size_t>(to)], message);
}

void GroupEngine::launch(const wire::Response& batch, const std::vector<plan::Ticket>& tickets) {
  std::vector<Pending> members;
  const int64_t now = flight::now_ns();
  for (const plan::Ticket ticket : tickets) {
    members.push_back(take_back(ticket));
    flight_->agreed(members.back().submission.flight, now);
  }
  if (batch.kind == CollectiveKind::kProcessSet) {
    for (Pending& change : members) owner_->change_sets(std::move(change));
    return;
  }
  if (batch.kind == CollectiveKind::kJoin) {
    const auto last = static_cast<size_t>(batch.last_joined);
    for (Pending& join : members) {
      join.submission.work->set_result(last < set_->ranks.size() ? set_->ranks[last] : -1);
      owner_->finish(join.submission, {});
    }
    return;
  }
  look_for_cma();
  owner_->batch_begins();
  communicator_.use_protocol(static_cast<shm::Protocol>(batch.protocol));
  runner_.start(batch, std::move(members));
}

void GroupEngine::finish(plan::Ticket ticket, const Status& status) {
  Pending pending = take_back(ticket);
  owner_->finish(pending.submission, status);
}

std::string GroupEngine::call_site(plan::Ticket ticket) {
  return flight_->site_text(static_cast<Pending*>(ticket)->submission.site);
}

// On its way through the negotiation.
void GroupEngine::asked(plan::Ticket ticket, bool by_number) {
  Submission& s = static_cast<Pending*>(ticket)->submission;
  if (s.flight == 0) {
    s.flight = flight_->submitted(s.request, set_->id, s.site,
                                  by_number ? flight::Path::kCached : flight::Path::kNegotiated);
  } else if (by_number) {
    flight_->cached(s.flight);
  }
}

void GroupEngine::note(plan::Ticket ticket, const std::string& text) {
  static_cast<Pending*>(ticket)->submission.work->set_note(text);
}

bool GroupEngine::may_hold(plan::Ticket ticket) {
  auto* const pending = static_cast<Pending*>(ticket);
  const bool blocked = pending->submission.work->mark_holdable();
  if (pending->prepared != nullptr) hold(pending->prepared);
  if (blocked) owner_->blocked_already();
  return blocked;
}

void GroupEngine::hold(Prepared* prepared) {
  if (prepared->held != Prepared::kNotHeld) return;
  if (held_.size() == held_.capacity()) {
    // For all that there are: a later step may hold back more, and a steady one allocates nothing.
    held_.reserve(std::max(2 * held_.size(), negotiator_.known_tensors()));
    blocked_ids_.reserve(held_.capacity());
  }
  prepared->held = held_.size();
  held_.push_back(prepared);
}

void GroupEngine::unhold(Prepared* prepared) {
  if (prepared->held == Prepared::kNotHeld) return;
  held_.back()->held = prepared->held;
  held_[prepared->held] = held_.back();
  held_.pop_back();
  prepared->held = Prepared::kNotHeld;
}

// Can all members read each other's private memory? Each says so in its arena (Coordinator).
void GroupEngine::look_for_cma() {
  if (cma_known_ || !plan_runner_ || *set_->place != negotiation::Negotiator::kRoot) return;
  bool able = true;
  for (const auto& arena : arenas_) {
    const uint32_t answer = arena->channel(0)->has_cma.load(std::memory_order_acquire);
    if (answer == host::ChannelControl::kUntried) return;
    able = able && answer == host::ChannelControl::kHasCma;
  }
  cma_known_ = true;
  negotiator_.set_cma_available(able);
}

// A planned batch has run.
void GroupEngine::complete(plan::Ticket ticket, const Status& status) {
  auto* const pending = static_cast<Pending*>(ticket);
  if (pending->prepared == nullptr || !status.ok()) return finish(ticket, status);
  unhold(pending->prepared);
  pending->prepared->complete();
}

void GroupEngine::arrived(const wire::Request& request, Rank place, Time now) {
  if (!recorder_->on() || request.kind == CollectiveKind::kProcessSet) return;
  recorder_->arrival(request, set_->id, set_->ranks[static_cast<size_t>(place)],
                     timeline::nanos(now));
}

void GroupEngine::complete(Rank place, Time before, Time now) {
  late_.decided(place, timeline::nanos(before), timeline::nanos(now));
}

// That other members leave a set which is removed is nobody's fault.
void GroupEngine::blame(const std::string& text) {
  if (!leaving_ || set_->id == 0) owner_->blame(text);
}

void GroupEngine::warn(const std::string& text) {
  if (set_->id == 0) {
    RUEDA_WARN("coordinator", "{}", text);
  } else {
    RUEDA_WARN("coordinator", "{}: {}", set_->describe(), text);
  }
}

}  // namespace rueda::engine
