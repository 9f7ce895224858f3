// What is shown in which track. A rank is a process, a stage a track. Slices of one track that
// overlap lie in several rows of it, since a viewer draws one row without overlap.
#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "runtime/observe/timeline/layout.h"
#include "runtime/observe/timeline/tracks.h"

namespace rueda::timeline {
namespace {

class TracksLayout final : public Layout {
 public:
  TracksLayout(const Labels* labels, Origin origin, std::unique_ptr<TrackWriter> writer)
      : labels_(labels), origin_(std::move(origin)), writer_(std::move(writer)) {}

  void open(std::string* out) override {
    writer_->open(out);
    for (size_t track = 0; track < kTrackNames.size(); ++track) {
      for (size_t number = 0; number < busy_until_[track].size(); ++number)
        writer_->row({static_cast<Track>(track), number}, out);
    }
  }

  void add(const Event& event, std::string* out) override {
    switch (event.what) {
      case Event::What::kBatch:
        batch_ = event.batch;
        missing_ = batch_.begun < origin_.start ? 0 : event.members;
        members_.clear();
        break;
      case Event::What::kMember:
        if (missing_ == 0) break;
        members_.push_back(event);
        if (--missing_ == 0) add_batch(out);
        break;
      case Event::What::kMark:
        if (event.time >= origin_.start) add_mark(event, out);
        break;
      case Event::What::kCycle:
        if (event.time >= origin_.start)
          writer_->instant(std::nullopt, "CYCLE_START", event.time, out);
        break;
      case Event::What::kArrival: break;  // each rank shows its own
    }
  }

  void close(Nanos now, std::string* out) override {
    for (const auto& [label, begun] : begun_) {
      const std::string name = labels_->get(label).name;
      for (const Nanos since : begun) {
        Interval span = slice(track_of(name), name, since, now, out);
        span.open = true;
        writer_->slice(span, out);
      }
    }
    begun_.clear();
  }

  void lost(uint64_t count, Nanos now, std::string* out) override {
    writer_->instant(std::nullopt, fmt::format("{} events were lost", count), now, out);
  }

  void flush(std::string* out) override { writer_->flush(out); }

 private:
  // A row of the track that is free from `begin` on.
  Row row_for(Track track, Nanos begin, Nanos end, std::string* out) {
    std::vector<Nanos>& busy = busy_until_[static_cast<size_t>(track)];
    size_t number = 0;
    while (number < busy.size() && busy[number] > begin) ++number;
    if (number == kMostRows) --number;
    if (number == busy.size()) {
      busy.push_back(0);
      writer_->row({track, number}, out);
    }
    busy[number] = std::max(busy[number], end);
    return {track, number};
  }

  // In a row; name: borrowed.
  Interval slice(Track track, std::string_view name, Nanos begin, Nanos end, std::string* out) {
    Interval result;
    result.begin = begin;
    result.end = std::max(begin, end);
    result.row = row_for(track, begin, result.end, out);
    result.name = name;
    return result;
  }

  // Since when this rank has known of a tensor of the batch; 0: since before the start.
  Nanos known_since(const Event& event) const {
    if (is_submission_known(event)) return event.member.submitted;
    return event.member.taken >= origin_.start ? event.member.taken : 0;
  }
  bool is_submission_known(const Event& event) const {
    return event.member.submitted >= origin_.start && event.member.submitted <= event.member.taken;
  }

  void add_batch(std::string* out) {
    // An arrow leads from each tensor's first slice to the batch's last.
    const uint64_t first_arrow = (static_cast<uint64_t>(origin_.rank) << 32) + arrows_ + 1;
    std::vector<uint64_t> arrows;
    for (const Event& event : members_) {
      if (known_since(event) != 0) arrows.push_back(first_arrow + arrows.size());
    }
    arrows_ += arrows.size();
    add_stages(arrows, out);
    uint64_t arrow = first_arrow;
    for (const Event& event : members_) add_member(event, &arrow, out);
    bytes_ += batch_.bytes;
    writer_->bytes(bytes_, batch_.ended, out);
  }

