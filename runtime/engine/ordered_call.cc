// A call in an ordered group, from its start to its end.
#include "runtime/engine/ordered_call.h"
#include "collectives/host/monotonic.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "proto/negotiation_codec.h"

namespace rueda::engine {
namespace {

using negotiation::GroupEntry;

void append(std::string* text, uint64_t number) {
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  text->append(digits, end);
}

// "key#17"
std::string which(const ProcessSet& set, uint64_t number) {
  std::string text = set.key + "#";
  append(&text, number);
  return text;
}

bool has_result(const wire::Request& asked, Rank rank) {
  const bool is_roots =
      asked.kind == CollectiveKind::kReduce || asked.kind == CollectiveKind::kGather;
  return !is_roots || asked.root == rank;
}

}  // namespace

OrderedGroup::CallPtr OrderedGroup::make_call() {
  if (free_calls_.empty()) return std::make_unique<Call>();
  CallPtr call = std::move(free_calls_.back());
  free_calls_.pop_back();
  return call;
}

void OrderedGroup::take(Request* request, Time now) {
  request->since = now;
  const CollectiveKind kind = request->announcement.kind;
  if (is_point_to_point(kind)) {
    if (!refuse_capture({&request, 1})) take_message(request);
    return;
  }
  forming_.push_back(request);
  if (forming_.size() < forming_.front()->in_call) return;
  if (refuse_capture(forming_)) return forming_.clear();
  CallPtr call = make_call();
  call->members.swap(forming_);
  call->number = next_++;
  if (limit_ && call->number >= limit_->number) return end(std::move(call), limit_->status);
  begin(std::move(call));
}

// What a capture holds must not depend on what members tell each other while it lasts. It does not
// count as a call.
bool OrderedGroup::refuse_capture(std::span<Request* const> requests) {
  const bool is_captured = std::any_of(requests.begin(), requests.end(),
                                       [](const Request* r) { return r->ready.captured; });
  if (!is_captured || members_.size() == 1) return false;
  const Status refused = failed_precondition(
      "its stream is being captured into a CUDA graph, which no call of a group can be part of: "
      "use operations with names, which come in a step plan");
  for (Request* request : requests) shared_.finisher->finish(request, refused);
  return true;
}

void OrderedGroup::take_message(Request* request) {
  if (failed_) return shared_.finisher->finish(request, limit_->status);
  const Member* const peer = member(request->peer);  // null: a receive from anybody
  if (peer != nullptr && peer->gone && !peer->number && peer->rank != shared_.membership->rank) {
    return shared_.finisher->finish(
        request, cancelled(name(peer->rank) + " has shut down").with_rank(peer->rank));
  }
  const bool sends = request->announcement.kind == CollectiveKind::kSend;
  request->announcement.name = std::string(sends ? "send." : "recv.") + set_->key + "." +
                               (peer == nullptr ? "any" : std::to_string(request->peer)) + "." +
                               std::to_string(request->tag);
  request->flight = shared_.flight->submitted(request->announcement, flight_set_, request->site,
                                              flight::Path::kDirect, request->peer);
  messages_.start(request, peer == nullptr ? std::nullopt : peer->number);
  if (peer == nullptr && alone_) messages_.fail_unmatched(*alone_);
}

// Its name says to all who look on which call it is, on every member.
void OrderedGroup::begin(CallPtr call) {
  for (Request* member : call->members) member->announcement.name.clear();  // of an earlier start
  call->asked = cache_.take(call->members);
  for (Request* member : call->members) {
    std::string& text = member->announcement.name;
    text += name_of(member->announcement.kind);
    text += '.';
    text += set_->key;
    text += '#';
    append(&text, call->number);
    member->flight = shared_.flight->submitted(member->announcement, flight_set_, member->site,
                                               flight::Path::kDirect);
    if (shared_.life) {
      shared_.life->submitted(member->announcement.name, member->since.time_since_epoch().count());
    }
  }
  if (connected_) {
    enter(std::move(call));
  } else {
    waiting_.push_back(std::move(call));
  }
}

// For calls that are under way at once; more are made when there are more for the first time.
Status OrderedGroup::make_room(size_t calls) {
  for (auto* const list : {&entering_, &running_, &free_calls_}) list->reserve(4 * calls);
  free_entries_.reserve(4 * calls);
  while (free_calls_.size() < calls) free_calls_.push_back(std::make_unique<Call>());
  while (free_entries_.size() < calls) {
    auto entry = std::make_unique<Entry>();
    entry->all.resize(members_.size());
    CollectiveDesc desc;
    desc.kind = CollectiveKind::kAllgather;
    desc.counts.assign(members_.size(), sizeof(GroupEntry));
    RUEDA_ASSIGN_OR_RETURN(entry->exchange, entries_->init(std::move(desc)));
    entry->exchange->tensors()[0].in = reinterpret_cast<const std::byte*>(&entry->own);
    entry->exchange->tensors()[0].out = reinterpret_cast<std::byte*>(entry->all.data());
    free_entries_.push_back(std::move(entry));
  }
  return {};
}

void OrderedGroup::enter(CallPtr call) {
  if (free_entries_.empty()) failure_ = make_room(1);
  if (!failure_.ok()) return end(std::move(call), failure_);
  call->entry = std::move(free_entries_.back());
  free_entries_.pop_back();
  call->entry->own = call->asked->entry;
  call->entry->own.flags |= memory_flags(*call);
  call->entry->exchange->start({});
  entering_.push_back(std::move(call));
}

bool OrderedGroup::advance() {
  if (!failure_.ok()) return false;
  bool moved = !messages_.empty() && messages_.advance();
  failure_ = messages_.failure().ok() ? devices_.health() : messages_.failure();
  if (!failure_.ok()) return true;
  if (failed_ && !running_.empty()) {
    if (!nobody_touches_memory()) return moved;
    drop_running();
    moved = true;
  }
  if (connected_ && busy()) {
    moved |= entries_->progress();
    for (const CallPtr& call : entering_) {
      Collective& exchange = *call->entry->exchange;
      if (!exchange.done()) moved |= exchange.advance();
      if (exchange.done() && !exchange.status().ok()) failure_ = exchange.status();
    }
    while (failure_.ok() && !entering_.empty() && agree_on_next()) moved = true;
    if (!failure_.ok()) return true;
    if (!abandoned_) moved |= data_->progress();
    for (size_t i = 0; i < running_.size();) {
      CallSteps& prepared = *running_[i]->prepared;
      for (const CallSteps::Step& step : prepared.steps)
        if (!step.collective->done()) moved |= step.collective->advance();
      failure_ = prepared.failure();
      if (!failure_.ok()) return true;
      if (!prepared.done()) {
        ++i;
        continue;
      }
      CallPtr ended = std::move(running_[i]);
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
      end(std::move(ended), prepared.status());
      moved = true;
    }
    if (limit_ && devices_.idle() && entering_.empty() && !running_.empty() &&
        running_.front()->number >= limit_->number) {
      drop_running();
      moved = true;
    }
  }
  const bool is_at_its_end = (closing_ || leaving_) && !bye_said_ && !busy() && waiting_.empty() &&
                             forming_.empty() && (leaving_ || messages_.empty()) && devices_.idle();
  if (is_at_its_end) say_bye();
  return moved || is_at_its_end;
}

// The first of those that are entering. False: it cannot go on yet.
bool OrderedGroup::agree_on_next() {
  Call* const call = entering_.front().get();
  Result<CallSteps*> agreed = nullptr;
  if (call->asking != nullptr) {
    call->asking->advance();
    if (!call->asking->done()) return false;
    failure_ = call->asking->status();
    if (!failure_.ok()) return true;
    hear_answers(call);
  }
  if (call->telling == nullptr) {
    if (!call->entry->exchange->done()) return false;
    agreed = agree_by_entries(call);
    if (agreed.ok() && *agreed == nullptr) {
      failure_ = begin_telling(call);
      return true;
    }
  } else {
    if (!call->telling->done()) call->telling->advance();
    if (!call->telling->done()) return false;
    failure_ = call->telling->status();
    if (!failure_.ok()) return true;
    agreed = agree_by_telling(call);
  }
  if (agreed.ok() && (*agreed)->needs_buffers && buffers_ == Buffers::kUnasked) {
    KnownCalls::give_back(call->asked, *agreed);
    failure_ = begin_asking(call);
    return true;
  }
  CallPtr owned = std::move(entering_.front());
  entering_.erase(entering_.begin());
  ++agreed_;
  call->telling.reset();
  free_entries_.push_back(std::move(call->entry));
  if (!agreed.ok()) {
    end(std::move(owned), agreed.status());
    return true;
  }
  call->prepared = *agreed;
  failure_ = run(call);
  if (call->prepared->steps.empty()) {
    end(std::move(owned), {});  // its entry was the barrier
  } else {
    running_.push_back(std::move(owned));
  }
  return true;
}

// Null: the members have to tell more.
Result<CallSteps*> OrderedGroup::agree_by_entries(Call* call) {
  const std::vector<GroupEntry>& all = call->entry->all;
  if (CallSteps* const found = KnownCalls::find(call->asked, all)) return found;
  const Rank root = set_->place_of(call->asked->first().root).value_or(0);
  const auto sizes = negotiation::sizes_by_entries(call->asked->tensors, root, all);
  if (!sizes) return nullptr;
  return cache_.prepare(call->asked, all, *sizes, protocol_of(*call), communicators_of(*call));
}

KnownCalls::Communicators OrderedGroup::communicators_of(const Call& call) {
  if (call.asked->on_gpu()) return {devices_.of_all(set_->ranks, lowest_number()), nullptr};
  return {data_.get(), by_messages_.get()};
}

Status OrderedGroup::begin_telling(Call* call) {
  CollectiveDesc desc;
  desc.kind = CollectiveKind::kAllgather;
  int64_t total = 0;
  for (const GroupEntry& entry : call->entry->all) {
    if (entry.call_bytes > wire::kMaxMessageBytes)
      return {Code::kDataLoss, "damaged entry in " + set_->describe()};
    desc.counts.push_back(entry.call_bytes);
    total += entry.call_bytes;
  }
  call->told.resize(static_cast<size_t>(total));
  RUEDA_ASSIGN_OR_RETURN(call->telling, data_->init(std::move(desc)));
  call->telling->tensors()[0].in = reinterpret_cast<const std::byte*>(call->asked->told.data());
  call->telling->tensors()[0].out = call->told.data();
  call->telling->start({});
  return {};
}

Result<CallSteps*> OrderedGroup::agree_by_telling(Call* call) {
  std::vector<wire::GroupCall> calls;
  const char* at = reinterpret_cast<const char*>(call->told.data());
  for (const GroupEntry& entry : call->entry->all) {
    RUEDA_RETURN_IF_ERROR(
        wire::decode(std::string_view(at, entry.call_bytes), &calls.emplace_back()));
    at += entry.call_bytes;
  }
  const auto sizes = negotiation::agree_on_call(calls, set_->ranks, which(*set_, call->number));
  if (!sizes.ok()) return sizes.status().naming_operation();
  return cache_.prepare(call->asked, {}, sizes.value(), protocol_of(*call),
                        communicators_of(*call));
}

// An error: a GPU has no memory for a result.
Status OrderedGroup::run(Call* call) {
  call->begun = shared_.flight->stats().batch_begun();
  call->running = true;
  call->recorded = shared_.recorder->on();
  call->times = {};
  if (call->recorded) call->range = shared_.recorder->batch_begun(call->begun, call->members);
  for (const Request* member : call->members)
    shared_.flight->started(member->flight, call->number + 1, call->begun);
  const bool on_gpu = call->prepared->on_gpu;
  nccl::DeviceCommunicator* const device =
      on_gpu ? devices_.of_all(set_->ranks, lowest_number()) : nullptr;
  if (on_gpu) given_ = call->number + 1;
  for (CallSteps::Step& step : call->prepared->steps) {
    for (size_t i = 0; i < step.tensors.size(); ++i) {
      Request* const member = call->members[step.tensors[i]];
      const TensorResult& result = call->prepared->results[step.tensors[i]];
      Part& part = step.collective->tensors()[i];
      if (!has_result(member->announcement, shared_.membership->rank)) {
        member->out = nullptr;
        if (on_gpu) {  // NCCL asks for none
          part = {member->in, nullptr, part.count};
          continue;
        }
      }
      RUEDA_RETURN_IF_ERROR(place_memory(member, result, device, &part));
    }
    if (on_gpu) {
      step.order.device = call->members[step.tensors.front()]->device;
      for (const size_t tensor : step.tensors)
        cuda::add_mark(&step.order.ready, call->members[tensor]->ready);
    }
    step.collective->start(
        {call->recorded ? &call->times : nullptr, on_gpu ? &step.order : nullptr});
    if (step.tensors.size() > 1) totals_.fused_tensors += static_cast<int64_t>(step.tensors.size());
  }
  totals_.batches += static_cast<int64_t>(std::max(call->prepared->steps.size(), size_t{1}));
  totals_.tensors += static_cast<int64_t>(call->members.size());
  return {};
}

// What its members' ends lead to comes through the queue.
void OrderedGroup::end(CallPtr call, const Status& status) {
  count(*call, status.ok());
  call->running = false;
  if (call->recorded && status.ok()) record(*call);
  if (call->recorded && !status.ok())
    shared_.recorder->batch_dropped(host::monotonic_ns(), call->range);
  call->recorded = false;
  if (call->prepared != nullptr) {
    if (call->prepared->on_gpu) see_device_ends(call.get());
    KnownCalls::give_back(call->asked, call->prepared);
  }
  call->prepared = nullptr;
  for (Request* const member : call->members) shared_.finisher->finish(member, status);
  call->members.clear();
  if (call->entry != nullptr) {
    dropped_.push_back(std::move(call));  // a channel may still know its exchange
    return;
  }
  if (call->asked != nullptr) cache_.give_back(call->asked);
  call->asked = nullptr;
  free_calls_.push_back(std::move(call));
}

// Also where another step of the call has been refused: the memory is in use until then.
void OrderedGroup::see_device_ends(Call* call) {
  for (CallSteps::Step& step : call->prepared->steps) {
    for (const size_t tensor : step.tensors) call->members[tensor]->set_device_end(step.order.done);
    step.order.ready.clear();
    step.order.done = nullptr;
  }
}

void OrderedGroup::count(const Call& call, bool well) {
  stats::Stats& stats = shared_.flight->stats();
  if (call.running && !well) return stats.batch_dropped();
  if (!well || call.members.empty()) return;
  const CollectiveKind kind = call.members.front()->announcement.kind;
  if (call.running)
    stats.batch_ended(kind, call.begun, call.members.size(), bytes_of(call.members), false);
  else
    stats.message_ended(kind, 0);  // its entry was all there was of it
}

void OrderedGroup::record(const Call& call) {
  const int64_t bytes = bytes_of(call.members);
  timeline::BatchRun run{{0, call.number, flight_set_},
                         call.members.front()->announcement.kind,
                         bytes,
                         call.begun,
                         call.times,
                         host::monotonic_ns()};
  if (run.stages.met == 0 && bytes > 0) run.stages.wire = {run.begun, run.ended};
  shared_.recorder->batch_ended(run, call.members.size(), call.range);
  for (Request* member : call.members) shared_.recorder->member(member, run);
}

}  // namespace rueda::engine
