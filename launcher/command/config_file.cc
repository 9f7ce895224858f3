#include "launcher/command/config_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>

#include "launcher/command/nearest_name.h"
#include "launcher/command/setting_flags.h"
#include "launcher/command/yaml_lines.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

struct Entry {
  std::string key;  // "params.cache_capacity", "controller"
  std::string value;
  int line;
};

// A key without effect. `meaning` says why or, where `refused`, why it cannot be.
struct NoEffect {
  const char* key;
  const char* meaning;
  bool refused = false;
};

constexpr const char* kController = "controller";
constexpr const char* kBySize = "rueda chooses by sizes and hosts";
constexpr const char* kOnlyAutotune = "nothing is tuned (docs/benchmarks.md)";

constexpr NoEffect kNoEffect[] = {
    {"params.cycle_time_ms", "rueda has no cycle: ranks are woken by tensors and by each other"},
    {"params.hierarchical_allreduce", kBySize},
    {"params.hierarchical_allgather", kBySize},
    {"params.torus_allreduce", kBySize},
    {"autotune.log_file", "nothing is tuned (docs/benchmarks.md), and no log is written"},
    {"autotune.warmup_samples", kOnlyAutotune},
    {"autotune.steps_per_sample", kOnlyAutotune},
    {"autotune.bayes_opt_max_samples", kOnlyAutotune},
    {"autotune.gaussian_process_noise", kOnlyAutotune},
    {"library_options.mpi_threads_disable",
     "rueda calls MPI from one thread, and a program may have more"},
    {"library_options.num_nccl_streams", "rueda uses one stream per GPU"},
    {"library_options.thread_affinity",
     "rueda does not bind its thread to a core; --bind says which cores a rank may use", true},
    {"library_options.gloo_timeout_seconds",
     "Gloo is not used; see --start-timeout and --stall-check-shutdown-time-seconds"},
};

// All that there are, in the order in which a wrong one is compared with them.
std::vector<std::string> known_keys() {
  std::vector<std::string> keys = {kController};
  for (const SettingKey& known : setting_keys()) keys.emplace_back(known.key);
  for (const ElasticFlag& known : elastic_flags()) keys.emplace_back(known.key);
  for (const NoEffect& known : kNoEffect) keys.emplace_back(known.key);
  return keys;
}

Result<bool> read_switch(const std::string& value) {
  std::string lower = value;
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  if (lower == "true" || lower == "yes" || lower == "on") return true;
  if (lower == "false" || lower == "no" || lower == "off") return false;
  return invalid_argument("expected true or false, found '" + value + "'");
}

// What the variable is set to; empty: it is left alone.
Result<std::optional<std::string>> variable_text(const SettingKey& key, const std::string& value) {
  const char* const end = value.data() + value.size();
  switch (key.takes) {
    case Takes::kText: return std::optional(value);
    case Takes::kWhole:
    case Takes::kMebibytes: {
      int64_t number = 0;
      const auto [stop, error] = std::from_chars(value.data(), end, number);
      if (error != std::errc() || stop != end)
        return invalid_argument("expected a whole number, found '" + value + "'");
      if (number < 0 || number > kMostMebibytes)
        return invalid_argument("expected 0 or more, found " + value);
      return std::optional(std::to_string(key.takes == Takes::kMebibytes ? number << 20 : number));
    }
    case Takes::kReal: {
      double seconds = 0;
      const auto [stop, error] = std::from_chars(value.data(), end, seconds);
      if (error != std::errc() || stop != end || !std::isfinite(seconds) || seconds < 0)
        return invalid_argument("expected seconds, 0 or more, found '" + value + "'");
      return std::optional(value);
    }
    case Takes::kSwitch: {
      RUEDA_ASSIGN_OR_RETURN(const bool on, read_switch(value));
      const char* const text = on ? key.on : key.off;
      return text == nullptr ? std::optional<std::string>() : std::optional<std::string>(text);
    }
  }
  return std::optional<std::string>();
}