  void add_stages(std::vector<uint64_t> arrows, std::string* out) {
    std::string name = labels_->get(members_.front().label).name;
    if (members_.size() > 1) name += fmt::format(" +{}", members_.size() - 1);
    const StageTimes& s = batch_.stages;
    struct Stage {
      Track track;
      StageTimes::Span span;
    };
    std::array<Stage, 3> stages = {
        {{Track::kPacked, s.packed}, {Track::kWire, s.wire}, {Track::kUnpacked, s.unpacked}}};
    const auto happened = [](const Stage& stage) { return stage.span.begin != 0; };
    if (std::none_of(stages.begin(), stages.end(), happened))
      stages[1].span = {batch_.begun, batch_.ended};  // nothing moved: a barrier
    const auto last = std::find_if(stages.rbegin(), stages.rend(), happened);
    const auto add = [&](Track track, Nanos begin, Nanos end, bool is_last) {
      Interval stage = slice(track, name, begin, end, out);
      stage.bytes = batch_.bytes;
      stage.batch = batch_.number;
      stage.tensors = members_.size();
      if (is_last) stage.arrows_end.swap(arrows);
      writer_->slice(stage, out);
    };
    // Small batches are packed before the ranks meet.
    const Nanos first = s.packed.begin != 0 ? s.packed.begin : s.wire.begin;
    if (first != 0) add(Track::kQueued, batch_.begun, std::max(batch_.begun, first), false);
    for (const Stage& stage : stages) {
      if (happened(stage)) add(stage.track, stage.span.begin, stage.span.end, &stage == &*last);
    }
  }

  void add_member(const Event& event, uint64_t* arrow, std::string* out) {
    const auto& m = event.member;
    const std::string tensor = labels_->get(event.label).name;
    bool is_first = true;
    const auto add = [&](Track track, Nanos begin, Nanos end) {
      Interval part = slice(track, tensor, begin, end, out);
      part.bytes = m.bytes;
      part.batch = batch_.number;
      if (is_first) part.arrow = (*arrow)++;
      is_first = false;
      writer_->slice(part, out);
    };
    if (is_submission_known(event)) add(Track::kSubmitted, m.submitted, m.taken);
    if (m.taken >= origin_.start) add(Track::kNegotiated, m.taken, batch_.begun);
  }

  static Track track_of(std::string_view mark) {
    if (mark == name_of(Track::kBackward)) return Track::kBackward;
    return mark == name_of(Track::kStep) ? Track::kStep : Track::kMarks;
  }

  void add_mark(const Event& event, std::string* out) {
    const std::string name = labels_->get(event.label).name;
    const Track track = track_of(name);
    if (event.mark == Mark::kInstant) {
      writer_->instant(row_for(track, event.time, event.time, out), name, event.time, out);
      return;
    }
    std::vector<Nanos>& begun = begun_[event.label];
    if (event.mark == Mark::kBegin) {
      begun.push_back(event.time);
    } else if (!begun.empty()) {
      writer_->slice(slice(track, name, begun.back(), event.time, out), out);
      begun.pop_back();
    }
  }

  const Labels* labels_;
  const Origin origin_;
  const std::unique_ptr<TrackWriter> writer_;
  BatchRun batch_;
  uint32_t missing_ = 0;
  std::vector<Event> members_;
  uint64_t arrows_ = 0;
  int64_t bytes_ = 0;
  std::array<std::vector<Nanos>, kTrackNames.size()> busy_until_;  // by row
  std::unordered_map<LabelId, std::vector<Nanos>> begun_;          // marks that have not ended
};

}  // namespace

std::unique_ptr<Layout> tracks_layout(const Labels* labels, Origin origin, Form form) {
  auto writer = form == Form::kJson ? json_tracks(origin) : perfetto_tracks(origin);
  return std::make_unique<TracksLayout>(labels, std::move(origin), std::move(writer));
}

}  // namespace rueda::timeline
