#include "launcher/command/deepspeed_config.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "launcher/command/json_text.h"

namespace rueda::launcher {

Status add_deepspeed_config(Options* options) {
  const std::string& path = options->deepspeed_config;
  if (path.empty()) return {};
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  if (!error && std::filesystem::is_directory(whole, error))
    error = std::make_error_code(std::errc::is_a_directory);
  std::ifstream file(whole, std::ios::binary);
  if (!error && !file) error = std::error_code(errno, std::generic_category());
  if (error)
    return invalid_argument("--deepspeed-config: cannot read " + path + ": " + error.message());
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (const auto problem = what_is_no_json_object(text))
    return invalid_argument("--deepspeed-config: " + path + " is no JSON object: " + *problem);
  Setting setting;
  setting.flag = "--deepspeed-config";
  setting.variable = "RUEDA_DEEPSPEED_CONFIG";
  setting.value = whole.lexically_normal().string();
  options->settings.push_back(std::move(setting));
  return {};
}

}  // namespace rueda::launcher
