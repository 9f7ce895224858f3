#include "launcher/config_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>

#include "launcher/nearest_name.h"
#include "launcher/yaml_lines.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

struct Entry {
  std::string key;  // "params.cache_capacity", "controller"
  std::string value;
  int line;
};

enum class Takes {
  kCount,
  kMegabytes,
  kSeconds,
  kSwitch,
  kOppositeSwitch,
  kText,
  kController,
  kNothing
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
      out->notes.push_back(origin + " is not known" + did_you_mean(entry.key, keys));
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
  RUEDA_ASSIGN_OR_RETURN(const auto lines, read_yaml_lines(text, name));
  const auto at = [&](int line) { return name + ":" + std::to_string(line); };
  FileSettings out;
  std::vector<std::string> known = {"controller"};
  for (const Row& row : kRows) {
    if (section_of(row.key) != known.back()) known.push_back(section_of(row.key));
  }
  std::vector<Entry> entries;
  for (const YamlLine& line : lines) {
    if (!line.key.empty()) {
      const std::string key = (line.section.empty() ? "" : line.section + ".") + line.key;
      entries.push_back({key, line.value, line.line});
    } else if (std::find(known.begin(), known.end(), line.section) == known.end()) {
      out.notes.push_back(line.section + " (" + at(line.line) + ") is not known" +
                          did_you_mean(line.section, known));
    }
  }
  // A switched-off check comes last: it wins over the times beside it.
  std::stable_partition(entries.begin(), entries.end(),
                        [](const Entry& entry) { return entry.key != "stall_check.enabled"; });
  for (const Entry& entry : entries) {
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
