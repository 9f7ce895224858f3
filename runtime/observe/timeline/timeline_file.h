// Timeline files as ranks and launcher see them: who writes which, and what makes one whole again.
//
// A file is a JSON array with one event on each line:
//
//   [
//   {...},
//   {...}
//   ]
//
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "collectives/base/types.h"

namespace rueda::timeline {

struct TimelineFile {
  std::string path;
  // Every rank writes a file, in tracks on one clock. Else rank 0 alone writes, in Horovod's
  // dialect.
  bool all_ranks = false;
};

inline constexpr std::string_view kTimelineEnd = "\n]\n";

// The file that a rank writes when the timeline is set to `path`; empty: none. {rank} in the path
// means all ranks; all_ranks puts "rank<N>" before the extension where {rank} is missing:
// "t.json" -> "t.rank3.json". "DYNAMIC" is Horovod's word for "not yet, but perhaps while it runs".
std::optional<TimelineFile> timeline_file(const std::string& path, bool all_ranks, Rank rank);

// The events of a file, without brackets; whatever was cut off in the middle of being written, by
// the death of its writer, is left out. Empty for what is no timeline.
std::string_view whole_events(std::string_view text);

}  // namespace rueda::timeline
