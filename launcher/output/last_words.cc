#include "launcher/output/last_words.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMostBytes = 400;  // of each line
constexpr size_t kMostLines = 10;
constexpr size_t kMostBefore = 4;  // a traceback
constexpr size_t kMostAfter = 2;   // it, and as many at the end
constexpr std::string_view kTraceback = "Traceback (most recent call last):";
constexpr std::string_view kFrame = "  File \"";

bool is_users(std::string_view frame) {
  for (const char* const folder :
       {"/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "\"<frozen"}) {
    if (frame.find(folder) != std::string_view::npos) return false;
  }
  return true;
}

void push_bounded(std::deque<std::string>* lines, std::string line, size_t most) {
  lines->push_back(std::move(line));
  if (lines->size() > most) lines->pop_front();
}

// A warning of rueda itself, "[2026-11-24 18:45:34.500] [W] [rank 0/2 coordinator] ...": that
// another rank is slow, say, is no reason for this one's end.
bool is_remark(std::string_view line) {
  constexpr size_t kMostTime = 30;
  const size_t at = line.starts_with('[') ? line.find("] [rank ") : std::string_view::npos;
  return at <= kMostTime && at >= 2 && (line[at - 1] == 'W' || line[at - 1] == 'I');
}

}  // namespace

void LastWords::add(std::string_view text) {
  if (text.find_first_not_of(" \t") == std::string_view::npos || is_remark(text)) return;
  std::string line(text.substr(0, kMostBytes));
  if (text.starts_with(kTraceback)) return begin_traceback(std::move(line));
  if (!traceback_) return push_bounded(&before_, std::move(line), kMostLines);
  Traceback& traceback = *traceback_;
  if (traceback.open && line[0] == ' ') return add_to_frames(&traceback, std::move(line));
  if (traceback.open) {
    traceback.open = false;
    traceback.exception = std::move(line);
  } else if (traceback.after.size() < kMostAfter) {
    traceback.after.push_back(std::move(line));
  } else {
    traceback.cut = traceback.cut || traceback.end.size() == kMostAfter;
    push_bounded(&traceback.end, std::move(line), kMostAfter);
  }
}

// Of an earlier one a few lines are kept.
void LastWords::begin_traceback(std::string head) {
  const Lines earlier = lines();
  before_.clear();
  for (const std::string& line : earlier) push_bounded(&before_, line, kMostBefore);
  traceback_.emplace(std::move(head));
}

void LastWords::add_to_frames(Traceback* traceback, std::string line) {
  const bool begins = line.starts_with(kFrame);
  if (begins) {
    traceback->since_users = is_users(line) ? 0 : traceback->since_users + 1;
    traceback->last = {std::move(line)};
  } else if (traceback->last.size() == 1 && !line.starts_with("  [")) {
    traceback->last.push_back(std::move(line));  // its code; no marks below it, no repetitions
  }
  if (traceback->since_users == 0) traceback->users = traceback->last;
}

std::vector<std::string> LastWords::lines() const {
  Lines lines(before_.begin(), before_.end());
  if (!traceback_) return lines;
  const Traceback& traceback = *traceback_;
  const auto append = [&lines](const auto& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  lines.push_back(traceback.head);
  append(traceback.users);
  if (traceback.since_users > 1) lines.push_back("  ...");
  if (traceback.since_users > 0) append(traceback.last);
  if (!traceback.exception.empty()) lines.push_back(traceback.exception);
  append(traceback.after);
  if (traceback.cut) lines.push_back("...");
  append(traceback.end);
  return lines;
}

}  // namespace rueda::launcher
