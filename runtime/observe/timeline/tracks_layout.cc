// A rank is a process, a stage a track. Slices of one track that overlap lie in several rows of it,
// since a viewer draws one row without overlap.
#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "runtime/observe/timeline/json_array_file.h"
#include "runtime/observe/timeline/json_line.h"
#include "runtime/observe/timeline/layout.h"

namespace rueda::timeline {
namespace {

enum Track : size_t {
  kBackward,
  kSubmitted,
  kNegotiated,
  kQueued,
  kPacked,
  kWire,
  kUnpacked,
  kStep,
  kMarks,
  kChannels
};
constexpr const char* kTrackNames[kChannels] = {"backward", "submitted",      "negotiated",
                                                "queued",   "packed",         "on the wire",
                                                "unpacked", "optimizer step", "marks"};
constexpr size_t kRows = 64;  // of a track; what does not fit any more shares the last one

class TracksLayout final : public Layout {
 public:
  TracksLayout(const Labels* labels, Origin origin) : labels_(labels), origin_(std::move(origin)) {}

  void open(std::string* out) override {
    line(out,
         R"("name":"process_name","ph":"M","pid":{},"args":{{"name":{},)"
         R"("start_time_since_epoch_in_micros":{},"clock_offset_ns":{},"clock_error_ns":{}}})",
         origin_.rank, json_quoted(origin_.name), origin_.epoch_micros, origin_.clock_offset,
         origin_.clock_error);
    line(out, R"("name":"process_sort_index","ph":"M","pid":{0},"args":{{"sort_index":{0}}})",
         origin_.rank);
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
        if (event.time >= origin_.start) {
          line(out, R"("name":"CYCLE_START","ph":"i","pid":{},"tid":0,"ts":{},"s":"p")",
               origin_.rank, micros(event.time));
        }
        break;
      case Event::What::kArrival: break;  // each rank shows its own
    }
  }

  void close(Nanos now, std::string* out) override {
    for (const auto& [label, begun] : begun_) {
      const std::string name = labels_->get(label).name;
      for (const Nanos since : begun) slice(track_of(name), name, since, now, R"("open":1)", out);
    }
    begun_.clear();
  }

  void lost(uint64_t count, Nanos now, std::string* out) override {
    line(out, R"("name":"{} events were lost","ph":"i","pid":{},"tid":0,"ts":{},"s":"p")", count,
         origin_.rank, micros(now));
  }

 private:
  static std::string decimal(Nanos time) {
    return fmt::format("{}.{:03}", time / 1000, time % 1000);
  }
  std::string micros(Nanos time) const {
    return decimal(std::max<Nanos>(0, time + origin_.clock_offset));
  }

