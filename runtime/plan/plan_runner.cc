#include "runtime/plan/plan_runner.h"

#include <utility>

#include "runtime/batch_runner.h"
#include "runtime/process_set.h"

namespace rueda::runtime {
namespace {

constexpr int kGenerationShift = 40;

Pending& pending_of(Ticket ticket) { return *static_cast<Pending*>(ticket); }

}  // namespace

PlanRunner::PlanRunner(Rank rank, communicator::Lane* lane, size_t lane_number,
                       std::vector<std::shared_ptr<transport::Arena>> arenas,
                       std::vector<transport::Ringer> ringers, timeline::Recorder* recorder,
                       flight::FlightRecorder* flight, uint32_t process_set, Complete complete)
    : rank_(rank),
      lane_(lane),
      lane_number_(lane_number),
      arenas_(std::move(arenas)),
      ringers_(std::move(ringers)),
      recorder_(recorder),
      flight_(flight),
      process_set_(process_set),
      complete_(std::move(complete)) {}

std::atomic<uint64_t>& PlanRunner::word(Rank rank) const {
  return arenas_[static_cast<size_t>(rank)]->lane(lane_number_)->last_word;
}

void PlanRunner::prepare(Batch* batch, const PlannedBatch& planned,
                         const std::vector<const wire::Request*>& requests, size_t first) {
  const wire::Request& request = *requests[first];
  const auto size = static_cast<Rank>(arenas_.size());
  communicator::Job& job = batch->job;
  job.kind = planned.kind;
  job.road = static_cast<communicator::Road>(planned.road);
  job.root = request.root;
  const bool moves = planned.kind == CollectiveKind::kBroadcast;
  if (!moves) {
    job.dtype = request.dtype;
    job.op = request.reduce_op;
    job.scaling = scaling_of(request, size);
  }
  for (size_t i = 0; i < planned.slots.size(); ++i) {
    const wire::Request& member = *requests[first + i];
    const int64_t unit = moves ? static_cast<int64_t>(size_of(member.dtype)) : 1;
    job.parts.push_back({nullptr, nullptr, element_count(member.shape) * unit});
  }
  if (planned.kind == CollectiveKind::kReducescatter) {
    job.counts = share_counts(request.shape, size);
  }
  batch->tickets.reserve(planned.slots.size());
  lane_->prepare(&job);
}

void PlanRunner::begin(const StepPlan& plan, const std::vector<const wire::Request*>& requests) {
  generation_ = plan.generation;
  taken_ = 0;
  ended_ = 0;
  lane_->begin_generation(plan.generation);
  plan_.clear();
  const uint64_t templates =
      flight_->plan(requests, process_set_, static_cast<uint32_t>(plan.generation));
  size_t first = 0;
  for (const PlannedBatch& planned : plan.batches) {
    plan_.push_back(std::make_unique<Batch>());
    prepare(plan_.back().get(), planned, requests, first);
    plan_.back()->templates = templates + first;
    first += planned.slots.size();
  }
}

void PlanRunner::enter(std::span<const Ticket> tickets) {
  const uint64_t number = taken_++;
  Batch& batch = at(number);
  batch.tickets.assign(tickets.begin(), tickets.end());
  for (size_t i = 0; i < tickets.size(); ++i) {
    Submission& s = pending_of(tickets[i]).submission;
    batch.job.parts[i].in = s.in;
    batch.job.parts[i].out = s.out;
    if (pending_of(tickets[i]).prepared != nullptr) continue;
    flight_->planned(s.flight);
    Shape shape = batch.job.kind == CollectiveKind::kReducescatter
                      ? share_shape(s.request.shape, rank_, static_cast<Rank>(arenas_.size()))
                      : s.request.shape;
    batch.job.parts[i].out = s.work->set_output(s.out, std::move(shape), s.request.dtype, {});
  }
  batch.flight = flight_->entered(batch.templates, tickets.size(), number,
                                  timeline::nanos(pending_of(tickets.front()).since));
  batch.job.times = nullptr;
  batch.begun = 0;
  if (recorder_->on()) {
    batch.times = {};
    batch.job.times = &batch.times;
    batch.begun = communicator::stage_clock();
    recorder_->batch_begun(batch.begun);
    if (number % plan_.size() == 0) recorder_->cycle(batch.begun);
  }
  lane_->start(&batch.job);
}

bool PlanRunner::advance() {
  if (lane_->idle()) return false;
  bool moved = lane_->progress();
  while (ended_ < lane_->finished()) {
    end(&at(ended_), ended_);
    ++ended_;
    moved = true;
  }
  return moved;
}

void PlanRunner::record(Batch* batch, uint64_t number) {
  int64_t bytes = 0;
  for (const Ticket ticket : batch->tickets)
    bytes += bytes_of(pending_of(ticket).submission.request);
  const uint32_t set = pending_of(batch->tickets.front()).submission.set->id;
  const timeline::BatchRun run{{generation_, number, set}, batch->job.kind, bytes, batch->begun,
                               batch->times, communicator::stage_clock()};
  recorder_->batch_ended(run, batch->tickets.size());
  for (const Ticket ticket : batch->tickets) recorder_->member(&pending_of(ticket), run);
}

void PlanRunner::end(Batch* batch, uint64_t number) {
  if (batch->begun != 0) record(batch, number);
  flight_->finished(batch->flight, batch->tickets.size());
  ++batches_;
  tensors_ += static_cast<int64_t>(batch->tickets.size());
  if (batch->tickets.size() > 1) fused_tensors_ += static_cast<int64_t>(batch->tickets.size());
  for (const Ticket ticket : batch->tickets) complete_(ticket);
  batch->tickets.clear();
}

void PlanRunner::revoke() {
  lane_->stop_entering();
  const uint64_t last = generation_ << kGenerationShift | lane_->entered() << 1 | 1;
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

std::vector<Ticket> PlanRunner::withdraw(uint64_t first) {
  lane_->withdraw(first);
  return take_from(first);
}

std::vector<Ticket> PlanRunner::drop() { return take_from(ended_); }

// The tickets of batches that enter() took, from this number on.
std::vector<Ticket> PlanRunner::take_from(uint64_t first) {
  std::vector<Ticket> tickets;
  for (uint64_t number = first; number < taken_; ++number) {
    Batch& batch = at(number);
    if (!batch.tickets.empty()) flight_->finished(batch.flight, 0);
    tickets.insert(tickets.end(), batch.tickets.begin(), batch.tickets.end());
    batch.tickets.clear();
    if (batch.begun != 0) recorder_->batch_dropped(communicator::stage_clock());
    batch.begun = 0;
  }
  taken_ = std::min(taken_, first);
  return tickets;
}

}  // namespace rueda::runtime
