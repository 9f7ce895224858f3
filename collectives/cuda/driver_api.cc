#include "collectives/cuda/driver_api.h"

#include <dlfcn.h>

namespace rueda::cuda {
namespace {

constexpr const char* kDriver = "libcuda.so.1";

}  // namespace

Result<std::shared_ptr<const DriverApi>> DriverApi::open(const std::string& path) {
  const std::string name = path.empty() ? kDriver : path;
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return failed_precondition("the CUDA driver cannot be opened (" +
                               std::string(why == nullptr ? name : why) +
                               "): install NVIDIA's driver, in a container start it with the GPUs "
                               "(docker run --gpus all); `rueda doctor` shows what is found");
  }
  auto driver = std::make_shared<DriverApi>();
  const struct {
    const char* symbol;
    void** place;
  } table[] = {
#define RUEDA_X(member, symbol, arguments) \
  {#symbol, reinterpret_cast<void**>(&driver->functions_.member)},
    RUEDA_CUDA_FUNCTIONS(RUEDA_X)
#undef RUEDA_X
  };
  for (const auto& [symbol, place] : table) {
    *place = dlsym(library, symbol);
    if (*place == nullptr) {
      return failed_precondition("the CUDA driver " + name + " has no " + symbol +
                                 ": it is older than CUDA 11.4; install a newer one");
    }
  }
  const Status started = driver->check(driver->functions_.init(0), "cuInit");
  if (!started.ok()) {
    return failed_precondition("the CUDA driver does not start: " + started.message() +
                               "; `nvidia-smi` should list a GPU");
  }
  RUEDA_RETURN_IF_ERROR(
      driver->check(driver->functions_.driver_version(&driver->version_), "cuDriverGetVersion"));
  return std::shared_ptr<const DriverApi>(std::move(driver));
}

Status DriverApi::check(Code code, const char* call) const {
  if (code == kSuccess) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.error_name(code, &name);
  functions_.error_string(code, &text);
  return internal_error(std::string(call) + ": " +
                        (name == nullptr ? "error " + std::to_string(code) : name) +
                        (text == nullptr ? "" : std::string(" (") + text + ")"));
}

}  // namespace rueda::cuda
