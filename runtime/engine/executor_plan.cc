// The executor and the step plan.
#include <algorithm>
#include <utility>

#include "collectives/host/monotonic.h"
#include "runtime/engine/executor_batches.h"
#include "runtime/engine/process_set.h"

namespace rueda::engine {
namespace {

constexpr int kGenerationShift = 40;
// Larger messages wait until they are asked for.
constexpr size_t kEarlyPiece = size_t{64} << 10;
constexpr size_t kMostEarlyPieces = 8;

uint64_t pack(uint64_t generation, uint64_t entered) {
  return generation << kGenerationShift | entered << 1 | 1;
}

// The largest message of a tensor that any rank may send: alike on all ranks, as the sizes of
// gathered blocks are.
size_t largest_message(const CollectiveDesc& desc, size_t tensor, Rank ranks) {
  const auto size = static_cast<size_t>(ranks);
  std::span<const int64_t> counts(desc.counts);
  int64_t most = 0;
  switch (desc.kind) {
    case CollectiveKind::kAllgather: counts = counts.subspan(tensor * size, size); [[fallthrough]];
    case CollectiveKind::kAlltoall: most = *std::max_element(counts.begin(), counts.end()); break;
    default: most = desc.input_count(tensor, desc.root, ranks);
  }
  return static_cast<size_t>(most) * size_of(desc.dtype);
}

CollectiveDesc meeting() {
  CollectiveDesc desc;
  desc.kind = CollectiveKind::kBarrier;
  desc.tensors = 0;
  desc.meets = true;
  return desc;
}

}  // namespace

void Executor::begin_plan(const plan::StepPlan& plan,
                          const std::vector<const wire::Request*>& requests,
                          std::span<const SizesPtr> sizes) {
  generation_ = plan.generation;
  entered_ = met_ = ended_ = 0;
  on_.planned->begin_generation(plan.generation);
  on_.planned_device->agree_on_windows();
  plan_.clear();
  plan_on_devices_ = false;
  const uint64_t templates =
      flight_->plan(requests, process_set_, static_cast<uint32_t>(plan.generation));
  size_t first = 0;
  for (const plan::PlannedBatch& planned : plan.batches) {
    const std::span<const wire::Request* const> all(requests);
    plan_.push_back(prepare(planned, all.subspan(first, planned.ids.size()),
                            sizes.subspan(first, planned.ids.size())));
    plan_.back()->templates = templates + first;
    first += planned.ids.size();
  }
  if (!on_.planned->shares_memory()) reserve_messages();
}

// Peers may be ahead by all of a cycle: what each of its batches can send before this rank has
// entered it. Two messages of each tensor's size; all together in pieces, on the way there and
// back; and two that only meet.
void Executor::reserve_messages() {
  std::vector<size_t> sizes;
  for (const auto& batch : plan_) {
    if (batch->collective == nullptr) continue;  // a failure, which ends the plan
    const CollectiveDesc& desc = batch->collective->desc();
    size_t bytes = 0;
    for (size_t i = 0; i < desc.tensors; ++i) {
      const size_t largest = largest_message(desc, i, size());
      bytes += largest;
      sizes.insert(sizes.end(), {largest, largest});
    }
    const size_t pieces = std::min(bytes / kEarlyPiece + 1, kMostEarlyPieces);
    sizes.insert(sizes.end(), 2 * pieces, std::min(bytes, kEarlyPiece));
    sizes.insert(sizes.end(), {0, 0});
  }
  transport_->reserve(sizes);
}

std::unique_ptr<Executor::Planned> Executor::prepare(const plan::PlannedBatch& planned,
                                                     std::span<const wire::Request* const> requests,
                                                     std::span<const SizesPtr> sizes) {
  auto batch = std::make_unique<Planned>();
  batch->kind = planned.kind;
  batch->generation = generation_;
  for (size_t i = 0; i < requests.size(); ++i) {
    batch->results.push_back(result_of(*requests[i], sizes[i], rank(), size()));
    batch->bytes += bytes_of(*requests[i]);
  }
  batch->handles.reserve(requests.size());
  CollectiveDesc desc = describe(requests, sizes, size());
  desc.protocol = static_cast<ShmProtocol>(planned.protocol);
  desc.meets = true;
  const auto make = [&](Communicator* on, CollectiveDesc what, std::unique_ptr<Collective>* to) {
    auto made = on->init(std::move(what));
    if (made.ok())
      *to = std::move(made).value();
    else
      failure_ = made.status();
  };
  const bool on_device = requests.front()->device >= 0;
  if (on_device) make(on_.planned_device, desc, &batch->on_device);
  plan_on_devices_ |= on_device;
  make(on_.planned, on_device ? meeting() : std::move(desc), &batch->collective);
  return batch;
}

void Executor::enter(std::span<const plan::OpHandle> handles) {
  const uint64_t number = entered_++;
  Planned& batch = at(number);
  batch.number = number;
  batch.handles.assign(handles.begin(), handles.end());
  const std::span<Part> parts = batch.with_tensors().tensors();
  for (size_t i = 0; i < handles.size(); ++i) {
    Request& member = request_of(handles[i]);
    if (batch.on_device) cuda::add_mark(&batch.order.ready, member.ready);
    if (member.flight != 0) flight_->planned(member.flight);
    if (parts.empty()) continue;  // a barrier
    const Status placed = place_memory(&member, batch.results[i],
                                       batch.on_device ? on_.planned_device : nullptr, &parts[i]);
    if (!placed.ok()) failure_ = placed;  // without memory on the GPU nothing runs
  }
  batch.flight = flight_->entered(batch.templates, handles.size(), number,
                                  timeline::nanos(request_of(handles.front()).since));
  batch.recorded = recorder_->on();
  if (number % plan_.size() == 0) flight_->stats().round_begins();
  batch.begun = flight_->stats().batch_begun();
  if (batch.recorded) {
    batch.times = {};
    members_.clear();  // told when it begins, to who wants to know
    if (recorder_->names_batches()) collect_members(batch);
    batch.range = recorder_->batch_begun(batch.begun, members_);
    if (number % plan_.size() == 0) recorder_->cycle(batch.begun);
  }
  if (batch.on_device) batch.order.device = request_of(handles.front()).device;
  batch.collective->start({batch.recorded ? &batch.times : nullptr, nullptr});
}

bool Executor::advance_plan() {
  if (plan_on_devices_ && failure_.ok()) failure_ = on_.planned_device->health();
  if (plan_is_idle()) return false;
  bool moved = on_.planned->progress();
  for (; met_ < entered_; ++met_) {
    Planned& batch = at(met_);
    moved |= batch.collective->advance();
    if (!batch.collective->done()) break;
    if (!batch.collective->status().ok()) {
      failure_ = batch.collective->status();
      return true;
    }
    moved = true;
    if (batch.on_device) batch.on_device->start({nullptr, &batch.order});
  }
  // Later ones go on too: over sockets each has work of its own.
  for (uint64_t number = met_ + 1; number < entered_ && !on_.planned->shares_memory(); ++number)
    moved |= at(number).collective->advance();
  if (plan_on_devices_) moved |= call_devices();
  while (ended_ < met_ && (!at(ended_).on_device || at(ended_).on_device->done())) {
    end(&at(ended_));
    ++ended_;
    moved = true;
  }
  return moved;
}

// Gives to NCCL what can be given without waiting.
bool Executor::call_devices() {
  bool moved = false;
  for (uint64_t number = ended_; number < met_ && failure_.ok(); ++number) {
    Collective* const collective = at(number).on_device.get();
    if (collective == nullptr || collective->done()) continue;
    moved |= collective->advance();
    const Status& status = collective->status();
    if (collective->done() && !status.ok() && !nccl::is_refusal(status)) failure_ = status;
  }
  return moved;
}

void Executor::collect_members(const Planned& batch) {
  members_.clear();
  for (const plan::OpHandle handle : batch.handles) members_.push_back(&request_of(handle));
}

void Executor::end(Planned* batch) {
  if (batch->recorded) {
    collect_members(*batch);
    record(*batch, members_);
  }
  flight_->stats().batch_ended(batch->kind, batch->begun, batch->handles.size(), batch->bytes,
                               true);
  flight_->finished(batch->flight, batch->handles.size());
  ++totals_.planned_batches;
  count(batch->handles.size());
  const Status& status = batch->with_tensors().status();
  for (const plan::OpHandle handle : batch->handles) {
    if (batch->on_device && status.ok()) request_of(handle).set_device_end(batch->order.done);
    ends_.complete(handle, status);
  }
  batch->order.ready.clear();
  batch->order.done = nullptr;
  batch->handles.clear();
}

bool Executor::starting() const { return on_.planned_device->starting(); }

void Executor::revoke(uint64_t last_word) {
  const uint64_t last = pack(generation_, last_word);
  if (last_words_.words.empty()) {
    if (std::exchange(told_[static_cast<size_t>(rank())], last) != last)
      last_words_.tell(generation_, last_word);
    return;
  }
  std::atomic<uint64_t>& own = *last_words_.words[static_cast<size_t>(rank())];
  if (own.exchange(last, std::memory_order_seq_cst) == last) return;
  for (size_t peer = 0; peer < last_words_.ringers.size(); ++peer) {
    if (static_cast<Rank>(peer) != rank()) last_words_.ringers[peer].ring();
  }
}

void Executor::hear_last_word(Rank of, uint64_t generation, uint64_t entered) {
  told_[static_cast<size_t>(of)] = pack(generation, entered);
}

std::optional<uint64_t> Executor::last_word(Rank of) const {
  const auto member = static_cast<size_t>(of);
  const uint64_t value = last_words_.words.empty()
                             ? told_[member]
                             : last_words_.words[member]->load(std::memory_order_acquire);
  if (value >> kGenerationShift != generation_) return std::nullopt;
  return (value & ((uint64_t{1} << kGenerationShift) - 1)) >> 1;
}

std::vector<plan::OpHandle> Executor::end_plan(uint64_t first) {
  std::vector<plan::OpHandle> handles;
  for (uint64_t number = first; number < entered_; ++number) {
    const Planned& batch = at(number);
    flight_->finished(batch.flight, 0);
    flight_->stats().batch_dropped();
    if (batch.recorded) recorder_->batch_dropped(host::monotonic_ns(), batch.range);
    handles.insert(handles.end(), batch.handles.begin(), batch.handles.end());
  }
  entered_ = met_ = ended_;
  plan_.clear();  // collectives end before their generation does
  on_.planned->end_generation();
  return handles;
}

}  // namespace rueda::engine
