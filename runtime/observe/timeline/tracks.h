// TrackWriter: what a timeline in tracks is made of, in the form of a file. tracks_layout decides
// what is shown where; a writer says it in bytes. A process for each rank, rows of tracks in it.
//
//   json_tracks       Chrome's events
//   perfetto_tracks   packets of Perfetto's Trace message
//
// Pure. Times are the own clock's; writers add Origin::clock_offset. One thread.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/observe/timeline/event.h"
#include "runtime/observe/timeline/layout.h"

namespace rueda::timeline {

enum class Track : uint8_t {
  kBackward,
  kSubmitted,
  kNegotiated,
  kQueued,
  kPacked,
  kWire,
  kUnpacked,
  kStep,
  kMarks
};
inline constexpr std::array<const char*, 9> kTrackNames = {
    "backward",    "submitted", "negotiated",     "queued", "packed",
    "on the wire", "unpacked",  "optimizer step", "marks"};
inline constexpr const char* kBytesCounter = "bytes";

inline const char* name_of(Track track) { return kTrackNames[static_cast<size_t>(track)]; }

// Of a track; slices that do not fit any more share the last one.
inline constexpr size_t kMostRows = 64;

// Slices of one row do not overlap.
struct Row {
  Track track = Track::kMarks;
  size_t number = 0;  // of the track's, from 0
};

// A slice, as viewers call it, of a row.
struct Interval {
  Row row;
  std::string_view name;
  Nanos begin = 0;
  Nanos end = 0;
  std::optional<BatchNumber> batch;  // then bytes count, too
  int64_t bytes = 0;
  size_t tensors = 0;                // 0: it is one's own
  bool open = false;                 // it had not ended when the timeline did
  uint64_t arrow = 0;                // begins here, by its number; 0: none
  std::vector<uint64_t> arrows_end;  // here, by the end of the slice
};

// "n17", "p2.40", of a process set "s1.n17".
std::string to_text(const BatchNumber& batch);

class TrackWriter {
 public:
  virtual ~TrackWriter() = default;
  // The beginning of a file; what was said about names before stays in force.
  virtual void open(std::string* out) = 0;
  // Before the row's first event, and behind another open().
  virtual void row(const Row& row, std::string* out) = 0;
  virtual void slice(const Interval& slice, std::string* out) = 0;
  // row: none: of the whole rank.
  virtual void instant(std::optional<Row> row, std::string_view name, Nanos time,
                       std::string* out) = 0;
  // Bytes of all tensors so far whose batches have ended.
  virtual void bytes(int64_t bytes, Nanos time, std::string* out) = 0;
  // Everything is in *out then.
  virtual void flush(std::string* /*out*/) {}
};

std::unique_ptr<TrackWriter> json_tracks(Origin origin);
std::unique_ptr<TrackWriter> perfetto_tracks(Origin origin);

}  // namespace rueda::timeline
