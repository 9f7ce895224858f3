// Tracks as packets of Perfetto's Trace message. A rank is a process and a packet sequence, a row a
// track of its own; rows of one track have its name, which makes viewers show them as one.
//
// What keeps packets small:
//   - names of slices and of their details are numbers; a packet before the first use says which
//   - times are differences to the packet before: slices are known at their end, so events wait
//     until flush() and are written in the order of their times. Each flush begins with a snapshot
//     that sets the counted clock to 0, which makes the packets from there on readable without
//     those before. All ranks' clocks are rank 0's, so the snapshot is always the same one.
#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>
#include <protozero/pbf_writer.hpp>

#include "collectives/base/utf8.h"
#include "runtime/observe/timeline/perfetto_fields.h"
#include "runtime/observe/timeline/tracks.h"

namespace rueda::timeline {
namespace {

using protozero::pbf_writer;

constexpr uint32_t kCountedClock = 64;  // the first of those that belong to a sequence
constexpr size_t kMostWaiting = 4096;   // events

// Identifiers of a rank's tracks: rows that every rank has come first, to be short.
constexpr uint64_t kTracksOfRank = 64, kShortRows = 4, kProcess = 62, kCounter = 63;
static_assert(kTrackNames.size() * kShortRows <= kProcess);

// Details of slices, by the number of their name.
enum Detail : uint64_t { kBytes = 1, kBatch, kTensors, kOpen, kDetails };
constexpr std::array<const char*, kDetails> kDetailNames = {"", "bytes", "batch", "tensors",
                                                            "open"};

class PerfettoTracks final : public TrackWriter {
 public:
  explicit PerfettoTracks(Origin origin)
      : origin_(std::move(origin)), sequence_(static_cast<uint32_t>(origin_.rank) + 1) {}

  void open(std::string* out) override {
    namespace p = perfetto;
    add_packet(out, [&](pbf_writer* packet) {
      packet->add_uint32(p::packet::kSequenceFlags, p::packet::kIncrementalStateCleared);
      packet->add_bool(p::packet::kFirstPacketOnSequence, true);
      pbf_writer defaults(*packet, p::packet::kTracePacketDefaults);
      defaults.add_uint32(p::defaults::kTimestampClockId, kCountedClock);
    });
    describe(track(kProcess), out, [&](pbf_writer* described) {
      described->add_enum(p::descriptor::kChildOrdering, p::descriptor::kExplicit);
      pbf_writer process(*described, p::descriptor::kProcess);
      process.add_int32(p::descriptor::kPid, origin_.rank + 1);  // 0 is the idle process
      process.add_string(p::descriptor::kProcessName, text(origin_.name));
      const auto label = [&](const char* name, int64_t value) {
        process.add_string(p::descriptor::kProcessLabels, fmt::format("{}={}", name, value));
      };
      label("start_time_since_epoch_in_micros", origin_.epoch_micros);
      label("clock_offset_ns", origin_.clock_offset);
      label("clock_error_ns", origin_.clock_error);
    });
    describe(track(kCounter), out, [&](pbf_writer* described) {
      described->add_string(p::descriptor::kName, kBytesCounter);
      described->add_uint64(p::descriptor::kParentUuid, track(kProcess));
      described->add_int32(p::descriptor::kSiblingOrderRank, static_cast<int32_t>(kCounter));
      pbf_writer counter(*described, p::descriptor::kCounter);
      counter.add_enum(p::descriptor::kUnit, p::descriptor::kSizeBytes);
    });
    add_packet(out, [&](pbf_writer* packet) {
      pbf_writer names(*packet, p::packet::kInternedData);
      for (const auto& [name, number] : names_)
        add_name(&names, p::interned::kEventNames, number, name);
      for (uint64_t detail = 1; detail < kDetails; ++detail)
        add_name(&names, p::interned::kAnnotationNames, detail, kDetailNames[detail]);
    });
  }

  void row(const Row& row, std::string* out) override {
    describe(track_of(row), out, [&](pbf_writer* described) {
      described->add_string(perfetto::descriptor::kName, name_of(row.track));
      described->add_uint64(perfetto::descriptor::kParentUuid, track(kProcess));
      described->add_int32(perfetto::descriptor::kSiblingOrderRank,
                           static_cast<int32_t>(row.track));
    });
  }

  void slice(const Interval& slice, std::string* out) override {
    namespace e = perfetto::event;
    const uint64_t name = number_of(slice.name, out);
    const uint64_t track = track_of(slice.row);
    add_event(slice.begin, e::kSliceBegin, track, out, [&](pbf_writer* event) {
      event->add_uint64(e::kNameIid, name);
      if (slice.batch) {
        add_number(event, kBytes, static_cast<uint64_t>(slice.bytes));
        add_batch(event, *slice.batch);
      }
      if (slice.tensors != 0) add_number(event, kTensors, slice.tensors);
      if (slice.open) add_number(event, kOpen, 1);
      if (slice.arrow != 0) event->add_fixed64(e::kFlowIds, slice.arrow);
      for (const uint64_t number : slice.arrows_end)
        event->add_fixed64(e::kTerminatingFlowIds, number);
    });
    add_event(slice.end, e::kSliceEnd, track, out, [](pbf_writer*) {});
  }