  // The number of a row of the track that is free from `begin` on.
  size_t row_for(Track track, Nanos begin, Nanos end, std::string* out) {
    std::vector<Nanos>& busy = busy_until_[track];
    size_t row = 0;
    while (row < busy.size() && busy[row] > begin) ++row;
    if (row == kRows) --row;
    const size_t tid = track * kRows + row + 1;
    if (row == busy.size()) {
      busy.push_back(0);
      const std::string name =
          row == 0 ? kTrackNames[track] : fmt::format("{} {}", kTrackNames[track], row + 1);
      line(out, R"("name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}})",
           origin_.rank, tid, name);
      line(out,
           R"("name":"thread_sort_index","ph":"M","pid":{0},"tid":{1},"args":{{"sort_index":{1}}})",
           origin_.rank, tid);
    }
    busy[row] = std::max(busy[row], end);
    return tid;
  }

  // args: without braces. The row.
  size_t slice(Track track, const std::string& name, Nanos begin, Nanos end,
               const std::string& args, std::string* out) {
    end = std::max(begin, end);
    const size_t tid = row_for(track, begin, end, out);
    line(out, R"("name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}})",
         json_quoted(name), kTrackNames[track], origin_.rank, tid, micros(begin),
         decimal(end - begin), args);
    return tid;
  }

  void arrow(const char* phase, int64_t id, size_t tid, Nanos time, std::string* out) {
    line(out, R"("name":"tensor","cat":"flow","ph":"{}"{},"id":{},"pid":{},"tid":{},"ts":{})",
         phase, *phase == 'f' ? R"(,"bp":"e")" : "", id, origin_.rank, tid, micros(time));
  }

  static std::string number(const BatchNumber& batch) {
    const std::string set = batch.set == 0 ? "" : fmt::format("s{}.", batch.set);
    if (batch.generation == 0) return fmt::format("{}n{}", set, batch.number);
    return fmt::format("{}p{}.{}", set, batch.generation, batch.number);
  }

  void add_batch(std::string* out) {
    const std::string of_batch = fmt::format(R"("batch":"{}")", number(batch_.number));
    std::string name = labels_->get(members_.front().label).name;
    if (members_.size() > 1) name += fmt::format(" +{}", members_.size() - 1);
    const std::string args =
        fmt::format(R"("bytes":{},{},"tensors":{})", batch_.bytes, of_batch, members_.size());
    const StageTimes& s = batch_.stages;
    // Small batches are packed before the ranks meet.
    const Nanos first = s.packed.begin != 0 ? s.packed.begin : s.wire.begin;
    if (first != 0) slice(kQueued, name, batch_.begun, std::max(batch_.begun, first), args, out);
    size_t last_row = 0;
    Nanos last_time = 0;
    const auto stage = [&](Track track, const StageTimes::Span& span) {
      if (span.begin == 0) return;
      last_row = slice(track, name, span.begin, span.end, args, out);
      last_time = std::max(span.begin, span.end - 1);
    };
    stage(kPacked, s.packed);
    stage(kWire, s.wire);
    stage(kUnpacked, s.unpacked);
    if (last_time == 0) stage(kWire, {batch_.begun, batch_.ended});  // nothing moved: a barrier

    for (const Event& event : members_) {
      const auto& m = event.member;
      const std::string tensor = labels_->get(event.label).name;
      const std::string more = fmt::format(R"("bytes":{},{})", m.bytes, of_batch);
      const int64_t id = (static_cast<int64_t>(origin_.rank) << 32) + flows_++;
      size_t from = 0;
      Nanos since = 0;
      if (m.submitted >= origin_.start && m.submitted <= m.taken) {
        from = slice(kSubmitted, tensor, m.submitted, m.taken, more, out);
        since = m.submitted;
      }
      if (m.taken >= origin_.start) {
        const size_t row = slice(kNegotiated, tensor, m.taken, batch_.begun, more, out);
        if (since == 0) {
          from = row;
          since = m.taken;
        }
      }
      if (since == 0) continue;
      arrow("s", id, from, since, out);
      arrow("f", id, last_row, last_time, out);
    }
  }

  static Track track_of(const std::string& mark) {
    return mark == kTrackNames[kBackward] ? kBackward : mark == kTrackNames[kStep] ? kStep : kMarks;
  }

  void add_mark(const Event& event, std::string* out) {
    const std::string name = labels_->get(event.label).name;
    const Track track = track_of(name);
    if (event.mark == Mark::kInstant) {
      const size_t tid = row_for(track, event.time, event.time, out);
      line(out, R"("name":{},"cat":"{}","ph":"i","pid":{},"tid":{},"ts":{},"s":"t")",
           json_quoted(name), kTrackNames[track], origin_.rank, tid, micros(event.time));
      return;
    }
    std::vector<Nanos>& begun = begun_[event.label];
    if (event.mark == Mark::kBegin) {
      begun.push_back(event.time);
    } else if (!begun.empty()) {
      slice(track, name, begun.back(), event.time, "", out);
      begun.pop_back();
    }
  }

  const Labels* labels_;
  Origin origin_;
  BatchRun batch_;
  uint32_t missing_ = 0;
  std::vector<Event> members_;
  int64_t flows_ = 0;
  std::array<std::vector<Nanos>, kChannels> busy_until_;   // by row
  std::unordered_map<LabelId, std::vector<Nanos>> begun_;  // marks that have not ended
};

}  // namespace

std::unique_ptr<Layout> tracks_layout(const Labels* labels, Origin origin) {
  return std::make_unique<TracksLayout>(labels, std::move(origin));
}

}  // namespace rueda::timeline
