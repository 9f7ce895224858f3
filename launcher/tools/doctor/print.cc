// Reports as text for people and as JSON for programs.
#include <algorithm>
#include <array>

#include "launcher/tools/doctor/findings.h"

namespace rueda::doctor {
namespace {

constexpr size_t kNameColumn = 26;

std::string line_of(const Finding& finding) {
  std::string text = finding.level == Level::kFine ? "    " : "  ! ";
  text += finding.name;
  if (finding.name.size() < kNameColumn) text.append(kNameColumn - finding.name.size(), ' ');
  return text + " " + finding.value + "\n";
}

void add_sections(const std::vector<Finding>& findings, std::string* text) {
  std::string section;
  for (const Finding& finding : findings) {
    if (finding.section != section) *text += "\n" + finding.section + "\n";
    section = finding.section;
    *text += line_of(finding);
  }
}

// Worst first.
void add_advice(const std::vector<Finding>& findings, const std::string& host, std::string* text) {
  for (const Level level : {Level::kBlocker, Level::kProblem, Level::kNote}) {
    for (const Finding& finding : findings) {
      if (finding.level != level) continue;
      *text += std::string("  ") + level_name(level) + ": " + host + finding.name + " (" +
               finding.value + "): " + finding.advice + "\n";
    }
  }
}

std::string verdict(Level level) {
  switch (level) {
    case Level::kBlocker: return "No job can start here before the blockers are gone.\n";
    case Level::kProblem: return "Jobs start, but the problems above are likely to hurt.\n";
    case Level::kNote:
    case Level::kFine: break;
  }
  return "Jobs can start.\n";
}

void quote(const std::string& text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      *out += "\\u00";
      *out += kHex[c >> 4];
      *out += kHex[c & 15];
    } else {
      *out += c;
    }
  }
  *out += '"';
}

// Reads what as_json writes, and refuses everything else.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  bool take(std::string_view word) {
    if (text_.compare(at_, word.size(), word) != 0) return false;
    at_ += word.size();
    return true;
  }
  bool string(std::string* out) {
    if (!take("\"")) return false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      char c = text_[at_];
      if (c == '\\') {
        if (++at_ >= text_.size()) return false;
        c = text_[at_];
        if (c == 'u') {
          if (at_ + 4 >= text_.size()) return false;
          int code = 0;
          for (const char digit : text_.substr(at_ + 1, 4)) {
            const size_t value = std::string_view("0123456789abcdef").find(digit);
            if (value == std::string_view::npos) return false;
            code = code * 16 + static_cast<int>(value);
          }
          if (code >= 0x20) return false;
          c = static_cast<char>(code);
          at_ += 4;
        } else if (c != '"' && c != '\\') {
          return false;
        }
      }
      *out += c;
    }
    return take("\"");
  }
  bool finding(Finding* finding) {
    std::string level;
    if (!(take("{\"section\":") && string(&finding->section) && take(",\"name\":") &&
          string(&finding->name) && take(",\"value\":") && string(&finding->value) &&
          take(",\"level\":") && string(&level) && take(",\"advice\":") &&
          string(&finding->advice) && take(",\"compared\":"))) {
      return false;
    }
    bool known = false;
    for (const Level at : {Level::kFine, Level::kNote, Level::kProblem, Level::kBlocker}) {
      if (level == level_name(at)) finding->level = at, known = true;
    }
    finding->compared = take("true");
    return known && (finding->compared || take("false")) && take("}");
  }
  bool report(Report* report) {
    std::string ignored;
    if (!(take("{\"host\":") && string(&report->host) && take(",\"worst\":") && string(&ignored) &&
          take(",\"findings\":["))) {
      return false;
    }
    for (bool first = true; !take("]"); first = false) {
      if (!first && !take(",")) return false;
      report->findings.emplace_back();
      if (!finding(&report->findings.back())) return false;
    }
    if (!take("}")) return false;
    take("\n");
    return at_ == text_.size();
  }
  size_t at() const { return at_; }

 private:
  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

std::string as_text(const Report& report) {
  std::string text = "rueda doctor on " + report.host + "\n";
  add_sections(report.findings, &text);
  const Level level = worst(report.findings);
  if (level != Level::kFine) text += "\nWhat to do\n";
  add_advice(report.findings, "", &text);
  return text + "\n" + verdict(level);
}

std::string as_text(const std::vector<Report>& reports, const std::vector<Finding>& differences) {
  std::string text = "rueda doctor on " + std::to_string(reports.size()) + " hosts\n";
  Level level = worst(differences);
  for (const Report& report : reports) {
    level = std::max(level, worst(report.findings));
    text += "    " + report.host + ": " + level_name(worst(report.findings)) + "\n";
  }
  add_sections(differences, &text);
  if (level != Level::kFine) text += "\nWhat to do\n";
  add_advice(differences, "", &text);
  for (const Report& report : reports) add_advice(report.findings, report.host + ": ", &text);
  return text + "\n" + verdict(level);
}

std::string as_json(const Report& report) {
  std::string text = "{\"host\":";
  quote(report.host, &text);
  text += ",\"worst\":\"" + std::string(level_name(worst(report.findings))) + "\",\"findings\":[";
  for (const Finding& finding : report.findings) {
    if (&finding != &report.findings.front()) text += ',';
    const std::array<std::pair<const char*, std::string>, 5> fields = {
        {{"{\"section\":", finding.section},
         {",\"name\":", finding.name},
         {",\"value\":", finding.value},
         {",\"level\":", level_name(finding.level)},
         {",\"advice\":", finding.advice}}};
    for (const auto& [name, value] : fields) {
      text += name;
      quote(value, &text);
    }
    text += std::string(",\"compared\":") + (finding.compared ? "true}" : "false}");
  }
  return text + "]}";
}

Result<Report> from_json(const std::string& text) {
  Report report;
  Reader reader(text);
  if (!reader.report(&report)) {
    return invalid_argument("not what `rueda doctor --json` prints (at byte " +
                            std::to_string(reader.at()) + ")");
  }
  return report;
}

}  // namespace rueda::doctor