  void instant(std::optional<Row> row, std::string_view name, Nanos time,
               std::string* out) override {
    const uint64_t number = number_of(name, out);
    add_event(time, perfetto::event::kInstant, row ? track_of(*row) : track(kProcess), out,
              [&](pbf_writer* event) { event->add_uint64(perfetto::event::kNameIid, number); });
  }

  void bytes(int64_t bytes, Nanos time, std::string* out) override {
    add_event(time, perfetto::event::kCounter, track(kCounter), out,
              [&](pbf_writer* event) { event->add_int64(perfetto::event::kCounterValue, bytes); });
  }

  void flush(std::string* out) override {
    namespace p = perfetto;
    if (waiting_.empty()) return;
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [](const Waiting& a, const Waiting& b) { return a.time < b.time; });
    add_packet(out, [&](pbf_writer* packet) {
      pbf_writer snapshot(*packet, p::packet::kClockSnapshot);
      for (const uint32_t id : {p::snapshot::kBoottime, kCountedClock}) {
        pbf_writer clock(snapshot, p::snapshot::kClocks);
        clock.add_uint32(p::snapshot::kClockId, id);
        clock.add_uint64(p::snapshot::kTimestamp, 0);
        if (id == kCountedClock) clock.add_bool(p::snapshot::kIsIncremental, true);
      }
    });
    Nanos last = 0;
    for (const Waiting& event : waiting_) {
      add_packet(out, [&](pbf_writer* packet) {
        packet->add_uint64(p::packet::kTimestamp, static_cast<uint64_t>(event.time - last));
        packet->add_message(p::packet::kTrackEvent, bytes_.data() + event.at, event.size);
      });
      last = event.time;
    }
    waiting_.clear();
    bytes_.clear();
  }

 private:
  struct Waiting {
    Nanos time;
    size_t at;  // in bytes_
    size_t size;
  };

  static std::string text(std::string_view any) { return clean_text(any, std::string::npos); }

  uint64_t track(uint64_t number) const {
    return static_cast<uint64_t>(origin_.rank) * kTracksOfRank + number + 1;
  }
  uint64_t track_of(const Row& row) const {
    const uint64_t short_row = static_cast<uint64_t>(row.track) * kShortRows;
    if (row.number < kShortRows) return track(short_row + row.number);
    return (static_cast<uint64_t>(row.number) << 48) + track(short_row);
  }

  template <typename Fill>
  void add_packet(std::string* out, Fill&& fill) const {
    pbf_writer trace(*out);
    pbf_writer packet(trace, perfetto::trace::kPacket);
    packet.add_uint32(perfetto::packet::kTrustedPacketSequenceId, sequence_);
    fill(&packet);
  }
  template <typename Fill>
  void describe(uint64_t track, std::string* out, Fill&& fill) const {
    add_packet(out, [&](pbf_writer* packet) {
      pbf_writer described(*packet, perfetto::packet::kTrackDescriptor);
      described.add_uint64(perfetto::descriptor::kUuid, track);
      fill(&described);
    });
  }
  template <typename Fill>
  void add_event(Nanos time, int32_t type, uint64_t track, std::string* out, Fill&& fill) {
    if (waiting_.size() == kMostWaiting) flush(out);
    const size_t at = bytes_.size();
    pbf_writer event(bytes_);
    event.add_enum(perfetto::event::kType, type);
    event.add_uint64(perfetto::event::kTrackUuid, track);
    fill(&event);
    const Nanos shared = std::max<Nanos>(0, time + origin_.clock_offset);
    waiting_.push_back({shared, at, bytes_.size() - at});
  }

  static void add_number(pbf_writer* event, Detail detail, uint64_t value) {
    pbf_writer annotation(*event, perfetto::event::kDebugAnnotations);
    annotation.add_uint64(perfetto::annotation::kNameIid, detail);
    annotation.add_uint64(perfetto::annotation::kUintValue, value);
  }
  void add_batch(pbf_writer* event, const BatchNumber& batch) {
    pbf_writer annotation(*event, perfetto::event::kDebugAnnotations);
    annotation.add_uint64(perfetto::annotation::kNameIid, kBatch);
    annotation.add_string(perfetto::annotation::kStringValue, to_text(batch));
  }

  static void add_name(pbf_writer* names, perfetto::Field field, uint64_t number,
                       std::string_view name) {
    pbf_writer one(*names, field);
    one.add_uint64(perfetto::interned::kIid, number);
    one.add_string(perfetto::interned::kName, text(name));
  }
  // The number of a name; a new one is told to readers at once, before what waits.
  uint64_t number_of(std::string_view name, std::string* out) {
    key_.assign(name);
    const auto [it, is_new] = names_.try_emplace(key_, names_.size() + 1);
    const uint64_t number = it->second;
    if (is_new) {
      add_packet(out, [&](pbf_writer* packet) {
        pbf_writer names(*packet, perfetto::packet::kInternedData);
        add_name(&names, perfetto::interned::kEventNames, number, name);
      });
    }
    return number;
  }

  const Origin origin_;
  const uint32_t sequence_;
  std::string key_;
  std::unordered_map<std::string, uint64_t> names_;
  std::string bytes_;  // of the events that wait, as messages
  std::vector<Waiting> waiting_;
};

}  // namespace

std::unique_ptr<TrackWriter> perfetto_tracks(Origin origin) {
  return std::make_unique<PerfettoTracks>(std::move(origin));
}

}  // namespace rueda::timeline
