#include "runtime/engine/batch_runner.h"

#include <algorithm>
#include <string>

#include "runtime/engine/process_set.h"

namespace rueda::engine {
namespace {

Task nothing() { co_return Status(); }
Task failed(Status status) { co_return status; }

}  // namespace

int64_t bytes_of(const wire::Request& r) {
  if (!has_tensor(r.kind)) return 0;
  return element_count(r.shape) * static_cast<int64_t>(size_of(r.dtype));
}

std::vector<int64_t> shard_counts(const Shape& shape, Rank size) {
  std::vector<int64_t> counts;
  for (Rank rank = 0; rank < size; ++rank)
    counts.push_back(split_rows(shape[0], rank, size) * elements_per_row(shape));
  return counts;
}

Shape shard_shape(Shape shape, Rank rank, Rank size) {
  shape[0] = split_rows(shape[0], rank, size);
  return shape;
}

Scaling scaling_of(const wire::Request& r, Rank size) {
  return plan_scaling(r.dtype, r.reduce_op, r.prescale, r.postscale, size).value();
}

void BatchRunner::start(const wire::Response& response, std::vector<Pending> members) {
  Running batch{
      response.kind, std::move(members), {}, std::chrono::steady_clock::now(), batches_++, nullptr,
      nullptr};
  tensors_ += static_cast<int64_t>(batch.members.size());
  if (batch.members.size() > 1) fused_tensors_ += static_cast<int64_t>(batch.members.size());
  for (const Pending& member : batch.members) {
    flight_->started(member.submission.flight, static_cast<uint64_t>(batches_),
                     timeline::nanos(batch.began));
  }
  if (recorder_->on()) {
    recorder_->batch_begun(timeline::nanos(batch.began));
    batch.times = std::make_unique<StageTimes>();
    communicator_->time_next(batch.times.get());
  }
  Communicator* on = communicator_;
  if (batch.members.front().submission.request.device >= 0 && has_tensor(response.kind)) {
    batch.order = std::make_unique<nccl::StreamOrder>();
    batch.order->device = batch.members.front().submission.device;
    for (Pending& member : batch.members) {
      Submission& s = member.submission;
      if (s.device != device_->device(s.device)) batch.order->device = s.device;  // refused there
      cuda::add_mark(&batch.order->ready, s.ready);
    }
    device_->order_next(batch.order.get());
    on = device_;
  }
  batch.task = make_task(on, response.kind, &batch.members, response.entries);
  communicator_->time_next(nullptr);
  running_.push_back(std::move(batch));
}

void BatchRunner::run(Task task) {
  running_.push_back({CollectiveKind::kProcessSet,
                      {},
                      std::move(task),
                      std::chrono::steady_clock::now(),
                      -1,
                      nullptr,
                      nullptr});
}

// Where the result lies: given, or the work's own. Null: no memory on the GPU.
std::byte* BatchRunner::output_of(Submission* s, std::byte* given, Shape shape,
                                  std::vector<int64_t> rows) {
  if (given == nullptr && s->device >= 0) {
    const auto bytes = static_cast<size_t>(element_count(shape)) * size_of(s->request.dtype);
    auto memory = device_->allocate(s->device, bytes);
    if (!memory.ok()) {
      no_memory_ = memory.status();
      return nullptr;
    }
    given = memory.value()->data();
    s->work->keep_device_memory(std::move(memory).value());
  }
  return s->work->set_output(given, std::move(shape), s->request.dtype, std::move(rows));
}

Task BatchRunner::make_task(Communicator* on, CollectiveKind kind, std::vector<Pending>* members,
                            const std::vector<wire::ResponseEntry>& entries) {
  Submission& first = members->front().submission;
  switch (kind) {
    case CollectiveKind::kAllreduce: {
      std::vector<Part> parts;
      for (Pending& member : *members) {
        Submission& s = member.submission;
        std::byte* out = output_of(&s, s.out, s.request.shape, {});
        parts.push_back({s.in, out, element_count(s.request.shape)});
      }
      if (!no_memory_.ok()) return failed(no_memory_);
      return on->allreduce(std::move(parts), first.request.dtype, first.request.reduce_op,
                           scaling_of(first.request, on->size()));
    }
    case CollectiveKind::kBroadcast: {
      std::vector<BroadcastPart> parts;
      for (Pending& member : *members) {
        Submission& s = member.submission;
        std::byte* out = output_of(&s, s.out, s.request.shape, {});
        parts.push_back(
            {s.in, out,
             element_count(s.request.shape) * static_cast<int64_t>(size_of(s.request.dtype))});
      }
      if (!no_memory_.ok()) return failed(no_memory_);
      return on->broadcast(first.request.root, std::move(parts));
    }
    case CollectiveKind::kAllgather: return make_allgather(on, members, entries);
    case CollectiveKind::kReducescatter: return make_reducescatter(on, &first);
    case CollectiveKind::kAlltoall: return make_alltoall(on, &first, entries.front());
    case CollectiveKind::kBarrier:  // the agreement was the barrier
    case CollectiveKind::kJoin:
    case CollectiveKind::kProcessSet:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv: return nothing();
  }
  return nothing();
}

Task BatchRunner::make_allgather(Communicator* on, std::vector<Pending>* members,
                                 const std::vector<wire::ResponseEntry>& entries) {
  std::vector<GatherPart> parts;
  for (size_t i = 0; i < members->size(); ++i) {
    Submission& s = (*members)[i].submission;
    const std::vector<int64_t>& rows = entries[i].first_dims;
    const int64_t row_bytes =
        elements_per_row(s.request.shape) * static_cast<int64_t>(size_of(s.request.dtype));
    GatherPart part;
    Shape shape = s.request.shape;
    shape[0] = 0;
    for (const int64_t count : rows) {
      shape[0] += count;
      part.bytes.push_back(count * row_bytes);
    }
    part.in = s.in;
    part.out = output_of(&s, nullptr, shape, rows);
    parts.push_back(std::move(part));
  }
  if (!no_memory_.ok()) return failed(no_memory_);
  return on->allgather(std::move(parts));
}

Task BatchRunner::make_reducescatter(Communicator* on, Submission* s) {
  const Rank size = on->size();
  std::vector<int64_t> counts = shard_counts(s->request.shape, size);
  Shape shape = shard_shape(s->request.shape, on->rank(), size);
  std::byte* out = output_of(s, s->out, std::move(shape), {});
  if (!no_memory_.ok()) return failed(no_memory_);
  return on->reducescatter(s->in, out, std::move(counts), s->request.dtype, s->request.reduce_op,
                           scaling_of(s->request, size));
}

Task BatchRunner::make_alltoall(Communicator* on, Submission* s, const wire::ResponseEntry& entry) {
  const auto size = static_cast<size_t>(on->size());
  const auto me = static_cast<size_t>(on->rank());
  const int64_t row_bytes =
      elements_per_row(s->request.shape) * static_cast<int64_t>(size_of(s->request.dtype));
  std::vector<int64_t> bytes;
  for (const int64_t split : entry.splits) bytes.push_back(split * row_bytes);
  std::vector<int64_t> rows;
  Shape shape = s->request.shape;
  shape[0] = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    rows.push_back(entry.splits[rank * size + me]);
    shape[0] += rows.back();
  }
  std::byte* out = output_of(s, nullptr, shape, rows);
  if (!no_memory_.ok()) return failed(no_memory_);
  return on->alltoall(s->in, out, std::move(bytes));
}

