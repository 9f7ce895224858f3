#include "runtime/engine/executor.h"

#include <algorithm>
#include <utility>

#include "collectives/desc/tags.h"
#include "collectives/host/monotonic.h"
#include "runtime/engine/executor_batches.h"
#include "runtime/engine/process_set.h"

namespace rueda::engine {
Executor::Executor(transport::Transport* transport, const Communicators& communicators,
                   LastWords last_words, timeline::Recorder* recorder,
                   flight::FlightRecorder* flight, uint32_t process_set, Ends ends)
    : transport_(transport),
      on_(communicators),
      last_words_(std::move(last_words)),
      told_(static_cast<size_t>(communicators.negotiated->size())),
      recorder_(recorder),
      flight_(flight),
      process_set_(process_set),
      ends_(std::move(ends)) {}

Executor::~Executor() = default;

void Executor::count(size_t tensors) {
  ++totals_.batches;
  totals_.tensors += static_cast<int64_t>(tensors);
  if (tensors > 1) totals_.fused_tensors += static_cast<int64_t>(tensors);
}

// ---- what was negotiated ----

void Executor::launch(const wire::Response& response, std::vector<Request*> members,
                      const std::vector<SizesPtr>& sizes) {
  auto batch = std::make_unique<Negotiated>();
  batch->kind = response.kind;
  batch->members = std::move(members);
  batch->number = static_cast<uint64_t>(totals_.batches);
  batch->begun = flight_->stats().batch_begun();
  count(batch->members.size());
  std::vector<const wire::Request*> requests;
  for (size_t i = 0; i < batch->members.size(); ++i) {
    const Request& member = *batch->members[i];
    flight_->started(member.flight, batch->number + 1, batch->begun);
    requests.push_back(&member.announcement);
  }
  CollectiveDesc desc = describe(requests, sizes, size());
  desc.protocol = static_cast<ShmProtocol>(response.protocol);
  const Request& first = *batch->members.front();
  batch->on_device = first.announcement.device >= 0 && has_tensor(response.kind);
  Communicator* on = on_.negotiated;
  if (batch->on_device) {
    on = on_.negotiated_device;
    batch->order.device = first.device;
    for (const Request* member : batch->members) {
      // Refused there.
      if (member->device != on_.negotiated_device->device(member->device))
        batch->order.device = member->device;
      cuda::add_mark(&batch->order.ready, member->ready);
    }
  }
  // The agreement was the barrier.
  if (has_tensor(response.kind)) {
    auto made = on->init(std::move(desc));
    if (made.ok())
      batch->collective = std::move(made).value();
    else
      failure_ = made.status();
  }
  for (size_t i = 0; i < batch->members.size() && batch->collective && failure_.ok(); ++i) {
    failure_ = place_memory(batch->members[i], result_of(*requests[i], sizes[i], rank(), size()),
                            batch->on_device ? on_.negotiated_device : nullptr,
                            &batch->collective->tensors()[i]);
  }
  batch->recorded = recorder_->on();
  if (batch->recorded) batch->range = recorder_->batch_begun(batch->begun, batch->members);
  if (batch->collective && failure_.ok())
    batch->collective->start({batch->recorded ? &batch->times : nullptr, &batch->order});
  running_.push_back(std::move(batch));
}

void Executor::run(std::unique_ptr<Collective> collective) {
  collective->start({});
  own_.push_back(std::move(collective));
}

bool Executor::advance() {
  bool moved = on_.negotiated->progress();
  if (failure_.ok()) failure_ = on_.negotiated_device->health();
  if (!failure_.ok()) return true;
  moved |= advance_running();
  // Collectives start their work when they are first advanced; let the pipeline see it in this
  // round.
  moved |= on_.negotiated->progress();
  moved |= advance_messages();
  moved |= advance_plan();
  return moved;
}

bool Executor::advance_running() {
  bool moved = false;
  for (const auto& collective : own_) {
    moved |= collective->advance();
    if (collective->done() && !collective->status().ok()) failure_ = collective->status();
  }
  std::erase_if(own_, [](const auto& collective) { return collective->done(); });
  for (const auto& batch : running_) {
    if (batch->collective == nullptr) continue;
    moved |= batch->collective->advance();
    const Status& status = batch->collective->status();
    if (!batch->collective->done() || status.ok()) continue;
    if (batch->on_device && nccl::is_refusal(status)) continue;
    failure_ = status;
    return true;
  }
  for (auto it = running_.begin(); it != running_.end();) {
    if ((*it)->collective != nullptr && !(*it)->collective->done()) {
      ++it;
      continue;
    }
    const std::unique_ptr<Negotiated> ended = std::move(*it);
    it = running_.erase(it);
    end(ended.get(), ended->collective ? ended->collective->status() : Status());
    moved = true;
  }
  return moved;
}

void Executor::record(const Batch& batch, std::span<Request* const> members) {
  const int64_t bytes = bytes_of(members);
  timeline::BatchRun run{{batch.generation, batch.number, process_set_},
                         batch.kind,
                         bytes,
                         batch.begun,
                         batch.times,
                         host::monotonic_ns()};
  // Straight from and to the tensors: over sockets.
  if (run.stages.met == 0 && bytes > 0) run.stages.wire = {run.begun, run.ended};
  recorder_->batch_ended(run, members.size(), batch.range);
  for (Request* member : members) recorder_->member(member, run);
}

void Executor::end(Negotiated* batch, const Status& status) {
  const int64_t now = host::monotonic_ns();
  if (batch->recorded) record(*batch, batch->members);
  if (status.ok())
    flight_->stats().batch_ended(batch->kind, batch->begun, batch->members.size(),
                                 bytes_of(batch->members), false);
  else
    flight_->stats().batch_dropped();
  for (Request* member : batch->members) {
    flight_->ended(member->flight, now, status.ok());
    member->flight = 0;
    if (batch->on_device && status.ok()) member->set_device_end(batch->order.done);
    ends_.finish(member, status);
  }
}

// ---- point to point ----

void Executor::start(Request* message) {
  const wire::Request& asked = message->announcement;
  const auto bytes = static_cast<size_t>(bytes_of(asked));
  const transport::Tag tag = tags::of_message(message->tag_space, message->tag);
  // Both sides must name the same.
  const auto meta = message->agreed != 0 ? message->agreed : static_cast<uint16_t>(asked.dtype);
  Message& under_way = messages_.emplace_back();
  under_way.request = message;
  if (asked.kind == CollectiveKind::kSend) {
    transport_->send(&under_way.transfer, message->peer, tag, {message->in, bytes}, meta);
  } else {
    message->set_output(message->out, asked.shape, asked.dtype, {});
    transport_->recv(&under_way.transfer, message->peer, tag, {message->out, bytes}, meta);
  }
}

bool Executor::advance_messages() {
  bool moved = false;
  for (auto it = messages_.begin(); it != messages_.end();) {
    if (!it->transfer.done()) {
      ++it;
      continue;
    }
    std::list<Message> ended;
    ended.splice(ended.end(), messages_, it++);
    const Status& status = ended.front().transfer.status();
    Request* const request = ended.front().request;
    const wire::Request& asked = request->announcement;
    if (status.ok()) flight_->stats().message_ended(asked.kind, bytes_of(asked));
    ends_.finish(request, status);
    moved = true;
  }
  return moved;
}

void Executor::fail_messages(const Status& status) {
  std::list<Message> ended;
  ended.swap(messages_);
  for (Message& message : ended) {
    transport_->cancel(&message.transfer);
    ends_.finish(message.request, status);
  }
}

// ---- the end ----

std::vector<plan::OpHandle> Executor::fail_all(const Status& status) {
  own_.clear();
  for (const auto& batch : std::exchange(running_, {})) {
    batch->collective.reset();
    end(batch.get(), status);
  }
  return end_plan(ended_);
}

}  // namespace rueda::engine
