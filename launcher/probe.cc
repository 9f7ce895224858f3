#include "launcher/probe.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <initializer_list>

#include "collectives/base/unique_fd.h"
#include "launcher/mpi/installation.h"
#include "launcher/mpi/version.h"
#include "launcher/processes/capture.h"
#include "launcher/processes/symbol.h"

namespace rueda::launcher {
namespace {

// Binds a listening socket to the loopback address of one family.
Probe probe_tcp(const std::string& name, int family) {
  const UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int failed = fd ? 0 : errno;
  if (family == AF_INET && failed == 0) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) failed = errno;
  } else if (failed == 0) {
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) failed = errno;
  }
  return {failed == 0, name, failed == 0 ? "" : strerror(failed)};
}

Probe probe_shared_memory() {
  const UniqueFd fd(memfd_create("rueda-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int failed = fd ? 0 : errno;
  return {failed == 0, "shared memory", failed == 0 ? "memfd" : strerror(failed)};
}

// Opens the first of `names` that the loader finds; `version` asks it who it is.
Probe probe_library(const std::string& name, std::initializer_list<const char*> names,
                    const std::function<std::string(void*)>& version) {
  std::string reason;
  for (const char* file : names) {
    void* library = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      if (reason.empty()) reason = why == nullptr ? "cannot be opened" : why;
      continue;
    }
    std::string path = file;
    link_map* map = nullptr;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) path = map->l_name;
    const std::string text = version(library);
    return {true, name, path + (text.empty() ? "" : ", " + text)};
  }
  return {false, name, reason};
}

std::string cuda_version(void* library) {
  const auto ask = symbol<int (*)(int*)>(library, "cuDriverGetVersion");
  int version = 0;
  if (ask == nullptr || ask(&version) != 0) return "version unknown";
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string nccl_version(void* library) {
  const auto ask = symbol<int (*)(int*)>(library, "ncclGetVersion");
  int version = 0;
  if (ask == nullptr || ask(&version) != 0) return "version unknown";
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

std::vector<Probe> probe_frameworks() {
  // Metadata, not import: importing a framework may take longer than everything else together.
  constexpr const char* kScript =
      "import sys, importlib.metadata as m\n"
      "print(sys.executable, sys.version.split()[0])\n"
      "for name in ('numpy', 'torch'):\n"
      "    try: print(m.version(name))\n"
      "    except Exception: print('')\n";
  const auto text = capture({"python3", "-c", kScript, nullptr});
  std::vector<std::string> lines;
  for (size_t begin = 0; text && begin < text->size();) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    lines.push_back(text->substr(begin, end - begin));
    begin = end + 1;
  }
  if (lines.size() != 3) return {{false, "Python", "python3 is not in PATH or does not work"}};
  const auto package = [&](const char* name, const std::string& version) {
    return Probe{!version.empty(), name,
                 version.empty() ? "not installed for this Python" : version};
  };
  return {{true, "Python", lines[0]}, package("NumPy", lines[1]), package("PyTorch", lines[2])};
}

std::vector<Probe> probe_transports() {
  return {probe_shared_memory(), probe_tcp("TCP over IPv4", AF_INET),
          probe_tcp("TCP over IPv6", AF_INET6)};
}

std::vector<Probe> probe_libraries() {
  return {probe_library("CUDA driver", {"libcuda.so.1"}, cuda_version),
          probe_library("NCCL", {"libnccl.so.2"}, nccl_version),
          probe_library("MPI", {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"}, mpi_version)};
}

std::string format_probes(const std::string& title, const std::vector<Probe>& probes) {
  std::string text = title + ":\n";
  for (const Probe& probe : probes) {
    text += std::string("    [") + (probe.found ? "X" : " ") + "] " + probe.name;
    if (!probe.detail.empty()) text += (probe.found ? " (" : ": ") + probe.detail;
    if (!probe.detail.empty() && probe.found) text += ")";
    text += "\n";
  }
  return text;
}

// Whether ruedarun --mpi would find what it needs: our plugin and the mpirun of its Open MPI.
Probe probe_mpi() {
  const auto found = find_mpi(getenv("RUEDA_LIBRARY"), getenv("PATH"), "");
  if (!found.ok()) return {false, "MPI (--mpi)", found.status().message()};
  return {true, "MPI (--mpi)", found.value().library + ", " + found.value().mpirun};
}

std::string check_build_text() {
  std::vector<Probe> operations = probe_transports();
  operations.push_back(probe_mpi());
  return std::string("rueda ") + RUEDA_LAUNCHER_VERSION + "\n\n" +
         format_probes("Available frameworks", probe_frameworks()) + "\n" +
         format_probes("Available controllers",
                       {{true, "rueda", "built in; needs no MPI and no server"}}) +
         "\n" + format_probes("Available tensor operations", operations) + "\n" +
         format_probes("Opened at run time when they are wanted", probe_libraries());
}

}  // namespace rueda::launcher
