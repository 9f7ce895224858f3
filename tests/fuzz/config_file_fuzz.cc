// The text of a configuration file: refused with its line, or settings that are the launcher's.
#include "launcher/command/config_file.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  using fuzz::expect;
  const auto found = launcher::parse_config_file({reinterpret_cast<const char*>(data), size}, "f");
  if (!found.ok()) {
    expect(found.status().code() == Code::kInvalidArgument, "what is wrong is an argument");
    expect(found.status().message().find("f:") != std::string::npos, "the line is told");
    return 0;
  }
  for (const launcher::Setting& setting : found.value().settings) {
    expect(setting.variable.starts_with("RUEDA_"), "a setting is one of ours");
    expect(!setting.value.empty(), "a setting has a value");
  }
  return 0;
}
