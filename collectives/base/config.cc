#include "collectives/base/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <string_view>
#include <variant>

namespace rueda {
namespace {

// What a value must be, besides one of its field's type.
enum class Check {
  kAny,
  kPositive,  // to most, if that is not 0
  kNotNegative,
  kRange,       // least to most
  kPowerOfTwo,  // from least to most
  kWord,        // one of words
  kWordInAnyCase
};
struct Allowed {
  Check check;
  double least, most;
  const char* words;     // with spaces between
  const char* expected;  // how an error names them all
};

struct Row {
  const char* variable;
  const char* horovod_variable;
  const char* zeroed_by;  // variable of Horovod's: 1 makes this 0
  std::variant<int64_t Config::*, double Config::*, bool Config::*, std::string Config::*> field;
  bool agreed;  // must be equal on all ranks
  Allowed allowed;
  const char* meaning;
};

// Settings that had another name before: refused, so that nobody believes that they still work.
struct Renamed {
  const char* before;
  const char* now;
};

// kTable, in the order of --print-config; kRenamed; kSwitches, all that may be in zeroed_by.
#include "collectives/base/config_table.inc"

struct Found {
  const char* value = nullptr;
  const char* origin = "default";
};

Found look_up(const Row& row, const GetEnv& get_env) {
  if (const char* value = get_env(row.variable)) return {value, row.variable};
  if (row.zeroed_by[0] != '\0') {
    const char* value = get_env(row.zeroed_by);
    if (value != nullptr && std::string_view(value) == "1") return {"0", row.zeroed_by};
  }
  if (row.horovod_variable[0] != '\0') {
    if (const char* value = get_env(row.horovod_variable)) return {value, row.horovod_variable};
  }
  return {};
}

Status refuse(const Found& found, const char* accepted) {
  return invalid_argument(std::string(found.origin) + "='" + found.value + "': expected " +
                          accepted);
}

template <typename T>
bool parse_number(const char* text, T* out) {
  const char* end = text + std::char_traits<char>::length(text);
  const auto [rest, error] = std::from_chars(text, end, *out);
  return error == std::errc() && rest == end && text != end;
}

template <typename T>
Status check_number(const Allowed& allowed, const Found& found, T value) {
  const auto real = static_cast<double>(value);
  const bool in_range = real >= allowed.least && real <= allowed.most;
  if (allowed.check == Check::kPositive && (!(value > 0) || (allowed.most > 0 && !in_range)))
    return refuse(found, allowed.expected);
  if (allowed.check == Check::kNotNegative && !(value >= 0)) return refuse(found, allowed.expected);
  if (!std::isfinite(real)) return refuse(found, "a finite number");
  if (allowed.check == Check::kRange && !in_range) return refuse(found, allowed.expected);
  if constexpr (std::is_same_v<T, int64_t>) {
    if (allowed.check == Check::kPowerOfTwo && (!in_range || (value & (value - 1)) != 0))
      return refuse(found, allowed.expected);
  }
  return {};
}

bool is_one_of(std::string_view words, std::string_view value) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == value) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

Result<std::string> read_text(const Allowed& allowed, const Found& found) {
  std::string value = found.value;
  if (allowed.check == Check::kWordInAnyCase) {
    for (char& c : value) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  if (allowed.words[0] != '\0' && !is_one_of(allowed.words, value))
    return refuse(found, allowed.expected);
  return value;
}

Status set_field(const Row& row, const Found& found, Config* config) {
  if (found.value == nullptr) return {};
  if (const auto* whole = std::get_if<int64_t Config::*>(&row.field)) {
    int64_t value = 0;
    if (!parse_number(found.value, &value)) return refuse(found, "a whole number");
    RUEDA_RETURN_IF_ERROR(check_number(row.allowed, found, value));
    config->*(*whole) = value;
  } else if (const auto* real = std::get_if<double Config::*>(&row.field)) {
    double value = 0;
    if (!parse_number(found.value, &value)) return refuse(found, "a number");
    RUEDA_RETURN_IF_ERROR(check_number(row.allowed, found, value));
    config->*(*real) = value;
  } else if (const auto* flag = std::get_if<bool Config::*>(&row.field)) {
    int64_t value = 0;
    if (!parse_number(found.value, &value) || (value != 0 && value != 1))
      return refuse(found, "0 or 1");
    config->*(*flag) = value == 1;
  } else {
    RUEDA_ASSIGN_OR_RETURN(config->*std::get<std::string Config::*>(row.field),
                           read_text(row.allowed, found));
  }
  return {};
}

std::string print_field(const Row& row, const Config& config) {
  std::ostringstream text;
  std::visit([&](auto field) { text << config.*field; }, row.field);
  return text.str();
}

}  // namespace

Result<Config> load_config(const GetEnv& get_env) {
  Config config;
  for (const char* name : kSwitches) {
    const char* value = get_env(name);
    if (value != nullptr && std::string_view(value) != "0" && std::string_view(value) != "1")
      return refuse({value, name}, "0 or 1");
  }
  for (const auto& [before, now] : kRenamed) {
    if (get_env(before) != nullptr)
      return invalid_argument(std::string(before) + " has been renamed: use " + now);
  }
  for (const Row& row : kTable)
    RUEDA_RETURN_IF_ERROR(set_field(row, look_up(row, get_env), &config));
  return config;
}

Result<std::vector<ConfigEntry>> describe_config(const GetEnv& get_env) {
  RUEDA_ASSIGN_OR_RETURN(const Config config, load_config(get_env));
  const Config defaults;
  std::vector<ConfigEntry> entries;
  for (const Row& row : kTable) {
    entries.push_back({row.variable, row.horovod_variable, print_field(row, defaults), row.meaning,
                       print_field(row, config), look_up(row, get_env).origin});
  }
  return entries;
}

std::string agreed_settings(const Config& config) {
  std::string text;
  for (const Row& row : kTable) {
    if (row.agreed) text += std::string(row.variable) + "=" + print_field(row, config) + "\n";
  }
  return text;
}

std::string settings_that_differ(const std::string& theirs, const std::string& ours) {
  std::istringstream their_lines(theirs), our_lines(ours);
  std::string text, their_line, our_line;
  while (std::getline(their_lines, their_line) && std::getline(our_lines, our_line)) {
    if (their_line == our_line) continue;
    text += (text.empty() ? "" : ", ") + their_line + " instead of " +
            our_line.substr(our_line.find('=') + 1);
  }
  return text;
}

}  // namespace rueda
