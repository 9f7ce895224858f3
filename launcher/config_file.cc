#include "launcher/config_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <set>

#include "launcher/flight_explain.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

struct Entry {
  std::string key;    // "params.cache_capacity", "controller"
  std::string value;  // never empty
  int line = 0;
};

enum class Takes {
  kCount, kMegabytes, kSeconds, kSwitch, kOppositeSwitch, kText, kController, kNothing
};

// What a key does. kNothing: its `meaning` says why it has no effect, or, where `refused`, why it
// cannot be.
struct Row {
  const char* key;
  Takes takes;
  const char* variable;
  const char* meaning = "";
  bool refused = false;
};

constexpr const char* kBySize = "rueda chooses by sizes and hosts";
constexpr const char* kOnlyAutotune = "it matters only with autotuning, which rueda does not have";

constexpr Row kRows[] = {
    {"controller", Takes::kController, ""},
    {"params.fusion_threshold_mb", Takes::kMegabytes, "RUEDA_FUSION_THRESHOLD"},
    {"params.cycle_time_ms", Takes::kNothing, "",
     "rueda has no cycle: ranks are woken by tensors and by each other"},
    {"params.cache_capacity", Takes::kCount, "RUEDA_CACHE_CAPACITY"},
    {"params.hierarchical_allreduce", Takes::kNothing, "", kBySize},
    {"params.hierarchical_allgather", Takes::kNothing, "", kBySize},
    {"params.torus_allreduce", Takes::kNothing, "", kBySize},
    {"autotune.enabled", Takes::kNothing, "",
     "rueda has no autotuner yet; leave it out, the defaults are meant to need no tuning", true},
    {"autotune.log_file", Takes::kNothing, "", kOnlyAutotune},
    {"autotune.warmup_samples", Takes::kNothing, "", kOnlyAutotune},
    {"autotune.steps_per_sample", Takes::kNothing, "", kOnlyAutotune},
    {"autotune.bayes_opt_max_samples", Takes::kNothing, "", kOnlyAutotune},
    {"autotune.gaussian_process_noise", Takes::kNothing, "", kOnlyAutotune},
    {"timeline.filename", Takes::kText, "RUEDA_TIMELINE"},
    {"timeline.mark_cycles", Takes::kSwitch, "RUEDA_TIMELINE_MARK_CYCLES"},
    {"stall_check.warning_time_seconds", Takes::kSeconds, "RUEDA_STALL_CHECK_TIME_SECONDS"},
    {"stall_check.shutdown_time_seconds", Takes::kSeconds, "RUEDA_STALL_SHUTDOWN_TIME_SECONDS"},
    {"stall_check.enabled", Takes::kSwitch, ""},
    {"library_options.mpi_threads_disable", Takes::kNothing, "",
     "rueda calls MPI from one thread, and a program may have more"},
    {"library_options.num_nccl_streams", Takes::kNothing, "", "rueda uses one stream per GPU"},
    {"library_options.thread_affinity", Takes::kNothing, "",
     "rueda does not bind its thread to a core; --bind says which cores a rank may use", true},
    {"library_options.gloo_timeout_seconds", Takes::kNothing, "",
     "Gloo is not used; see --start-timeout and --stall-check-shutdown-time-seconds"},
    {"logging.level", Takes::kText, "RUEDA_LOG_LEVEL"},
    {"logging.with_timestamp", Takes::kOppositeSwitch, "RUEDA_LOG_HIDE_TIME"},
};

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::string_view without_spaces(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t\r") + 1);
}

