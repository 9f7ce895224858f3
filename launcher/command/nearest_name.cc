#include "launcher/command/nearest_name.h"

#include <algorithm>
#include <numeric>

#include "collectives/base/config.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMostEdits =
    2;  // all names begin alike, and programs may have variables of their own

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  const auto table = describe_config([](const char*) -> const char* { return nullptr; });
  if (!table.ok()) return names;
  for (const ConfigEntry& entry : table.value()) names.push_back(entry.variable);
  return names;
}

}  // namespace

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t corner = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = corner + (a[i - 1] == b[j - 1] ? 0 : 1);
      corner = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string nearest_name(const std::string& wrong, const std::vector<std::string>& known,
                         size_t most) {
  const std::string* best = nullptr;
  size_t least = most + 1;
  for (const std::string& name : known) {
    const size_t distance = edit_distance(wrong, name);
    if (distance < least) best = &name, least = distance;
  }
  return best == nullptr ? "" : *best;
}

std::string did_you_mean(const std::string& wrong, const std::vector<std::string>& known) {
  const std::string best = nearest_name(wrong, known, wrong.size() / 3);
  return best.empty() ? "" : "; did you mean " + best + "?";
}

std::vector<std::string> misspelled_settings(const std::vector<std::string>& environment) {
  const std::vector<std::string> known = setting_names();
  std::vector<std::string> lines;
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    if (!name.starts_with("RUEDA_") || name.size() > 100) continue;
    const std::string best = nearest_name(name, known, kMostEdits);
    if (best.empty() || best == name) continue;
    lines.push_back(name + " is no setting and has no effect; did you mean " + best + "?");
  }
  return lines;
}

}  // namespace rueda::launcher
