// Timeline files after their ranks have ended: what a killed rank left open is closed, and where
// the user asked for one file of all ranks, the ranks' parts become that.
#pragma once

#include <string>
#include <vector>

namespace rueda::launcher {

struct TimelineFiles {
  std::string path;        // as RUEDA_TIMELINE; empty: none
  bool all_ranks = false;  // as RUEDA_TIMELINE_ALL_RANKS
  int ranks = 0;
};

// Before the ranks start: parts that an earlier job left must not be taken for this one's.
void remove_stale_parts(const TimelineFiles& files);
// What the user should know, a line each; empty when all is well. Files that were never begun (a
// program that does not use rueda) are none of that, unless none of the parts is there.
std::vector<std::string> finish_timelines(const TimelineFiles& files);

}  // namespace rueda::launcher
