#include "runtime/observe/timeline/timeline_file.h"

namespace rueda::timeline {
namespace {

constexpr std::string_view kBegin = "[\n";
constexpr std::string_view kRank = "{rank}";

}  // namespace

std::optional<TimelineFile> timeline_file(const std::string& path, bool all_ranks, Rank rank) {
  if (path.empty() || path == "DYNAMIC") return std::nullopt;
  TimelineFile file{path, true};
  const size_t mark = path.find(kRank);
  if (mark != std::string::npos) {
    file.path.replace(mark, kRank.size(), std::to_string(rank));
    return file;
  }
  if (!all_ranks) {
    if (rank != 0) return std::nullopt;
    file.all_ranks = false;
    return file;
  }
  const size_t name = path.find_last_of('/') + 1;  // 0 where there is none
  const size_t dot = path.find_last_of('.');
  const size_t at = dot == std::string::npos || dot <= name ? path.size() : dot;
  file.path.insert(at, ".rank" + std::to_string(rank));
  return file;
}

std::string_view whole_events(std::string_view text) {
  if (!text.starts_with(kBegin)) return {};
  text.remove_prefix(kBegin.size());
  if (text.ends_with(kTimelineEnd)) {
    text.remove_suffix(kTimelineEnd.size());
    return text;
  }
  // Only lines that have ended were written as a whole.
  const size_t end = text.find_last_of('\n');
  text = text.substr(0, end == std::string_view::npos ? 0 : end);
  while (!text.empty() &&
         (text.back() == ',' || text.back() == '\n' || text.back() == ']' || text.back() == '\0')) {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace rueda::timeline