// The value behind "key:", without its comment; "" for none, which YAML calls null.
Result<std::string> read_value(std::string_view text) {
  text = without_spaces(text);
  if (text.empty() || text.front() == '#') return std::string();
  const char first = text.front();
  if (first == '\'' || first == '"') {
    std::string value;
    size_t at = 1;
    for (; at < text.size(); ++at) {
      if (first == '"' && text[at] == '\\') return invalid_argument("a backslash within quotes");
      if (text[at] != first) {
        value += text[at];
      } else if (first == '\'' && text.substr(at, 2) == "''") {
        value += text[at++];
      } else {
        break;
      }
    }
    if (at >= text.size()) return invalid_argument("the closing quote is missing");
    const std::string_view rest = without_spaces(text.substr(at + 1));
    if (!rest.empty() && rest.front() != '#')
      return invalid_argument("text behind the closing quote");
    return value.empty() ? Result<std::string>(invalid_argument("the value is empty")) : value;
  }
  if (std::string_view("[{&*!|>%@`-,?").find(first) != std::string_view::npos &&
      !(first == '-' && text.size() > 1 && text[1] != ' ')) {
    return invalid_argument(
        "more of YAML than is read here, which is 'key: value' lines in sections");
  }
  size_t end = 0;
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (end < text.size() && !(text[end] == '#' && is_space(text[end - 1]))) ++end;
  std::string value(without_spaces(text.substr(0, end)));
  if (value.find(": ") != std::string::npos || value.back() == ':')
    return invalid_argument("a ':' within a value needs quotes");
  return value == "~" || value == "null" ? std::string() : value;
}

// Sections and keys, in the order of the file.
class Reader {
 public:
  Status read_line(std::string_view line, int number) {
    if (line.find('\0') != std::string_view::npos)
      return invalid_argument("a zero byte: this is no text");
    const size_t indent = line.find_first_not_of(' ');
    const std::string_view text = without_spaces(line);
    if (text.empty() || text.front() == '#' || (indent == 0 && text == "---")) return {};
    if (line[indent] == '\t') return invalid_argument("a tab in front of a key: use spaces");
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos || !is_word(text.substr(0, colon)) ||
        (colon + 1 < text.size() && text[colon + 1] != ' ' && text[colon + 1] != '\t')) {
      return invalid_argument("expected 'key: value'");
    }
    std::string key(text.substr(0, colon));
    RUEDA_ASSIGN_OR_RETURN(std::string value, read_value(text.substr(colon + 1)));
    if (indent > 0) {
      if (section_.empty()) return invalid_argument("a key without a section above it");
      if (indent_ != 0 && indent != indent_)
        return invalid_argument("keys of a section begin in one column");
      indent_ = indent;
      key = section_ + "." + key;
    } else {
      section_ = value.empty() ? key : "";
      indent_ = 0;
    }
    if (!seen_.insert(key).second) return invalid_argument(key + " is there twice");
    if (!value.empty()) entries.push_back({std::move(key), std::move(value), number});
    if (indent == 0 && !section_.empty()) sections.emplace_back(section_, number);
    return {};
  }

  std::vector<Entry> entries;
  std::vector<std::pair<std::string, int>> sections;

 private:
  std::string section_;  // "" when the last key of the first column was none
  size_t indent_ = 0;
  std::set<std::string> seen_;
};

Result<bool> read_switch(const std::string& value) {
  std::string lower = value;
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  if (lower == "true" || lower == "yes" || lower == "on") return true;
  if (lower == "false" || lower == "no" || lower == "off") return false;
  return invalid_argument("expected true or false, found '" + value + "'");
}

Result<std::string> variable_text(Takes takes, const std::string& value) {
  const char* const end = value.data() + value.size();
  if (takes == Takes::kCount || takes == Takes::kMegabytes) {
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc() || stop != end)
      return invalid_argument("expected a whole number, found '" + value + "'");
    if (number < 0 || number > (int64_t{1} << 40))
      return invalid_argument("expected 0 or more, found " + value);
    return std::to_string(takes == Takes::kMegabytes ? number << 20 : number);
  }
  if (takes == Takes::kSeconds) {
    double seconds = 0;
    const auto [stop, error] = std::from_chars(value.data(), end, seconds);
    if (error != std::errc() || stop != end || !std::isfinite(seconds) || seconds < 0)
      return invalid_argument("expected seconds, 0 or more, found '" + value + "'");
    return value;
  }
  if (takes == Takes::kSwitch || takes == Takes::kOppositeSwitch) {
    RUEDA_ASSIGN_OR_RETURN(const bool on, read_switch(value));
    return std::string(on == (takes == Takes::kSwitch) ? "1" : "0");
  }
  return value;
}

