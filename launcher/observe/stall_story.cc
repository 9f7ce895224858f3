#include "launcher/observe/stall_story.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "collectives/base/number_text.h"

namespace rueda::launcher {
namespace {

constexpr std::string_view kBegins = "stalled for ";
constexpr std::string_view kFrameIndent = "        ";  // of a stack, below its heading

bool is_number(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.'; }

// Without "61 s" and the like.
void append_without_times(const std::string& line, std::string* out) {
  for (size_t at = 0; at < line.size();) {
    size_t end = at;
    while (end < line.size() && is_number(line[end])) ++end;
    const bool time = end > at && line.compare(end, 2, " s") == 0;
    if (time) end += 2;
    if (end == at) ++end;
    if (!time) out->append(line, at, end - at);
    at = end;
  }
}

// What makes it another explanation. Native frames differ from moment to moment where a rank
// computes; what Python or the kernel say of it does not.
std::string gist_of(const std::vector<std::string>& lines) {
  std::string gist;
  bool native = false;
  for (const std::string& line : lines) {
    native = line.find("native stack") != std::string::npos ||
             (native && line.starts_with(kFrameIndent));
    if (native) continue;
    append_without_times(line, &gist);
    gist += '\n';
  }
  return gist;
}

}  // namespace

std::vector<std::string> StallStory::tell(std::vector<std::string> lines, bool anew) {
  std::string gist = gist_of(lines);
  const bool same = std::exchange(told_, gist) == gist;
  if (!same || anew || lines.empty()) return lines;
  const auto waits = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.starts_with(kBegins);
  });
  std::string line = "still " + lines.front() + ", as before";
  if (waits > 1) line += ", and so " + counted(static_cast<size_t>(waits - 1), "more operation");
  return {line};
}

}  // namespace rueda::launcher