std::string section_of(const std::string& key) { return key.substr(0, key.find('.')); }

void add_unknown(const Entry& entry, const std::string& origin, FileSettings* out) {
  std::vector<std::string> keys;
  for (std::string& known : known_keys()) {
    if (section_of(known) == section_of(entry.key)) keys.push_back(std::move(known));
  }
  if (!keys.empty() || entry.key.find('.') == std::string::npos)
    out->notes.push_back(origin + " is not known" + did_you_mean(entry.key, keys));
}

Status add_entry(const Entry& entry, const std::string& origin, FileSettings* out) {
  if (entry.key == kController) {
    if (entry.value != "gloo" && entry.value != "mpi")
      return invalid_argument("expected gloo or mpi, found '" + entry.value + "'");
    out->mpi = entry.value == "mpi";
    return {};
  }
  for (const NoEffect& known : kNoEffect) {
    if (entry.key != known.key) continue;
    const auto on = read_switch(entry.value);
    if (on.ok() && !on.value()) return {};  // nothing of the kind is ever done
    if (known.refused) return invalid_argument(known.meaning);
    out->notes.push_back(origin + " has no effect: " + known.meaning);
    return {};
  }
  if (const ElasticFlag* flag = elastic_flag_of_key(entry.key)) {
    out->elastic.push_back({flag, entry.value, origin});
    return {};
  }
  bool found = false;
  for (const SettingKey& known : setting_keys()) {
    if (entry.key != known.key) continue;
    found = true;
    RUEDA_ASSIGN_OR_RETURN(std::optional<std::string> text, variable_text(known, entry.value));
    if (text) out->settings.push_back({known.variable, std::move(*text), origin});
  }
  if (!found) add_unknown(entry, origin, out);
  return {};
}

// A key that can only switch off.
bool only_switches_off(const std::string& key) {
  const auto keys = setting_keys();
  return std::any_of(keys.begin(), keys.end(), [&](const SettingKey& known) {
    return key == known.key && known.takes == Takes::kSwitch && known.on == nullptr;
  });
}

}  // namespace

Result<FileSettings> parse_config_file(std::string_view text, const std::string& name) {
  RUEDA_ASSIGN_OR_RETURN(const auto lines, read_yaml_lines(text, name));
  const auto at = [&](int line) { return name + ":" + std::to_string(line); };
  FileSettings out;
  std::vector<std::string> known;
  for (const std::string& key : known_keys()) {
    if (std::find(known.begin(), known.end(), section_of(key)) == known.end())
      known.push_back(section_of(key));
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
  // What is switched off comes last: it wins over the values beside it.
  std::stable_partition(entries.begin(), entries.end(),
                        [](const Entry& entry) { return !only_switches_off(entry.key); });
  for (const Entry& entry : entries) {
    const std::string origin = entry.key + " (" + at(entry.line) + ")";
    const Status added = add_entry(entry, origin, &out);
    if (!added.ok()) return invalid_argument(origin + ": " + added.message());
  }
  RUEDA_RETURN_IF_ERROR(read_elastic(out.elastic).status());
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
  for (const std::string& key : options->overruled_keys) {
    std::erase_if(found.settings,
                  [&](const Setting& setting) { return setting.flag.starts_with(key + " "); });
  }
  // What comes later wins: first the file, then the flags.
  options->settings.insert(options->settings.begin(), found.settings.begin(), found.settings.end());
  auto& elastic = options->elastic_words;
  elastic.insert(elastic.begin(), found.elastic.begin(), found.elastic.end());
  RUEDA_ASSIGN_OR_RETURN(options->elastic, read_elastic(elastic));
  if (found.mpi && !options->gloo) options->mpi = options->mpi || *found.mpi;
  options->notes = std::move(found.notes);
  return {};
}

}  // namespace rueda::launcher
