// Settings: an environment of anything is read as one typed table or refused, and the two readers
// of it agree. The same environment as a process's place.
#include <map>

#include "collectives/base/config.h"
#include "runtime/membership/place.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  using fuzz::expect;
  fuzz::Input input(data, size);
  std::map<std::string, std::string> environment;
  while (!input.empty()) {  // lines of NAME=VALUE
    std::string line;
    for (char c; !input.empty() && (c = input.number<char>()) != '\n';) line += c;
    line = line.c_str();  // an environment has no zero bytes
    const size_t equals = line.find('=');
    if (equals != std::string::npos) environment[line.substr(0, equals)] = line.substr(equals + 1);
  }
  const GetEnv get_env = [&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
  const auto config = load_config(get_env);
  const auto described = describe_config(get_env);
  expect(config.ok() == described.ok(), "both readers take the same environments");
  if (config.ok()) {
    expect(config.value().chunk_bytes > 0 && config.value().staging_buffers > 0,
           "sizes are usable");
    expect(config.value().fusion_threshold_bytes >= 0, "the threshold is a size");
    expect(!agreed_settings(config.value()).empty(), "there are settings to compare");
  } else {
    expect(config.status().code() == Code::kInvalidArgument, "what is wrong is an argument");
  }
  const auto place = membership::read_place(get_env);
  if (place.ok()) {
    expect(place.value().rank >= 0 && place.value().rank < place.value().size,
           "a rank in its size");
  }
  return 0;
}
