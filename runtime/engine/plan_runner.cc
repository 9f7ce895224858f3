#include "runtime/engine/plan_runner.h"

#include <utility>

#include "runtime/engine/batch_runner.h"
#include "runtime/engine/process_set.h"

namespace rueda::engine {
namespace {

constexpr int kGenerationShift = 40;

Pending& pending_of(plan::Ticket ticket) { return *static_cast<Pending*>(ticket); }

}  // namespace

PlanRunner::PlanRunner(Rank rank, shm::Channel* channel, size_t channel_number,
                       nccl::DeviceCommunicator* device,
                       std::vector<std::shared_ptr<host::Arena>> arenas,
                       std::vector<host::Ringer> ringers, timeline::Recorder* recorder,
                       flight::FlightRecorder* flight, uint32_t process_set, Complete complete)
    : rank_(rank),
      channel_(channel),
      channel_number_(channel_number),
      device_(device),
      arenas_(std::move(arenas)),
      ringers_(std::move(ringers)),
      recorder_(recorder),
      flight_(flight),
      process_set_(process_set),
      complete_(std::move(complete)) {}

std::atomic<uint64_t>& PlanRunner::word(Rank rank) const {
  return arenas_[static_cast<size_t>(rank)]->channel(channel_number_)->last_word;
}

void PlanRunner::prepare(Batch* batch, const plan::PlannedBatch& planned,
                         const std::vector<const wire::Request*>& requests, size_t first) {
  const wire::Request& request = *requests[first];
  const auto size = static_cast<Rank>(arenas_.size());
  if (request.device >= 0) batch->call = std::make_unique<DeviceCall>();
  shm::Job& job = batch->call ? batch->call->wanted : batch->job;
  job.kind = planned.kind;
  job.protocol = static_cast<shm::Protocol>(planned.protocol);
  job.root = request.root;
  const bool moves = planned.kind == CollectiveKind::kBroadcast;
  if (!moves) {
    job.dtype = request.dtype;
    job.op = request.reduce_op;
    job.scaling = scaling_of(request, size);
  }
  for (size_t i = 0; i < planned.ids.size(); ++i) {
    const wire::Request& member = *requests[first + i];
    const int64_t unit = moves ? static_cast<int64_t>(size_of(member.dtype)) : 1;
    job.parts.push_back({nullptr, nullptr, element_count(member.shape) * unit});
  }
  if (planned.kind == CollectiveKind::kReducescatter) {
    job.counts = shard_counts(request.shape, size);
  }
  batch->tickets.reserve(planned.ids.size());
  if (batch->call) batch->job.kind = CollectiveKind::kBroadcast;  // of nothing: ranks meet
  channel_->prepare(&batch->job);
}

void PlanRunner::begin(const plan::StepPlan& plan,
                       const std::vector<const wire::Request*>& requests) {
  generation_ = plan.generation;
  taken_ = 0;
  called_ = 0;
  ended_ = 0;
  channel_->begin_generation(plan.generation);
  plan_.clear();
  const uint64_t templates =
      flight_->plan(requests, process_set_, static_cast<uint32_t>(plan.generation));
  size_t first = 0;
  for (const plan::PlannedBatch& planned : plan.batches) {
    plan_.push_back(std::make_unique<Batch>());
    prepare(plan_.back().get(), planned, requests, first);
    plan_.back()->templates = templates + first;
    first += planned.ids.size();
  }
}

void PlanRunner::enter(std::span<const plan::Ticket> tickets) {
  const uint64_t number = taken_++;
  Batch& batch = at(number);
  batch.tickets.assign(tickets.begin(), tickets.end());
  shm::Job& job = batch.call ? batch.call->wanted : batch.job;
  for (size_t i = 0; i < tickets.size(); ++i) {
    Submission& s = pending_of(tickets[i]).submission;
    job.parts[i].in = s.in;
    job.parts[i].out = s.out;
    if (batch.call) cuda::add_mark(&batch.call->order.ready, s.ready);
    if (pending_of(tickets[i]).prepared != nullptr) continue;
    flight_->planned(s.flight);
    Shape shape = job.kind == CollectiveKind::kReducescatter
                      ? shard_shape(s.request.shape, rank_, static_cast<Rank>(arenas_.size()))
                      : s.request.shape;
    job.parts[i].out = give_output(&s, std::move(shape));
  }
  if (batch.call) batch.call->order.device = pending_of(tickets.front()).submission.device;
  batch.flight = flight_->entered(batch.templates, tickets.size(), number,
                                  timeline::nanos(pending_of(tickets.front()).since));
  batch.job.times = nullptr;
  batch.begun = 0;
  if (recorder_->on()) {
    batch.times = {};
    batch.job.times = &batch.times;
    batch.begun = stage_clock();
    recorder_->batch_begun(batch.begun);
    if (number % plan_.size() == 0) recorder_->cycle(batch.begun);
  }
  channel_->start(&batch.job);
}

// Where the result lies: given, or the work's own. Without memory on the GPU nothing runs.
std::byte* PlanRunner::give_output(Submission* s, Shape shape) {
  std::byte* given = s->out;
  if (given == nullptr && s->device >= 0) {
    const auto bytes = static_cast<size_t>(element_count(shape)) * size_of(s->request.dtype);
    auto memory = device_->allocate(s->device, bytes);
    if (memory.ok()) {
      given = memory.value()->data();
      s->work->keep_device_memory(std::move(memory).value());
    } else {
      device_failure_ = memory.status();
    }
  }
  return s->work->set_output(given, std::move(shape), s->request.dtype, {});
}

bool PlanRunner::advance() {
  if (device_failure_.ok()) device_failure_ = device_->health();
  if (idle()) return false;
  bool moved = channel_->progress();
  for (; called_ < channel_->finished(); ++called_, moved = true) {
    if (at(called_).call) call_device(&at(called_));
  }
  moved |= advance_calls();
  while (ended_ < called_ && (!at(ended_).call || at(ended_).call->task.done())) {
    end(&at(ended_), ended_);
    ++ended_;
    moved = true;
  }
  return moved;
}

void PlanRunner::DeviceCall::reset() {
  task = {};
  order.ready.clear();
  order.done = nullptr;
}

void PlanRunner::call_device(Batch* batch) {
  DeviceCall& call = *batch->call;
  device_->order_next(&call.order);
  call.task = device_task(batch);
}

Task PlanRunner::device_task(Batch* batch) {
  const shm::Job& job = batch->call->wanted;
  switch (job.kind) {
    case CollectiveKind::kBroadcast: {
      std::vector<BroadcastPart> parts;
      for (const Part& part : job.parts) parts.push_back({part.in, part.out, part.count});
      return device_->broadcast(job.root, std::move(parts));
    }
    case CollectiveKind::kReducescatter:
      return device_->reducescatter(job.parts[0].in, job.parts[0].out, job.counts, job.dtype,
                                    job.op, job.scaling);
    default: return device_->allreduce(job.parts, job.dtype, job.op, job.scaling);
  }
}

// Gives to NCCL what can be given without waiting.
bool PlanRunner::advance_calls() {
  bool moved = false;
  for (uint64_t number = ended_; number < called_ && device_failure_.ok(); ++number) {
    if (!at(number).call) continue;
    Task& task = at(number).call->task;
    if (task.done()) continue;
    moved |= task.advance();
    if (task.done() && !task.status().ok() && !nccl::is_refusal(task.status()))
      device_failure_ = task.status();
  }
  return moved;
}

void PlanRunner::record(Batch* batch, uint64_t number) {
  int64_t bytes = 0;
  for (const plan::Ticket ticket : batch->tickets)
    bytes += bytes_of(pending_of(ticket).submission.request);
  const uint32_t set = pending_of(batch->tickets.front()).submission.set->id;
  const CollectiveKind kind = batch->call ? batch->call->wanted.kind : batch->job.kind;
  const timeline::BatchRun run{
      {generation_, number, set}, kind, bytes, batch->begun, batch->times, stage_clock()};
  recorder_->batch_ended(run, batch->tickets.size());
  for (const plan::Ticket ticket : batch->tickets) recorder_->member(&pending_of(ticket), run);
}

void PlanRunner::end(Batch* batch, uint64_t number) {
  if (batch->begun != 0) record(batch, number);
  flight_->finished(batch->flight, batch->tickets.size());
  ++batches_;
  tensors_ += static_cast<int64_t>(batch->tickets.size());
  if (batch->tickets.size() > 1) fused_tensors_ += static_cast<int64_t>(batch->tickets.size());
  const Status status = batch->call ? batch->call->task.status() : Status();
  for (const plan::Ticket ticket : batch->tickets) {
    if (batch->call && status.ok())
      pending_of(ticket).submission.work->set_device_end(batch->call->order.done);
    complete_(ticket, status);
  }
  if (batch->call) batch->call->reset();
  batch->tickets.clear();
}

void PlanRunner::revoke() {
  channel_->stop_entering();
  const uint64_t last = generation_ << kGenerationShift | channel_->entered() << 1 | 1;
  if (word(rank_).exchange(last, std::memory_order_seq_cst) == last) return;
  for (size_t peer = 0; peer < ringers_.size(); ++peer) {
    if (static_cast<Rank>(peer) != rank_) ringers_[peer].ring();
  }
}

std::optional<uint64_t> PlanRunner::last_word(Rank rank) const {
  const uint64_t value = word(rank).load(std::memory_order_acquire);
  if (value >> kGenerationShift != generation_) return std::nullopt;
  return (value & ((uint64_t{1} << kGenerationShift) - 1)) >> 1;
}

std::vector<plan::Ticket> PlanRunner::withdraw(uint64_t first) {
  channel_->withdraw(first);
  return take_from(first);
}

std::vector<plan::Ticket> PlanRunner::drop() { return take_from(ended_); }

// The tickets of batches that enter() took, from this number on.
std::vector<plan::Ticket> PlanRunner::take_from(uint64_t first) {
  std::vector<plan::Ticket> tickets;
  for (uint64_t number = first; number < taken_; ++number) {
    Batch& batch = at(number);
    if (!batch.tickets.empty()) flight_->finished(batch.flight, 0);
    tickets.insert(tickets.end(), batch.tickets.begin(), batch.tickets.end());
    batch.tickets.clear();
    if (batch.call) batch.call->reset();
    if (batch.begun != 0) recorder_->batch_dropped(stage_clock());
    batch.begun = 0;
  }
  taken_ = std::min(taken_, first);
  called_ = std::min(called_, first);
  return tickets;
}

}  // namespace rueda::engine
