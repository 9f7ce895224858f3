// Timeline files as ranks and launcher see them: who writes which, in which form, and what of a
// file is whole when its writer was killed.
//
//   .json or anything else   a JSON array with one event on each line:
//
//                              [
//                              {...},
//                              {...}
//                              ]
//
//   .pftrace,                packets of Perfetto's Trace message, one behind the other: a byte
//   .perfetto-trace          0x0a, the length as a varint, the packet
//   ... and .gz              gzip members (gzip_member.h) of such packets
//
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "collectives/base/types.h"

namespace rueda::timeline {

enum class Form : uint8_t { kJson, kPackets, kCompressedPackets };

// By the end of the path.
Form form_of(std::string_view path);

struct TimelineFile {
  std::string path;
  // Every rank writes a file. Else rank 0 alone writes.
  bool all_ranks = false;
  Form form = Form::kJson;

  // A track for each stage, on one clock. Else in Horovod's dialect.
  bool in_tracks() const { return all_ranks || form != Form::kJson; }
};

inline constexpr std::string_view kTimelineEnd = "\n]\n";
// Ends the name of a file that is written anew because the other has become too long.
inline constexpr std::string_view kRewritten = ".rueda-rewritten";

// The file that a rank writes when the timeline is set to `path`; empty: none. {rank} in the path
// means all ranks; all_ranks puts "rank<N>" before the extension where {rank} is missing:
// "t.json" -> "t.rank3.json". "DYNAMIC" is Horovod's word for "not yet, but perhaps while it runs".
std::optional<TimelineFile> timeline_file(const std::string& path, bool all_ranks, Rank rank);

// What a file holds, without what was cut off in the middle of being written by the death of its
// writer. Empty for what is no timeline.
std::string_view whole_events(std::string_view text);  // without brackets
std::string_view whole_packets(std::string_view bytes);
std::string_view whole_part(Form form, std::string_view bytes);

}  // namespace rueda::timeline
