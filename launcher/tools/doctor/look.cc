// The facts, as the kernel and the loader tell them.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "collectives/base/unique_fd.h"
#include "collectives/host/cgroup.h"
#include "launcher/job/auto_ranks.h"
#include "launcher/mpi/installation.h"
#include "launcher/mpi/version.h"
#include "launcher/processes/symbol.h"
#include "launcher/tools/doctor/machine.h"

namespace rueda::doctor {
namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// Text of an address of either family; empty for others.
std::string numeric(const sockaddr* address) {
  if (address == nullptr) return "";
  const bool v4 = address->sa_family == AF_INET, v6 = address->sa_family == AF_INET6;
  char host[NI_MAXHOST] = "";
  if ((!v4 && !v6) || getnameinfo(address, v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6), host,
                                  sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return host;
}

int error_of(const UniqueFd& fd) { return fd ? 0 : errno; }

void look_at_needs(Machine* machine) {
  machine->memory_file_error =
      error_of(UniqueFd(memfd_create("rueda-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  machine->unix_socket_error = error_of(UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  const UniqueFd tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  machine->tcp_error = error_of(tcp);
  if (tcp && bind(tcp.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    machine->tcp_error = errno;
  machine->pidfd_error = error_of(UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))));
  // A child stands for another rank of this user.
  int ready[2];
  static char word = 'r';
  if (pipe2(ready, O_CLOEXEC) != 0) return;
  const UniqueFd reading(ready[0]);
  UniqueFd writing(ready[1]);
  const pid_t child = fork();
  if (child == 0) {
    writing.reset();
    char byte;
    [[maybe_unused]] const ssize_t n = read(reading.get(), &byte, 1);  // until the parent is done
    _exit(0);
  }
  if (child < 0) return;
  char copy = 0;
  const iovec here{&copy, 1}, there{&word, 1};
  machine->reads_peers = process_vm_readv(child, &here, 1, &there, 1, 0) == 1;
  writing.reset();
  waitpid(child, nullptr, 0);
}

void look_at_network(Machine* machine) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
      const std::string address = numeric(at->ifa_addr);
      if (address.empty()) continue;
      machine->interfaces.push_back({at->ifa_name, address, (at->ifa_flags & IFF_LOOPBACK) != 0,
                                     (at->ifa_flags & IFF_RUNNING) != 0});
    }
    freeifaddrs(list);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(machine->host.c_str(), nullptr, &hints, &found) == 0) {
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next)
      machine->name_addresses.push_back(numeric(at->ai_addr));
    freeaddrinfo(found);
  }
  timex clock{};
  machine->clock_synchronised = adjtimex(&clock) >= 0 && (clock.status & STA_UNSYNC) == 0;
  machine->clock_source =
      first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
}

uint64_t soft_limit(int resource, uint64_t* hard = nullptr) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  if (hard != nullptr) *hard = limit.rlim_max;
  return limit.rlim_cur;
}

void look_at_limits(Machine* machine) {
  machine->open_files = soft_limit(RLIMIT_NOFILE, &machine->open_files_hard);
  machine->processes = soft_limit(RLIMIT_NPROC);
  machine->locked_bytes = soft_limit(RLIMIT_MEMLOCK);
  struct statvfs space {};
  if (statvfs("/dev/shm", &space) == 0) {
    machine->shm_bytes = space.f_blocks * space.f_frsize;
    machine->shm_free_bytes = space.f_bavail * space.f_frsize;
  }
  if (statvfs("/tmp", &space) == 0) machine->temporary_free_bytes = space.f_bavail * space.f_frsize;
}