bool BatchRunner::advance() {
  bool moved = communicator_->progress();
  if (failure_.ok()) failure_ = device_->health();
  if (!failure_.ok()) return true;
  for (size_t i = 0; i < running_.size(); ++i) {
    moved |= running_[i].task.advance();
    if (!running_[i].task.done() || running_[i].task.status().ok()) continue;
    if (running_[i].order != nullptr && nccl::is_refusal(running_[i].task.status())) continue;
    failure_ = running_[i].task.status();
    return true;
  }
  // Tasks start their work when they are first advanced; let the pipeline see it in this round.
  moved |= communicator_->progress();
  for (auto it = running_.begin(); it != running_.end();) {
    if (!it->task.done()) {
      ++it;
      continue;
    }
    Running ended = std::move(*it);
    it = running_.erase(it);
    end(&ended, ended.task.status());
    moved = true;
  }
  return moved;
}

void BatchRunner::record(Running* batch, std::chrono::steady_clock::time_point ended,
                         int64_t bytes) {
  const uint32_t set = batch->members.front().submission.set->id;
  timeline::BatchRun run{{0, static_cast<uint64_t>(batch->number), set},
                         batch->kind,
                         bytes,
                         timeline::nanos(batch->began),
                         *batch->times,
                         timeline::nanos(ended)};
  // Straight from and to the tensors: over sockets.
  if (run.stages.met == 0 && bytes > 0) run.stages.wire = {run.begun, run.ended};
  recorder_->batch_ended(run, batch->members.size());
  for (Pending& member : batch->members) recorder_->member(&member, run);
}

void BatchRunner::end(Running* batch, const Status& status) {
  const auto now = std::chrono::steady_clock::now();
  int64_t total = 0;
  for (const Pending& member : batch->members) total += bytes_of(member.submission.request);
  if (batch->times != nullptr) record(batch, now, total);
  for (Pending& member : batch->members) {
    flight_->ended(member.submission.flight, timeline::nanos(now), status.ok());
    member.submission.flight = 0;
    if (batch->order != nullptr && status.ok())
      member.submission.work->set_device_end(batch->order->done);
    finish_(member.submission, status);
  }
}

void BatchRunner::fail_all(const Status& status) {
  std::deque<Running> ended = std::move(running_);
  running_.clear();
  for (Running& batch : ended) end(&batch, status);
}

}  // namespace rueda::engine
