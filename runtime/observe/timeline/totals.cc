#include "runtime/observe/timeline/totals.h"

#include <algorithm>

namespace rueda::timeline {
namespace {

constexpr const char* kStageNames[Totals::kStages] = {"backward", "submitted",     "negotiated",
                                                      "queued",   "packed",        "on the wire",
                                                      "unpacked", "optimizer step"};

double seconds(Nanos time) { return static_cast<double>(time) * 1e-9; }

}  // namespace

void Totals::account(Nanos now) {
  const Nanos passed = std::max<Nanos>(0, now - changed_);
  if (under_way_ > 0) {
    busy_ += passed;
    if (begun_[kBackward] != 0) overlapped_ += passed;
  }
  changed_ = std::max(changed_, now);
}

void Totals::batch_begun(Nanos now) {
  const std::lock_guard lock(mutex_);
  account(now);
  ++under_way_;
}

void Totals::batch_dropped(Nanos now) {
  const std::lock_guard lock(mutex_);
  account(now);
  --under_way_;
}

void Totals::batch_ended(const BatchRun& run) {
  const std::lock_guard lock(mutex_);
  account(run.ended);
  --under_way_;
  ++batches_;
  if (run.number.generation != 0) ++planned_;
  bytes_ += static_cast<uint64_t>(run.bytes);
  const StageTimes& s = run.stages;
  const Nanos first = s.packed.begin != 0 ? s.packed.begin : s.wire.begin;
  if (first != 0) stages_[kQueued].add(std::max<Nanos>(0, first - run.begun));
  if (s.packed.begin != 0) stages_[kPacked].add(s.packed.end - s.packed.begin);
  if (s.wire.begin != 0) stages_[kWire].add(s.wire.end - s.wire.begin);
  if (s.unpacked.begin != 0) stages_[kUnpacked].add(s.unpacked.end - s.unpacked.begin);
}

void Totals::member(Nanos submitted, Nanos taken, Nanos begun) {
  const std::lock_guard lock(mutex_);
  if (submitted != 0 && taken >= submitted) stages_[kSubmitted].add(taken - submitted);
  if (taken != 0 && begun >= taken) stages_[kNegotiated].add(begun - taken);
}

void Totals::begin(Stage stage, Nanos now) {
  const std::lock_guard lock(mutex_);
  account(now);
  if (begun_[stage] == 0) begun_[stage] = now;
}

void Totals::end(Stage stage, Nanos now) {
  const std::lock_guard lock(mutex_);
  account(now);
  if (begun_[stage] == 0) return;
  stages_[stage].add(now - begun_[stage]);
  begun_[stage] = 0;
}

wire::RankSummary Totals::sum(Nanos now) const {
  const std::lock_guard lock(mutex_);
  wire::RankSummary result;
  result.seconds = seconds(now - since_);
  for (size_t stage = 0; stage < kStages; ++stage)
    result.stages.push_back(
        {kStageNames[stage], seconds(stages_[stage].time), stages_[stage].count});
  result.busy_seconds = seconds(busy_);
  result.overlapped_seconds = seconds(overlapped_);
  result.batches = batches_;
  result.planned_batches = planned_;
  result.bytes = bytes_;
  return result;
}

}  // namespace rueda::timeline