void look_at_memory(Machine* machine) {
  std::ifstream info("/proc/meminfo");
  std::string name, unit;
  for (uint64_t kilobytes = 0; info >> name >> kilobytes; std::getline(info, unit)) {
    if (name == "MemTotal:") machine->memory_bytes = kilobytes << 10;
    if (name == "MemAvailable:") machine->available_bytes = kilobytes << 10;
  }
  machine->strict_overcommit = first_line("/proc/sys/vm/overcommit_memory") == "2";
  machine->group_memory_bytes = rueda::host::cgroup_memory_limit(rueda::host::read_small_file);
  // Version 1 writes a very large number where there is no limit.
  if (machine->group_memory_bytes && *machine->group_memory_bytes > machine->memory_bytes)
    machine->group_memory_bytes.reset();
  machine->group_cores = rueda::host::cgroup_core_limit(rueda::host::read_small_file);
  for (const char* path :
       {"/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}) {
    if (const auto text = rueda::host::read_small_file(path))
      machine->group_used_bytes = rueda::host::first_number(*text);
  }
  machine->group_processes = rueda::host::cgroup_process_limit(rueda::host::read_small_file);
}

void look_at_cpu(Machine* machine) {
  constexpr const char* kFeatures[] = {"avx2",     "fma",   "avx512f", "avx512_bf16",
                                       "amx_bf16", "asimd", "sve",     "bf16"};
  std::ifstream info("/proc/cpuinfo");
  std::set<std::string> features, cores;
  std::string package;
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string name = line.substr(0, line.find('\t')), value = line.substr(colon + 2);
    if (name == "model name") machine->cpu_model = value;
    if (name == "physical id") package = value;
    if (name == "core id") cores.insert(package + "/" + value);
    if (name == "flags" || name == "Features") {
      std::istringstream words(value);
      for (std::string word; words >> word;) features.insert(word);
    }
  }
  for (const char* feature : kFeatures) {
    if (features.count(feature) != 0) machine->cpu_features.emplace_back(feature);
  }
  cpu_set_t usable;
  CPU_ZERO(&usable);
  sched_getaffinity(0, sizeof(usable), &usable);
  machine->cores_usable = CPU_COUNT(&usable);
  machine->cores_online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  machine->cores_physical = static_cast<int>(cores.size());
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/node", ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("node") && name.size() > 4 && name[4] >= '0' && name[4] <= '9')
      ++machine->numa_nodes;
  }
}

void look_at_container(Machine* machine) {
  std::error_code ignored;
  if (fs::exists("/.dockerenv", ignored)) machine->container = "docker";
  if (fs::exists("/run/.containerenv", ignored)) machine->container = "podman";
  if (fs::exists("/.singularity.d", ignored)) machine->container = "apptainer";
  if (fs::exists("/var/run/secrets/kubernetes.io", ignored)) machine->container = "kubernetes";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Seccomp:")) machine->seccomp = line.find('2') != std::string::npos;
  }
}

// In a child: a driver that is broken may end its caller.
int count_gpus() {
  const pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) _exit(255);
    const auto init = launcher::symbol<int (*)(unsigned)>(library, "cuInit");
    const auto count = launcher::symbol<int (*)(int*)>(library, "cuDeviceGetCount");
    int devices = 0;
    if (init == nullptr || count == nullptr || init(0) != 0 || count(&devices) != 0) _exit(255);
    _exit(std::min(devices, 254));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) != 255 ? WEXITSTATUS(status) : -1;
}

void look_at_gpus(Machine* machine) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && name.size() > 6 && name[6] >= '0' && name[6] <= '9')
      ++machine->gpu_devices;
  }
  machine->gpu_driver = first_line("/proc/driver/nvidia/version");
  machine->gpus_usable = count_gpus();
  machine->mps =
      launcher::mps_is_running([](const char* name) -> const char* { return std::getenv(name); });
}

// Beside this program: ../lib in a build or an installed prefix, .. in the Python package.
void look_at_library(Machine* machine) {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  std::vector<fs::path> places;
  for (const char* folder : {"../lib", "..", "../lib64", "../lib/x86_64-linux-gnu"})
    places.push_back(program.parent_path() / folder);
  for (const fs::path& place : places) {
    for (const char* name : {"librueda.so", "librueda.so.2"}) {
      if (machine->library.empty() && fs::exists(place / name, ignored))
        machine->library = fs::weakly_canonical(place / name, ignored);
    }
  }
  machine->mpi_plugin = launcher::find_mpi_plugin(nullptr);
  if (machine->library.empty()) return;
  if (dlopen(machine->library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* why = dlerror();
    machine->library_error = why == nullptr ? "it cannot be opened" : why;
  }
}

}  // namespace

Machine look_at_this_machine() {
  Machine machine;
  machine.version = RUEDA_LAUNCHER_VERSION;
  utsname system{};
  uname(&system);
  machine.host = system.nodename;
  machine.kernel = std::string(system.sysname) + " " + system.release + " " + system.machine;
  look_at_needs(&machine);
  look_at_network(&machine);
  look_at_limits(&machine);
  look_at_memory(&machine);
  look_at_cpu(&machine);
  look_at_container(&machine);
  look_at_gpus(&machine);
  look_at_library(&machine);
  machine.frameworks = launcher::probe_frameworks();
  machine.libraries = launcher::probe_libraries();
  machine.mpirun = launcher::mpirun_version();
  return machine;
}

}  // namespace rueda::doctor