// "; did you mean params?": the nearest known name, if one is near.
std::string guess(const std::string& wrong, const std::vector<std::string>& known) {
  const std::string* best = nullptr;
  size_t least = wrong.size() / 3 + 1;
  for (const std::string& name : known) {
    const size_t distance = edit_distance(wrong, name);
    if (distance < least) best = &name, least = distance;
  }
  return best == nullptr ? "" : "; did you mean " + *best + "?";
}

std::string section_of(const std::string& key) { return key.substr(0, key.find('.')); }

Status add_entry(const Entry& entry, const std::string& origin, FileSettings* out) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows),
                                [&](const Row& known) { return entry.key == known.key; });
  if (row == std::end(kRows)) {
    std::vector<std::string> keys;
    for (const Row& known : kRows) {
      if (section_of(known.key) == section_of(entry.key)) keys.emplace_back(known.key);
    }
    if (!keys.empty() || entry.key.find('.') == std::string::npos)
      out->notes.push_back(origin + " is not known" + guess(entry.key, keys));
    return {};
  }
  switch (row->takes) {
    case Takes::kController:
      if (entry.value != "gloo" && entry.value != "mpi")
        return invalid_argument("expected gloo or mpi, found '" + entry.value + "'");
      out->mpi = entry.value == "mpi";
      return {};
    case Takes::kNothing: {
      const auto on = read_switch(entry.value);
      if (on.ok() && !on.value()) return {};  // nothing of the kind is ever done
      if (row->refused) return invalid_argument(row->meaning);
      out->notes.push_back(origin + " has no effect: " + row->meaning);
      return {};
    }
    default: break;
  }
  RUEDA_ASSIGN_OR_RETURN(std::string text, variable_text(row->takes, entry.value));
  if (entry.key != "stall_check.enabled") {
    out->settings.push_back({row->variable, std::move(text), origin});
  } else if (text == "0") {
    for (const char* variable :
         {"RUEDA_STALL_CHECK_TIME_SECONDS", "RUEDA_STALL_SHUTDOWN_TIME_SECONDS"})
      out->settings.push_back({variable, "0", origin});
  }
  return {};
}

}  // namespace

Result<FileSettings> parse_config_file(std::string_view text, const std::string& name) {
  Reader reader;
  int number = 0;
  const auto at = [&](int line) { return name + ":" + std::to_string(line); };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const Status read = reader.read_line(text.substr(0, end), ++number);
    if (!read.ok()) return invalid_argument(at(number) + ": " + read.message());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  FileSettings out;
  std::vector<std::string> known = {"controller"};
  for (const Row& row : kRows) {
    if (section_of(row.key) != known.back()) known.push_back(section_of(row.key));
  }
  for (const auto& [section, line] : reader.sections) {
    const bool is_known = std::find(known.begin(), known.end(), section) != known.end();
    if (!is_known)
      out.notes.push_back(section + " (" + at(line) + ") is not known" + guess(section, known));
  }
  // A switched-off check comes last: it wins over the times beside it.
  std::stable_partition(reader.entries.begin(), reader.entries.end(),
                        [](const Entry& entry) { return entry.key != "stall_check.enabled"; });
  for (const Entry& entry : reader.entries) {
    const std::string origin = entry.key + " (" + at(entry.line) + ")";
    const Status added = add_entry(entry, origin, &out);
    if (!added.ok()) return invalid_argument(origin + ": " + added.message());
  }
  return out;
}

Status add_config_file(Options* options) {
  const std::string& path = options->config_file;
  if (path.empty()) return {};
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad())
    return invalid_argument("cannot read the configuration file " + path + ": " +
                            std::generic_category().message(errno));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxBytes)
    return invalid_argument(path + " is too long for a configuration file");
  RUEDA_ASSIGN_OR_RETURN(FileSettings found, parse_config_file(text, path));
  if (options->stall_check) {  // a flag wins over the file
    std::erase_if(found.settings, [](const Setting& setting) {
      return setting.flag.starts_with("stall_check.enabled ");
    });
  }
  // What comes later wins: first the file, then the flags.
  options->settings.insert(options->settings.begin(), found.settings.begin(), found.settings.end());
  if (found.mpi && !options->gloo) options->mpi = options->mpi || *found.mpi;
  options->notes = std::move(found.notes);
  return {};
}

}  // namespace rueda::launcher
