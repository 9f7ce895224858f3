// Process sets come and go. A change is agreed on by all ranks like a collective of the global set,
// so that all make it at one point of the response stream:
//
//   add      asked --all agree--> the table and the group are made, the request ends
//   remove   asked --all agree--> the members leave the set's group, as at a shutdown: what has
//            begun ends, the rest gets an error --> asked again --all have left--> all is free
//
// Why a new set's channels may be used at once: a batch runs only after every member has sent a
// request in the set, and a member does so after it has zeroed its channels here.
#include <algorithm>
#include <string>
#include <utility>

#include "runtime/engine/coordinator.h"

namespace rueda::engine {
namespace {

using Clock = std::chrono::steady_clock;

bool has_channels(const membership::HostMemory& memory, const ProcessSet& set) {
  return set.place && set.channels && set.size() > 1 && memory.has_some(set.ranks);
}

}  // namespace

Status Coordinator::form_sets(const std::vector<std::vector<int32_t>>& sets) {
  for (const std::vector<int32_t>& ranks : sets) {
    const std::vector<int64_t> wanted(ranks.begin(), ranks.end());
    const auto planned = sets_->plan(wanted);
    if (!planned.ok()) continue;
    if (has_channels(memory_, *planned.value()))
      RUEDA_RETURN_IF_ERROR(memory_.own()->reserve_first_channels(*planned.value()->channels));
    const ProcessSetPtr set = sets_->add(wanted);
    newest_serial_ = set->serial;
    if (set->place) open_group(set, Clock::now());
  }
  return {};
}

void Coordinator::begin_change(Request* request) {
  wire::Request& asked = request->announcement;
  quiet_ = false;
  change_ = Change{};
  if (asked.root < 0) {
    // What the others have to know before they agree.
    const auto planned = sets_->plan(asked.splits);
    if (planned.ok() && has_channels(memory_, *planned.value())) {
      const Status reserved = memory_.own()->reserve_channels(*planned.value()->channels);
      if (!reserved.ok()) asked.layout = reserved.message();
      change_->reserved = planned.value()->channels;
    }
  }
  global().take(request, Clock::now());
  hear(&global());
}

void Coordinator::take_agreed(GroupEngine::AgreedChange change) {
  if (change_ && change_->stage == Change::Stage::kAsked) {
    change_->stage = Change::Stage::kAgreed;
    change_->request = change.request;
    change_->split = change.split;
  } else {
    if (change_) change_->stage = Change::Stage::kEnded;
    finisher_.finish(change.request, {});  // ask_for_end's
  }
  quiet_ = false;
}

bool Coordinator::advance_change(Time now) {
  switch (change_->stage) {
    case Change::Stage::kAgreed:
      change_->request->announcement.root < 0 ? add_set(now) : remove_set(now);
      return true;
    case Change::Stage::kLeaving: {
      GroupEngine* const group = change_->set->group;
      if (!group->root_left()) return false;
      group->drop(
          cancelled(change_->set->describe() + " was removed before every rank had submitted it"));
      hear(group);
      if (!group->is_idle()) return false;
      ask_for_end();
      return true;
    }
    case Change::Stage::kEnded:
      close_group(change_->set);
      sets_->remove(change_->set);
      end_change({});
      return true;
    case Change::Stage::kAsked:
    case Change::Stage::kEnding: return false;
  }
  return false;
}

// Agreed on; whether it is possible follows from the table, so alike on all ranks.
void Coordinator::add_set(Time now) {
  const wire::Request& request = change_->request->announcement;
  const auto planned = sets_->plan(request.splits);
  const Status possible = !planned.ok() ? planned.status()
                          : request.layout.empty()
                              ? Status()
                              : Status(Code::kResourceExhausted, request.layout);
  if (!possible.ok()) {
    if (change_->split) global().skip_split(*change_->split);
    return end_change(possible);
  }
  const ProcessSetPtr set = sets_->add(request.splits);
  newest_serial_ = set->serial;
  if (set->place) open_group(set, now);
  if (change_->split) global().split(*change_->split, *set, set->group);
  change_->request->set_result(set->id);
  end_change({});
  std::vector<Early> early = std::exchange(early_, {});
  early_bytes_ = 0;
  for (Early& message : early) on_control(message.peer, message.message);
}

void Coordinator::remove_set(Time now) {
  const int32_t id = change_->request->announcement.root;
  if (id == 0) return end_change(invalid_argument("the global process set cannot be removed"));
  const auto found = sets_->find(static_cast<uint32_t>(id));
  if (!found.ok()) return end_change(found.status());
  change_->set = found.value();
  sets_->close(change_->set);
  if (!change_->set->place) return ask_for_end();
  change_->stage = Change::Stage::kLeaving;
  ProcessSet* const set = change_->set.get();
  for (const RequestPtr& waiting : queue_->take_waiting(set))
    finisher_.finish(waiting.get(), cancelled(set->describe() + " was removed"));
  set->group->leave(now);
  hear(set->group);
}

// This rank has left the set.
void Coordinator::ask_for_end() {
  change_->stage = Change::Stage::kEnding;
  const auto end = std::make_shared<Request>(change_->request->title());
  end->set = sets_->global();
  end->announcement = change_->request->announcement;
  end->announcement.name = negotiation::kChangeEndName;
  (void)end->claim();  // it has no name that another could have
  global().take(end.get(), Clock::now());
  hear(&global());
}

void Coordinator::end_change(const Status& status) {
  if (!change_) return;
  Change change = std::move(*change_);
  change_.reset();
  if (!status.ok() && change.reserved) memory_.own()->release_channels(*change.reserved);
  if (change.request != nullptr) finisher_.finish(change.request, status);
}

void Coordinator::open_group(const ProcessSetPtr& set, Time now) {
  const GroupEngine::Shared shared{&membership_, &fabric_,  &memory_,     machine_, queue_.get(),
                                   &finisher_,   recorder_, &round_mark_, flight_,  &late_};
  groups_.push_back(std::make_unique<GroupEngine>(config_, shared, set));
  set->group = groups_.back().get();
  for (const Rank peer : left_) {
    set->group->on_peer_left(peer, now);
    hear(set->group);
  }
}

void Coordinator::close_group(const ProcessSetPtr& set) {
  if (set->group == nullptr) return;
  set->group->add_to(&past_);
  const GroupEngine* const closed = std::exchange(set->group, nullptr);
  groups_.erase(std::find_if(groups_.begin(), groups_.end(),
                             [&](const auto& group) { return group.get() == closed; }));
  if (has_channels(memory_, *set)) memory_.own()->release_channels(*set->channels);
}

}  // namespace rueda::engine
