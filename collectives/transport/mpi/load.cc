#include "collectives/transport/mpi/load.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "collectives/base/log.h"
#include "collectives/host/fork_guard.h"

namespace rueda::mpi {
namespace {

constexpr const char* kPlugin = "librueda_mpi.so";
constexpr const char* kOpenMpi = "libmpi.so.40";  // of Open MPI 2 to 5

struct OfProcess {
  std::mutex mutex;
  std::shared_ptr<Engine> engine;
  uint64_t process = 0;
};

OfProcess& of_process() {
  static OfProcess* const state = new OfProcess;  // atexit and late threads may still want it
  return *state;
}

// Of the library that this code lies in, with the slash.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&of_process), &info) == 0 || info.dli_fname == nullptr)
    return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

Result<const MpiFunctions*> open_plugin() {
  const std::string path = own_folder() + kPlugin;
  // Open MPI first, as the plugin names no library; global, because the plugin and parts that Open
  // MPI opens of itself look for the rest of it among global symbols.
  void* plugin = nullptr;
  if (dlopen(kOpenMpi, RTLD_NOW | RTLD_GLOBAL) != nullptr)
    plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin == nullptr) {
    const char* why = dlerror();
    return failed_precondition(
        std::string(
            "MPI was asked for (RUEDA_TRANSPORT), but rueda's part for it cannot be opened: ") +
        (why == nullptr ? path : why) + "; " + kPlugin +
        " is built where CMake finds Open MPI (Debian: libopenmpi-dev), and needs its library at "
        "run time (libopenmpi3); or leave RUEDA_TRANSPORT=auto, which needs no MPI");
  }
  const auto get = reinterpret_cast<GetMpiFunctions>(dlsym(plugin, "rueda_mpi_functions"));
  const MpiFunctions* functions = get == nullptr ? nullptr : get(kMpiFunctionsVersion);
  if (functions == nullptr)
    return failed_precondition(path + " is of another version of rueda: install both together");
  return functions;
}

void end_of_process() {
  OfProcess& state = of_process();
  if (state.process != host::fork_generation()) return;  // a forked child has no such thread
  const std::lock_guard lock(state.mutex);
  if (state.engine != nullptr) state.engine->finish();
}

}  // namespace

Result<std::shared_ptr<Engine>> engine_of_process(size_t chunk_bytes) {
  OfProcess& state = of_process();
  const std::lock_guard lock(state.mutex);
  if (state.engine != nullptr && state.process == host::fork_generation()) return state.engine;
  RUEDA_ASSIGN_OR_RETURN(const MpiFunctions* const functions, open_plugin());
  RUEDA_ASSIGN_OR_RETURN(state.engine, Engine::start(functions, chunk_bytes));
  state.process = host::fork_generation();
  // After MPI_Init, so that it runs before what MPI itself does at the end.
  std::atexit(end_of_process);
  RUEDA_DEBUG("mpi", "{}: rank {} of {}", state.engine->library(), state.engine->rank(),
              state.engine->size());
  return state.engine;
}

}  // namespace rueda::mpi
