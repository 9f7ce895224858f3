#include "launcher/mpi/version.h"

#include "launcher/processes/capture.h"
#include "launcher/processes/symbol.h"

namespace rueda::launcher {

// MPI_Get_library_version may be called before MPI_Init; its answer may have several lines.
std::string mpi_version(void* library) {
  constexpr size_t kMaxText = 8192;
  const auto ask = symbol<int (*)(char*, int*)>(library, "MPI_Get_library_version");
  std::string text(kMaxText, '\0');
  int length = 0;
  if (ask == nullptr || ask(text.data(), &length) != 0 || length < 0 ||
      static_cast<size_t>(length) > kMaxText) {
    return "version unknown";
  }
  text.resize(static_cast<size_t>(length));
  return text.substr(0, text.find_first_of(",\n"));
}

std::string mpirun_version() {
  const auto path = capture({"sh", "-c", "command -v mpirun || command -v mpiexec", nullptr});
  if (!path || path->empty()) return "";
  const std::string program = path->substr(0, path->find('\n'));
  const auto version = capture({program.c_str(), "--version", nullptr});
  if (!version) return program;
  // MPICH's tells nothing in its first line but how it was configured.
  const size_t begin = version->find("Version:");
  const std::string text = version->substr(begin == std::string::npos ? 0 : begin);
  return program + ", " + (begin == std::string::npos ? "" : "HYDRA ") +
         text.substr(0, text.find('\n'));
}

}  // namespace rueda::launcher
