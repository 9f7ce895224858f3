#include "launcher/command/yaml_lines.h"

#include <yaml-cpp/yaml.h>

#include <set>

namespace rueda::launcher {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Status read(const YAML::Node& root) {
    if (root.IsNull()) return {};
    if (!root.IsMap()) return wrong(root, "expected 'key: value' lines in sections");
    for (const auto& entry : root) {
      const YAML::Node& key = entry.first;
      if (!entry.second.IsMap()) {
        RUEDA_RETURN_IF_ERROR(take("", key, entry.second));
        continue;
      }
      if (!key.IsScalar() || key.Scalar().empty())
        return wrong(key, "this is no name of a section");
      if (!seen_.insert(key.Scalar()).second) return wrong(key, key.Scalar() + " is there twice");
      lines.push_back({key.Scalar(), "", "", line_of(key)});
      for (const auto& inner : entry.second)
        RUEDA_RETURN_IF_ERROR(take(key.Scalar(), inner.first, inner.second));
    }
    return {};
  }

  Status wrong(int line, const std::string& what) const {
    return invalid_argument(name_ + ":" + std::to_string(line) + ": " + what);
  }

  std::vector<YamlLine> lines;

 private:
  static int line_of(const YAML::Node& node) { return node.Mark().line + 1; }
  Status wrong(const YAML::Node& node, const std::string& what) const {
    return wrong(line_of(node), what);
  }

  Status take(const std::string& section, const YAML::Node& key, const YAML::Node& value) {
    if (!key.IsScalar() || key.Scalar().empty()) return wrong(key, "this is no name of a key");
    const std::string full = (section.empty() ? "" : section + ".") + key.Scalar();
    if (!seen_.insert(full).second) return wrong(key, full + " is there twice");
    if (value.IsNull()) return {};
    if (!value.IsScalar()) return wrong(key, full + ": expected one value");
    if (value.Scalar().empty()) return wrong(key, full + ": the value is empty");
    lines.push_back({section, key.Scalar(), value.Scalar(), line_of(key)});
    return {};
  }

  const std::string& name_;
  std::set<std::string> seen_;
};

}  // namespace

Result<std::vector<YamlLine>> read_yaml_lines(std::string_view text, const std::string& name) {
  Reader reader(name);
  try {
    RUEDA_RETURN_IF_ERROR(reader.read(YAML::Load(std::string(text))));
  } catch (const YAML::Exception& error) {
    return reader.wrong(error.mark.is_null() ? 1 : error.mark.line + 1, error.msg);
  }
  return std::move(reader.lines);
}

}  // namespace rueda::launcher
