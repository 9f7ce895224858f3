#include "launcher/mpi/installation.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "launcher/mpi/version.h"
#include "launcher/processes/capture.h"

namespace rueda::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlugin = "librueda_mpi.so";
constexpr const char* kOpenMpi = "libmpi.so.40";  // as rueda's plugin takes it (mpi/load.cc)
constexpr const char* kInstall =
    "rueda's part for MPI is built where CMake finds Open MPI (Debian: libopenmpi-dev "
    "openmpi-bin); "
    "without --mpi no MPI is needed";

struct OpenedLibrary {
  std::string version;  // of MPI
  std::string libmpi;   // path
};

Result<OpenedLibrary> open_library() {
  // Global: Open MPI opens parts of itself that look for the rest of it among global symbols.
  void* library = dlopen(kOpenMpi, RTLD_LAZY | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return failed_precondition(std::string("--mpi: ") + (why == nullptr ? kOpenMpi : why) +
                               "; install Open MPI (Debian: openmpi-bin libopenmpi3)");
  }
  OpenedLibrary opened;
  opened.version = mpi_version(library);
  Dl_info info = {};
  if (dladdr(dlsym(library, "MPI_Init"), &info) != 0 && info.dli_fname != nullptr)
    opened.libmpi = info.dli_fname;
  // Links resolved: of "/bin/mpirun" Open MPI would take "/" for its prefix on other hosts.
  std::error_code ignored;
  opened.libmpi = fs::weakly_canonical(opened.libmpi, ignored);
  return opened;
}

bool executable(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_mpi_plugin(const char* library) {
  std::error_code ignored;
  std::vector<fs::path> folders;
  if (library != nullptr && *library != '\0') {
    folders.push_back(fs::weakly_canonical(library, ignored).parent_path());
  } else {
    const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
    for (const char* folder : {"../lib", "..", "../lib64", "../lib/x86_64-linux-gnu"})
      folders.push_back(program / folder);
  }
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / kPlugin, ignored))
      return fs::weakly_canonical(folder / kPlugin, ignored);
  }
  return "";
}

std::string open_mpi_version(const std::string& text) {
  const size_t name = text.find("Open MPI");
  if (name == std::string::npos) return "";
  const size_t begin = text.find_first_of("0123456789", name);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_first_not_of("0123456789.", begin) - begin);
}

std::vector<std::string> mpirun_places(const std::string& libmpi, const char* path) {
  std::vector<std::string> places;
  const auto add = [&](const fs::path& folder) {
    std::error_code ignored;
    const fs::path real = fs::weakly_canonical(folder, ignored);
    for (const char* name : {"mpirun.openmpi", "mpirun", "orterun"}) {
      const std::string place = real / name;
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
    }
  };
  // PREFIX/lib/libmpi.so; Debian: PREFIX/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so
  for (fs::path folder = fs::path(libmpi).parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (folder.filename().string().starts_with("lib")) add(folder.parent_path() / "bin");
  }
  const std::string search = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  for (size_t begin = 0; begin <= search.size();) {
    const size_t end = std::min(search.find(':', begin), search.size());
    if (end > begin) add(search.substr(begin, end - begin));
    begin = end + 1;
  }
  return places;
}

Result<MpiInstallation> find_mpi(const char* library, const char* path, const std::string& mpirun) {
  const std::string plugin = find_mpi_plugin(library);
  if (plugin.empty())
    return failed_precondition(std::string("--mpi: there is no ") + kPlugin + "; " + kInstall);
  RUEDA_ASSIGN_OR_RETURN(const OpenedLibrary opened, open_library());
  const std::string wanted = open_mpi_version(opened.version);
  if (wanted.empty())
    return failed_precondition("--mpi: " + opened.libmpi + " is " + opened.version +
                               ", whose launcher is not known here; only Open MPI's is");
  std::string seen;
  std::vector<std::string> places = mpirun_places(opened.libmpi, path);
  if (!mpirun.empty()) places = {mpirun};
  for (const std::string& place : places) {
    if (!executable(place)) continue;
    const std::string text = first_line_of({place.c_str(), "--version", nullptr});
    if (open_mpi_version(text) == wanted) return MpiInstallation{opened.version, place};
    seen += "\n  " + place + " is " + (text.empty() ? "no launcher that tells its version" : text);
  }
  return failed_precondition("--mpi: no mpirun of " + opened.version +
                             " was found, the library that " + plugin + " uses (" + opened.libmpi +
                             "); install it (Debian: openmpi-bin), or name it with --mpirun PATH" +
                             seen);
}

}  // namespace rueda::launcher
