#include "runtime/engine/group_engine.h"

#include <algorithm>
#include <utility>

#include "collectives/desc/tags.h"
#include "proto/negotiation_codec.h"
#include "runtime/engine/group_devices.h"
#include "runtime/membership/native_group.h"

namespace rueda::engine {
namespace {

using Clock = std::chrono::steady_clock;
namespace event = negotiation::event;
using Shared = GroupEngine::Shared;

constexpr size_t kPlanChannel = 1;  // of the group's channels

// Without an arena there are none.
size_t channels_per_group(const membership::HostMemory& memory) {
  return memory.own() == nullptr ? 0 : memory.own()->layout().channels();
}

algorithms::NativeGroup group_of(const Config& config, const Shared& shared,
                                 const ProcessSet& set) {
  algorithms::NativeGroup group =
      membership::native_group(config, *shared.memory, *shared.fabric, set.ranks);
  group.tags = tags::of_set(set.serial);
  if (set.channels) {
    group.first_channels.assign(set.ranks.size(),
                                *set.channels * channels_per_group(*shared.memory));
  } else {
    group.arenas.clear();
    group.host_of.clear();
  }
  return group;
}

Executor::LastWords last_words_of(const Shared& shared, const ProcessSet& set,
                                  const algorithms::NativeGroup& group) {
  Executor::LastWords last;
  last.tell = [me = shared.membership, transport = shared.fabric->transport.get(), &set](
                  uint64_t generation, uint64_t entered) {
    const std::string word =
        wire::encode(wire::LastWord{me->epoch, set.serial, generation, entered});
    for (const Rank rank : set.ranks) {
      if (rank != me->rank) transport->send_control(rank, word);
    }
  };
  for (size_t i = 0; i < group.arenas.size(); ++i) {
    host::ChannelControl* const channel =
        group.arenas[i]->channel(group.first_channels[i] + kPlanChannel);
    last.words.push_back(&channel->last_word);
  }
  for (const Rank rank : set.ranks)
    last.ringers.push_back(shared.fabric->ringers[static_cast<size_t>(rank)]);
  return last;
}

nccl::DeviceGroup device_group_of(const Shared& shared, const ProcessSet& set, uint32_t number) {
  nccl::DeviceGroup group;
  group.transport = shared.fabric->transport.get();
  group.members = set.ranks;
  for (const Rank rank : set.ranks) group.names.push_back(shared.membership->name(rank));
  group.tag = tags::of_set_device(set.serial, number);
  group.machine = shared.machine;
  return group;
}

negotiation::GroupInfo group_info_of(const membership::Membership& all, const ProcessSet& set) {
  negotiation::Members members(all.names);
  if (set.id != 0) {
    members = {all.names, set.ranks,
               "has been shut down or has removed process set " + std::to_string(set.id)};
  }
  return {*set.place, set.size(), all.epoch, std::move(members), set.serial, true};
}

}  // namespace

GroupEngine::GroupEngine(const Config& config, const Shared& shared, ProcessSetPtr set)
    : shared_(shared),
      set_(std::move(set)),
      late_(shared.late, set_->ranks, *set_->place),
      arenas_(group_of(config, shared, *set_).arenas),
      communicator_(group_of(config, shared, *set_)),
      planned_(group_of(config, shared, *set_), algorithms::Order::kPlanned),
      device_communicator_(device_group_of(shared, *set_, 0)),
      planned_device_(device_group_of(shared, *set_, 1)),
      executor_(
          shared.fabric->transport.get(),
          {&communicator_, &device_communicator_, &planned_, &planned_device_},
          last_words_of(shared, *set_, group_of(config, shared, *set_)), shared.recorder,
          shared.flight, set_->id,
          {[this](Request* request, const Status& status) {
             shared_.finisher->finish(request, status);
           },
           [this](plan::OpHandle handle, const Status& status) { complete(handle, status); }}),
      negotiator_(config, group_info_of(*shared.membership, *set_)),
      last_words_(set_->ranks.size()) {
  communicator_.on_measured([this](const CollectiveDesc& desc, int64_t bytes, int64_t ns) {
    negotiator_.on(
        event::Measured{desc.kind, bytes, static_cast<uint32_t>(desc.protocol), ns, Clock::now()});
  });
  if (set_->id != 0) shared_.flight->members(set_->id, set_->ranks);
  planned_.watch(&late_);
}

GroupEngine::News GroupEngine::take_news() {
  has_news_ = false;
  return std::exchange(news_, {});
}

void GroupEngine::fail(const Status& verdict) {
  if (!news_.fatal) news_.fatal = verdict;
  has_news_ = true;
}

// ---- operations ----

bool GroupEngine::take(Request* request, Time now) {
  if (leaving_ && set_->id != 0) {
    shared_.finisher->finish(
        request,
        cancelled(set_->describe() + " is used no more: it was removed, or rueda shut down"));
    return true;
  }
  if (refuse_capture(request)) return true;
  if (request->announcement.kind == CollectiveKind::kJoin && shared_.queue->has_waiting(*set_)) {
    join_ = request;
    return true;
  }
  request->since = now;
  request->seen_blocked = false;
  const bool by_id = !request->ready.captured && !leaving_;
  const bool known = request->id && negotiator_.knows(*request->id);
  if (by_id && !known) request->id = negotiator_.id_of(request->announcement);
  if (by_id && request->id) {
    const int64_t planned = negotiator_.planned_submissions();
    negotiator_.on(
        event::SubmitCached{*request->id, &request->announcement, plan::OpHandle(request), now});
    perform();
    // Channels are moved on by whoever drives; messages begin their way in a round.
    return negotiator_.planned_submissions() == planned || !planned_.shares_memory();
  }
  hold(request);
  negotiator_.on(event::Submit{&request->announcement, plan::OpHandle(request), now});
  perform();
  return true;
}

// A capture must not depend on what ranks agree on while it lasts: only what a plan has fixed
// before can be captured. One rank agrees with itself.
bool GroupEngine::refuse_capture(Request* request) {
  if (!request->ready.captured || set_->size() == 1) return false;
  if (negotiator_.follows(request->announcement)) return false;
  shared_.finisher->finish(
      request,
      failed_precondition(
          "its stream is being captured into a CUDA graph, and it is in no step plan: run the "
          "same step before the capture, with the same names and shapes, on all ranks, until "
          "planned_batches counts it (some ten times, more where other steps came before)"));
  return true;
}

// Before the queue is taken: what a blocked thread started before is then in it.
void GroupEngine::look_for_blocked() {
  for (Request* const request : held_) {
    if (request->awaited()) request->seen_blocked = any_blocked_ = true;
  }
}

bool GroupEngine::tell(Time now) {
  if (join_ != nullptr && !shared_.queue->has_waiting(*set_))
    take(std::exchange(join_, nullptr), now);
  if (std::exchange(any_blocked_, false)) {
    for (Request* const request : held_) {
      if (std::exchange(request->seen_blocked, false))
        negotiator_.on(event::Awaited{request->announcement.name});
    }
  }
  negotiator_.on(event::Flush{now});
  return perform();
}

// ---- news from others ----

void GroupEngine::on_message(Rank from, std::string_view message, Time now) {
  const std::optional<Rank> place = set_->place_of(from);
  if (!place) {
    return fail(
        Status(Code::kDataLoss, shared_.membership->name(from) + " speaks in " + set_->describe())
            .with_rank(from));
  }
  if (wire::is_last_word(message)) return hear_last_word(*place, message);
  negotiator_.on(event::Message{*place, message, now});
  perform();
}

void GroupEngine::hear_last_word(Rank place, std::string_view message) {
  wire::LastWord word;
  const Status read = wire::decode(message, &word);
  if (!read.ok()) {
    const Rank from = set_->ranks[static_cast<size_t>(place)];
    return fail(read.with_message("damaged message from " + shared_.membership->name(from) + ": " +
                                  read.message())
                    .with_rank(from));
  }
  executor_.hear_last_word(place, word.generation, word.entered);
}

void GroupEngine::on_peer_left(Rank peer, Time now) {
  const std::optional<Rank> place = set_->place_of(peer);
  if (!place) return;
  negotiator_.on(event::PeerLeft{*place, now});
  perform();
}

// What the follower of the plan in force has to know.
plan::Progress GroupEngine::progress() {
  if (!negotiator_.planning()) return {};
  for (size_t place = 0; place < last_words_.size(); ++place)
    last_words_[place] = executor_.last_word(static_cast<Rank>(place));
  return {executor_.finished(), executor_.starting(), last_words_};
}

bool GroupEngine::step(Time now) {
  negotiator_.on(
      event::Tick{now, progress(), negotiator_.stalls_due(now) ? shared_.flight->mail() : ""});
  bool moved = perform();
  moved |= executor_.advance();
  if (!executor_.failure().ok()) fail(executor_.failure());
  return moved;
}

void GroupEngine::split(uint64_t place, const ProcessSet& set, GroupEngine* part) {
  auto made = std::make_shared<nccl::SplitPart>();
  if (part != nullptr) part->device_communicator_.use_part(made);
  executor_.run(device_communicator_.split(place, set.place, set.describe(), std::move(made)));
}

// ---- the end ----

void GroupEngine::leave(Time now) {
  leaving_ = true;
  negotiator_.on(event::Leave{now});
  perform();
}

void GroupEngine::finish_join(const Status& status) {
  if (join_ != nullptr) shared_.finisher->finish(std::exchange(join_, nullptr), status);
}

bool GroupEngine::drop(const Status& status) {
  finish_join(status);
  if (negotiator_.idle()) return false;
  negotiator_.on(event::Drop{status});
  perform();
  return true;
}

void GroupEngine::break_down(const Status& verdict) {
  finish_join(verdict);
  communicator_.abandon();
  planned_.abandon();
  device_communicator_.abandon();
  planned_device_.abandon();
  for (const plan::OpHandle handle : executor_.fail_all(verdict)) finish(handle, verdict);
  negotiator_.on(event::BreakDown{verdict});
  perform();
}

void GroupEngine::add_to(counters::Values* totals) const {
  const Executor::Totals& done = executor_.totals();
  totals->batches += done.batches;
  totals->planned_batches += done.planned_batches;
  totals->tensors += done.tensors;
  totals->fused_tensors += done.fused_tensors;
  totals->cached_tensors += negotiator_.cached_submissions() + negotiator_.planned_submissions();
  totals->cache_evictions += negotiator_.evictions();
  totals->plans += negotiator_.plans();
  totals->revocations += negotiator_.revocations();
  shm::Channel::Bytes channels = communicator_.channel_totals();
  channels += planned_.channel_totals();
  totals->bytes_reduced += static_cast<int64_t>(channels.total);
  totals->bytes_in_place += static_cast<int64_t>(channels.in_place);
  totals->bytes_cma += static_cast<int64_t>(channels.cma);
  add_registered(device_communicator_.registered(), totals);
  add_registered(planned_device_.registered(), totals);
}

// ---- what waits for its answer ----

Request* GroupEngine::take_back(plan::OpHandle handle) {
  auto* const request = handle.as<Request>();
  unhold(request);
  return request;
}

void GroupEngine::finish(plan::OpHandle handle, const Status& status) {
  Request* const request = take_back(handle);
  if (request->announcement.kind == CollectiveKind::kProcessSet) {
    news_.change_failed = status;
    has_news_ = true;
  }
  shared_.finisher->finish(request, status);
}

// A planned batch has run.
void GroupEngine::complete(plan::OpHandle handle, const Status& status) {
  auto* const request = handle.as<Request>();
  if (!request->persistent || !status.ok()) return finish(handle, status);
  unhold(request);
  request->end_again();
}

void GroupEngine::hold(Request* request) {
  if (request->held != Request::kNotHeld) return;
  if (held_.size() == held_.capacity()) {
    // For all that there are: a later step may hold back more, and a steady one allocates nothing.
    held_.reserve(std::max({2 * held_.size(), negotiator_.known_tensors(), size_t{16}}));
  }
  request->held = held_.size();
  held_.push_back(request);
}

void GroupEngine::unhold(Request* request) {
  if (request->held == Request::kNotHeld) return;
  held_.back()->held = request->held;
  held_[request->held] = held_.back();
  held_.pop_back();
  request->held = Request::kNotHeld;
}

// Can all members read each other's private memory? Each says so in its arena (Coordinator).
void GroupEngine::look_for_cma() {
  if (cma_known_ || !planned_.shares_memory() || *set_->place != negotiation::Negotiator::kRoot)
    return;
  bool able = true;
  for (const auto& arena : arenas_) {
    const uint32_t answer = arena->channel(0)->has_cma.load(std::memory_order_acquire);
    if (answer == host::ChannelControl::kUntried) return;
    able = able && answer == host::ChannelControl::kHasCma;
  }
  cma_known_ = true;
  negotiator_.on(event::CmaAvailable{able});
}

}  // namespace rueda::engine
