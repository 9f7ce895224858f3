#include "launcher/tools/bench/librueda.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace rueda::bench {
namespace {

std::vector<std::string> candidates() {
  if (const char* given = std::getenv("RUEDA_LIBRARY"); given != nullptr && *given != 0)
    return {given};
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto lib = self.parent_path().parent_path() / "lib";
  return {lib / "librueda.so.2", lib / "librueda.so", "librueda.so.2"};
}

template <typename Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

Result<LibRueda> open_librueda() {
  void* library = nullptr;
  std::string reasons;
  for (const std::string& path : candidates()) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    const char* reason = dlerror();
    reasons += std::string("\n  ") + (reason == nullptr ? path.c_str() : reason);
  }
  if (library == nullptr) return unavailable("librueda cannot be opened:" + reasons);
  LibRueda api{};
  const bool complete =
      find(library, "rueda_init", &api.init) && find(library, "rueda_rank", &api.rank) &&
      find(library, "rueda_size", &api.size) &&
      find(library, "rueda_local_size", &api.local_size) &&
      find(library, "rueda_version", &api.version) &&
      find(library, "rueda_context_release", &api.context_release) &&
      find(library, "rueda_start", &api.start) && find(library, "rueda_run", &api.run) &&
      find(library, "rueda_request_create", &api.request_create) &&
      find(library, "rueda_request_start", &api.request_start) &&
      find(library, "rueda_request_run", &api.request_run) &&
      find(library, "rueda_request_wait", &api.request_wait) &&
      find(library, "rueda_request_release", &api.request_release);
  if (!complete) return unavailable("librueda lacks functions: it is of another version");
  if (!find(library, "rueda_alloc", &api.alloc) || !find(library, "rueda_free", &api.free))
    api.alloc = nullptr;
  const bool plans = find(library, "rueda_attention_plan_create", &api.attention_plan_create) &&
                     find(library, "rueda_attention_plan_release", &api.attention_plan_release) &&
                     find(library, "rueda_attention_plan_report", &api.attention_plan_report) &&
                     find(library, "rueda_attention_plan_balance", &api.attention_plan_balance);
  if (!plans) api.attention_plan_create = nullptr;
  if (!find(library, "rueda_attention_tokens", &api.attention_tokens) ||
      !find(library, "rueda_attention_plan_tiles", &api.attention_plan_tiles)) {
    api.attention_plan_tiles = nullptr;
  }
  if (!find(library, "rueda_attention_plan_program", &api.attention_plan_program))
    api.attention_plan_program = nullptr;
  const bool calls = find(library, "rueda_attention_forward", &api.attention_forward) &&
                     find(library, "rueda_attention_backward", &api.attention_backward) &&
                     find(library, "rueda_attention_saved_release", &api.attention_saved_release);
  if (!calls) api.attention_forward = nullptr;
  return api;
}

Status status_of(int32_t code, const rueda_error& error) {
  if (code == RUEDA_OK) return {};
  return {static_cast<Code>(code), error.message};
}

}  // namespace rueda::bench
