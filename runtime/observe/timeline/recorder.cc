#include "runtime/observe/timeline/recorder.h"

#include <algorithm>
#include <utility>

#include "collectives/host/monotonic.h"
#include "runtime/engine/process_set.h"
#include "runtime/observe/timeline/timeline_file.h"

namespace rueda::timeline {
namespace {

constexpr uint64_t kRing = 1 << 16;  // events: 10 MB, several thousand tensors in a period

constexpr double kMostSeconds = 1e9;  // what is more is for ever, too

LabelId label_of(Labels* labels, const wire::Request& request, uint32_t set) {
  return labels->of_tensor(request.name, request.dtype, request.shape, set);
}

// A group's call has the group in its name, and its number, which is that of its batch too: all
// calls of one tensor have one label.
LabelId label_of(Labels* labels, const engine::Request& request, uint32_t set) {
  const wire::Request& asked = request.announcement;
  if (!request.set->ordered) return label_of(labels, asked, set);
  return labels->of_tensor(asked.name.substr(0, asked.name.rfind('#')), asked.dtype, asked.shape);
}

int64_t bytes_of(const wire::Request& request) {
  if (!has_tensor(request.kind)) return 0;
  return element_count(request.shape) * static_cast<int64_t>(size_of(request.dtype));
}

}  // namespace

Recorder::Recorder(Origin origin, bool summary, const std::string& nvtx_library)
    : origin_(std::move(origin)),
      totals_(summary ? std::make_unique<Totals>(host::monotonic_ns()) : nullptr),
      nvtx_(nvtx_library) {
  update();
}

Recorder::~Recorder() { stop(); }

Status Recorder::start(const std::string& path, bool all_ranks, bool mark_cycles, double seconds) {
  const std::lock_guard lock(control_);
  const auto file = timeline_file(path, all_ranks, origin_.rank);
  const std::string wanted = file ? file->path : "";
  if (writer_ != nullptr && wanted == path_ && !writer_->failed()) {
    mark_cycles_.store(mark_cycles, std::memory_order_relaxed);
    return {};
  }
  writing_.store(false, std::memory_order_relaxed);
  writer_.reset();
  path_.clear();
  update();
  if (!file) return {};
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<EventFile> opened, create_event_file(*file));
  if (owned_ring_ == nullptr) owned_ring_ = std::make_unique<EventRing>(kRing);
  Origin origin = origin_;
  origin.start = host::monotonic_ns();
  origin.epoch_micros = std::chrono::duration_cast<std::chrono::microseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
  auto layout = file->in_tracks() ? tracks_layout(&labels_, origin, file->form)
                                  : horovod_layout(&labels_, origin);
  const auto kept = static_cast<Nanos>(std::min(seconds, kMostSeconds) * 1e9);
  writer_ = std::make_unique<Writer>(owned_ring_.get(), std::move(layout), std::move(opened), kept);
  if (!writer_->begun().ok()) {
    const Status failed = writer_->begun();
    writer_.reset();
    return failed;
  }
  path_ = wanted;
  mark_cycles_.store(mark_cycles, std::memory_order_relaxed);
  arrivals_.store(!file->in_tracks(), std::memory_order_relaxed);
  ring_.store(owned_ring_.get(), std::memory_order_release);
  writing_.store(true, std::memory_order_relaxed);
  update();
  return {};
}

void Recorder::stop() {
  const std::lock_guard lock(control_);
  writing_.store(false, std::memory_order_relaxed);
  update();
  writer_.reset();
  path_.clear();
}

nvtx::RangeId Recorder::batch_begun(Nanos now, std::span<engine::Request* const> members) {
  if (totals_) totals_->batch_begun(now);
  if (!nvtx_.on() || members.empty()) return 0;
  std::string name = members.front()->announcement.name;
  if (members.size() > 1) name += " and " + std::to_string(members.size() - 1) + " more";
  int64_t bytes = 0;
  for (const engine::Request* member : members) bytes += bytes_of(member->announcement);
  return nvtx_.begin(name, bytes);
}

void Recorder::batch_dropped(Nanos now, nvtx::RangeId range) {
  if (totals_) totals_->batch_dropped(now);
  if (range != 0) nvtx_.end(range);
}

void Recorder::batch_ended(const BatchRun& run, size_t members, nvtx::RangeId range) {
  if (totals_) totals_->batch_ended(run);
  if (range != 0) nvtx_.end(range);
  if (!writing()) return;
  Event event;
  event.what = Event::What::kBatch;
  event.members = static_cast<uint32_t>(members);
  event.batch = run;
  push(event);
}

void Recorder::member(engine::Request* request, const BatchRun& run) {
  const Nanos submitted = nanos(request->submitted);
  const Nanos taken = nanos(request->since);
  if (totals_) totals_->member(submitted, taken, run.begun);
  if (!writing()) return;
  if (!request->label) request->label = label_of(&labels_, *request, run.number.set);
  Event event;
  event.what = Event::What::kMember;
  event.label = *request->label;
  event.member = {submitted, taken, bytes_of(request->announcement)};
  push(event);
}

void Recorder::arrival(const wire::Request& request, uint32_t set, Rank rank, Nanos now) {
  if (!writing() || !arrivals_.load(std::memory_order_relaxed)) return;
  Event event;
  event.what = Event::What::kArrival;
  event.label = label_of(&labels_, request, set);
  event.rank = rank;
  event.time = now;
  push(event);
}

void Recorder::cycle(Nanos now) {
  if (!writing() || !mark_cycles_.load(std::memory_order_relaxed)) return;
  Event event;
  event.what = Event::What::kCycle;
  event.time = now;
  push(event);
}

void Recorder::mark(const std::string& name, Mark mark) {
  const Nanos now = host::monotonic_ns();
  if (totals_) {
    const auto stage = name == "backward"         ? Totals::kBackward
                       : name == "optimizer step" ? Totals::kStep
                                                  : Totals::kStages;
    if (stage != Totals::kStages && mark == Mark::kBegin) totals_->begin(stage, now);
    if (stage != Totals::kStages && mark == Mark::kEnd) totals_->end(stage, now);
  }
  if (nvtx_.on()) nvtx_.mark(name, mark);
  if (!writing()) return;
  Event event;
  event.what = Event::What::kMark;
  event.mark = mark;
  event.label = labels_.of_mark(name);
  event.time = now;
  push(event);
}

std::optional<wire::RankSummary> Recorder::totals() const {
  if (!totals_) return std::nullopt;
  return totals_->sum(host::monotonic_ns());
}

}  // namespace rueda::timeline
