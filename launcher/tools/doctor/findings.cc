#include "launcher/tools/doctor/findings.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

namespace rueda::doctor {
namespace {

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
constexpr uint64_t kFewFiles = 256;      // not enough for a small job
constexpr uint64_t kEnoughFiles = 4096;  // two per rank and a framework's own
constexpr uint64_t kEnoughShm = 512 * kMiB;
constexpr uint64_t kLeastMemory = 256 * kMiB;
constexpr uint64_t kUnlimited = ~uint64_t{0};

std::string size_text(uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  if (bytes >= 10 * kGiB) return std::to_string(bytes / kGiB) + " GiB";
  return std::to_string(bytes / kMiB) + " MiB";
}

std::string count_text(uint64_t count) {
  return count == kUnlimited ? "unlimited" : std::to_string(count);
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

// Collects findings of one section after the other.
class Book {
 public:
  explicit Book(std::vector<Finding>* findings) : findings_(*findings) {}
  void section(std::string name) { section_ = std::move(name); }
  void fine(std::string name, std::string value, bool compared = false) {
    findings_.push_back({section_, std::move(name), std::move(value), Level::kFine, "", compared});
  }
  void bad(Level level, std::string name, std::string value, std::string advice) {
    findings_.push_back(
        {section_, std::move(name), std::move(value), level, std::move(advice), false});
  }
  void check(bool good, Level level, const std::string& name, const std::string& value,
             const std::string& advice) {
    good ? fine(name, value) : bad(level, name, value, advice);
  }

 private:
  std::vector<Finding>& findings_;
  std::string section_;
};

void judge_needs(const Machine& machine, Book* book) {
  const auto need = [&](const char* name, int error, const char* advice) {
    book->check(error == 0, Level::kBlocker, name, error == 0 ? "works" : strerror(error), advice);
  };
  book->section("Needed by every job");
  book->fine("rueda", machine.version, true);
  if (machine.library.empty()) {
    book->bad(Level::kProblem, "librueda", "not found beside this program",
              "set RUEDA_LIBRARY for Python programs, or install the package again");
  } else {
    book->check(machine.library_error.empty(), Level::kBlocker, "librueda",
                machine.library_error.empty() ? machine.library : machine.library_error,
                "install the package again, for this machine's glibc");
  }
  book->fine("kernel", machine.kernel, true);
  need("shared memory files", machine.memory_file_error,
       "memfd_create must be allowed: loosen the container's seccomp profile (kernel 3.17 or "
       "newer)");
  need("unix sockets", machine.unix_socket_error,
       "raise `ulimit -n`, or loosen the seccomp profile");
  need("TCP on loopback", machine.tcp_error, "the interface lo must be up: `ip link set lo up`");
  book->check(machine.pidfd_error == 0, Level::kNote, "pidfd_open",
              machine.pidfd_error == 0 ? "works" : strerror(machine.pidfd_error),
              "kernel 5.3 and a seccomp profile that allows it let the launcher see ends sooner");
  book->check(machine.reads_peers, Level::kNote, "reading a peer's memory",
              machine.reads_peers ? "works" : "refused",
              "large tensors go through windows instead, which is slower for some sizes; in a "
              "container `--cap-add SYS_PTRACE` or kernel.yama.ptrace_scope=0 allows it");
}

void judge_network(const Machine& machine, Book* book) {
  book->section("Network");
  bool elsewhere = false;
  for (const Interface& interface : machine.interfaces) {
    if (interface.loopback) continue;
    elsewhere = elsewhere || interface.up;
    book->check(interface.up, Level::kNote, interface.name,
                interface.address + (interface.up ? "" : ", no link"),
                "is its cable or its peer missing?");
  }
  if (!elsewhere) {
    book->bad(Level::kNote, "other hosts", "no interface but loopback is up",
              "jobs on this host alone work; several hosts need a network");
  }
  const auto& named = machine.name_addresses;
  const bool outside =
      std::any_of(named.begin(), named.end(), [](const auto& a) { return !is_loopback(a); });
  if (named.empty()) {
    book->bad(Level::kNote, "name " + machine.host, "has no address",
              "other hosts cannot use it: add it to /etc/hosts or DNS, or name hosts by address");
  } else {
    book->check(
        outside, Level::kNote, "name " + machine.host, joined(named),
        "its own name leads back to itself: name this host by address in host lists, or give "
        "it its address in /etc/hosts");
  }
  book->check(machine.clock_synchronised, Level::kNote, "clock",
              machine.clock_synchronised ? "synchronised" : "not synchronised",
              "run chrony or systemd-timesyncd: times in logs of several hosts will not match");
  book->check(machine.clock_source == "tsc" || machine.clock_source == "kvm-clock" ||
                  machine.clock_source == "arch_sys_counter" || machine.clock_source.empty() ||
                  machine.clock_source.starts_with("hyperv"),
              Level::kNote, "clock source", machine.clock_source,
              "reading the time is a slow system call with it: tsc, where it is stable, is faster");
}

void judge_limits(const Machine& machine, Book* book) {
  book->section("Limits");
  const Level files = machine.open_files < 64          ? Level::kBlocker
                      : machine.open_files < kFewFiles ? Level::kProblem
                                                       : Level::kNote;
  book->check(
      machine.open_files >= kEnoughFiles, files, "open files",
      count_text(machine.open_files) + " (hard limit " + count_text(machine.open_files_hard) + ")",
      "each rank holds a few for every other rank: `ulimit -n 65536` before starting jobs of "
      "more than " +
          std::to_string(machine.open_files / 8) + " ranks per host");
  book->check(machine.processes >= 1024, Level::kProblem, "processes",
              count_text(machine.processes),
              "threads count too: `ulimit -u 65536`, or nproc in /etc/security/limits.conf");
  book->check(
      machine.locked_bytes >= kGiB, Level::kNote, "locked memory", size_text(machine.locked_bytes),
      "RDMA needs `ulimit -l unlimited` (docker run --ulimit memlock=-1); rueda itself does not");
  book->check(
      machine.shm_bytes >= kEnoughShm, Level::kNote, "/dev/shm",
      size_text(machine.shm_bytes) + ", " + size_text(machine.shm_free_bytes) + " free",
      "rueda does not use it, but PyTorch's data loaders and NCCL do: `docker run --shm-size "
      "8g`, or an emptyDir of medium Memory at /dev/shm in Kubernetes");
  book->check(machine.temporary_free_bytes >= 64 * kMiB, Level::kProblem, "/tmp",
              size_text(machine.temporary_free_bytes) + " free", "make room, or set TMPDIR");
}

void judge_memory(const Machine& machine, Book* book) {
  book->section("Memory and cores");
  const Level low = machine.available_bytes < 32 * kMiB ? Level::kBlocker : Level::kProblem;
  book->check(
      machine.available_bytes >= kLeastMemory, low, "memory",
      size_text(machine.memory_bytes) + ", " + size_text(machine.available_bytes) + " available",
      "end what holds it (`ps aux --sort -rss | head`)");
  if (machine.group_memory_bytes) {
    const uint64_t limit = *machine.group_memory_bytes, used = machine.group_used_bytes.value_or(0);
    book->check(used + kLeastMemory <= limit, Level::kProblem, "memory of this container or group",
                size_text(limit) + ", " + size_text(used) + " used",
                "the kernel ends ranks that need more: raise the container's memory limit");
  }
  if (machine.strict_overcommit) {
    book->bad(Level::kProblem, "overcommit", "strict (vm.overcommit_memory=2)",
              "address space that is not used counts as memory: set vm.overcommit_memory=0, or "
              "RUEDA_HEAP_BYTES to what tensors need");
  }
  if (machine.group_processes) {
    book->check(*machine.group_processes >= 512, Level::kProblem, "processes of this container",
                count_text(*machine.group_processes), "raise pids.max (docker run --pids-limit)");
  }
  book->fine("processor", machine.cpu_model.empty() ? "unknown" : machine.cpu_model, true);
  book->check(!machine.cpu_features.empty(), Level::kNote, "instructions",
              joined(machine.cpu_features),
              "no AVX2 or newer: reductions use what every x86-64 has");
  book->fine("cores", std::to_string(machine.cores_usable) + " usable of " +
                          std::to_string(machine.cores_online) + " (" +
                          std::to_string(machine.cores_physical) + " physical, " +
                          std::to_string(machine.numa_nodes) + " NUMA node" +
                          (machine.numa_nodes == 1 ? ")" : "s)"));
  if (machine.group_cores && *machine.group_cores < machine.cores_usable) {
    std::ostringstream cores;
    cores << *machine.group_cores << " cores' worth of time";
    book->bad(Level::kNote, "core quota", cores.str(),
              "ranks stop when the quota of a period is used up: start no more ranks than that, or "
              "give the container whole cores (cpuset)");
  }
  if (!machine.container.empty())
    book->fine("container",
               machine.container + (machine.seccomp ? ", with a seccomp profile" : ""));
}

void judge_devices(const Machine& machine, Book* book) {
  book->section("Devices and other libraries");
  if (machine.gpu_devices == 0 && machine.gpus_usable <= 0) {
    book->fine("GPU", "none");
  } else if (machine.gpus_usable < 0) {
    book->bad(Level::kProblem, "GPU",
              std::to_string(machine.gpu_devices) + " device nodes, but the driver cannot be used",
              "libcuda.so.1 is missing or does not fit the kernel module: in a container start it "
              "with `--gpus all`, else install the driver of the module's version");
  } else {
    book->fine(
        "GPU",
        std::to_string(machine.gpus_usable) + " usable of " + std::to_string(machine.gpu_devices),
        true);
  }
  if (!machine.gpu_driver.empty()) book->fine("GPU driver", machine.gpu_driver, true);
  if (machine.gpu_devices > 0)
    book->fine("MPS",
               machine.mps ? "running: ranks that share a GPU run side by side"
                           : "not running: ranks that share a GPU would take turns",
               true);
  for (const auto& probe : machine.libraries)
    book->fine(probe.name, probe.found ? probe.detail : "not found", probe.found);
  book->fine("mpirun", machine.mpirun.empty() ? "not in PATH" : machine.mpirun,
             !machine.mpirun.empty());
  book->fine("rueda's MPI transport",
             machine.mpi_plugin.empty() ? "not built (docs/launchers.md)" : machine.mpi_plugin);
  for (const auto& probe : machine.frameworks) {
    const bool python = probe.name == "Python";
    book->check(probe.found || !python, Level::kNote, probe.name, probe.detail,
                "Python programs need python3 in PATH");
  }
}

}  // namespace

const char* level_name(Level level) {
  switch (level) {
    case Level::kFine: return "fine";
    case Level::kNote: return "note";
    case Level::kProblem: return "problem";
    case Level::kBlocker: return "blocker";
  }
  return "fine";
}

Report examine(const Machine& machine) {
  Report report;
  report.host = machine.host;
  Book book(&report.findings);
  judge_needs(machine, &book);
  judge_network(machine, &book);
  judge_limits(machine, &book);
  judge_memory(machine, &book);
  judge_devices(machine, &book);
  return report;
}

std::vector<Finding> compare(const std::vector<Report>& reports) {
  std::vector<Finding> differences;
  std::map<std::string, std::map<std::string, std::vector<std::string>>> hosts;  // fact, value
  std::vector<std::string> order;
  for (const Report& report : reports) {
    for (const Finding& finding : report.findings) {
      if (!finding.compared) continue;
      if (hosts[finding.name].empty()) order.push_back(finding.name);
      hosts[finding.name][finding.value].push_back(report.host);
    }
  }
  for (const std::string& name : order) {
    size_t having = 0;
    std::string value;
    for (const auto& [text, who] : hosts[name]) {
      having += who.size();
      value += (value.empty() ? "" : "; ") + text + " on " + joined(who);
    }
    if (hosts[name].size() == 1 && having == reports.size()) continue;
    if (having < reports.size())
      value += "; not on " + std::to_string(reports.size() - having) + " hosts";
    const bool blocks = name == "rueda" && hosts[name].size() > 1;
    differences.push_back({"Between hosts", name, value, blocks ? Level::kBlocker : Level::kNote,
                           blocks ? "install the same version of rueda on all hosts"
                                  : "the slowest or oldest decides; make them alike if you can",
                           false});
  }
  return differences;
}

Level worst(const std::vector<Finding>& findings) {
  Level level = Level::kFine;
  for (const Finding& finding : findings) level = std::max(level, finding.level);
  return level;
}

}  // namespace rueda::doctor
