#include "collectives/base/config.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <variant>

namespace rueda {
namespace {

enum class Check {
  kAny,
  kPositive,
  kNotNegative,
  kPowerOfTwoChunk,
  kMpiChunk,
  kTransport,
  kLogLevel,
  kProtocol,
  kStallPolicy,
  kDeadSeconds,
  kCompression,
  kExchange,
  kStreams
};

struct Row {
  const char* variable;
  const char* horovod_variable;
  std::variant<int64_t Config::*, double Config::*, bool Config::*, std::string Config::*> field;
  Check check;
  bool agreed;  // must be equal on all ranks
  const char* meaning;
};

// The one list of settings. Order is the order of --print-config.
const Row kTable[] = {
    {"RUEDA_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD", &Config::fusion_threshold_bytes,
     Check::kNotNegative, true, "bytes of the largest batch of small tensors; 0 fuses nothing"},
    {"RUEDA_BUCKET_BYTES", "", &Config::bucket_bytes, Check::kPositive, true,
     "bytes of the largest batch that is learnt from step to step (the first of a step: 1 MB); "
     "large "
     "enough that latency is below a tenth of the transfer, small enough to start early"},
    {"RUEDA_CHUNK_BYTES", "", &Config::chunk_bytes, Check::kPowerOfTwoChunk, true,
     "bytes of one window of the shared-memory pipeline (a power of two, 4096 to 16777216)"},
    {"RUEDA_STAGING_BUFFERS", "", &Config::staging_buffers, Check::kPositive, true,
     "staging buffers per rank in the shared-memory pipeline"},
    {"RUEDA_CACHE_CAPACITY", "HOROVOD_CACHE_CAPACITY", &Config::cache_capacity, Check::kNotNegative,
     true, "tensors the response cache remembers; 0 switches it off"},
    {"RUEDA_SHM_PROTOCOL", "", &Config::shm_protocol, Check::kProtocol, true,
     "how an allreduce moves data inside a host: staged, cma (where possible), or auto, which "
     "measures both"},
    {"RUEDA_HOST_COMPRESSION", "", &Config::host_compression, Check::kCompression, true,
     "how float32 sums travel between hosts: none (as they are), bf16 or fp16 (half the bytes)"},
    {"RUEDA_HOST_EXCHANGE", "", &Config::host_exchange, Check::kExchange, true,
     "how hosts add up: auto, by size and number of hosts; direct (everybody sends everything), "
     "bruck (passed on in log2 H rounds) or reduce-scatter (shards, then an allgather of their "
     "sums), "
     "for all sizes"},
    {"RUEDA_FUSION_HOLD_SECONDS", "", &Config::fusion_hold_seconds, Check::kNotNegative, false,
     "how long a batch waits for its usual members after the last one arrived"},
    {"RUEDA_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS",
     &Config::stall_check_seconds, Check::kNotNegative, false,
     "warn about a tensor that some ranks have not submitted for this long; 0 never warns"},
    {"RUEDA_STALL_SHUTDOWN_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
     &Config::stall_shutdown_seconds, Check::kNotNegative, false,
     "fail such a tensor on all ranks after this long; 0 never does"},
    {"RUEDA_STALL_POLICY", "", &Config::stall_policy, Check::kStallPolicy, false,
     "what comes with that warning: warn, nothing; dump, the flight recorders' files; abort, "
     "these, and "
     "the tensor fails on all ranks"},
    {"RUEDA_FLIGHT_RECORDER", "", &Config::flight_folder, Check::kAny, false,
     "folder for what the ranks did last, written when one fails (rueda explain reads it)"},
    {"RUEDA_PLAN_PATIENCE", "", &Config::plan_patience_seconds, Check::kPositive, false,
     "how long a step plan may stand still before the ranks negotiate again and name who is late"},
    {"RUEDA_START_TIMEOUT", "HOROVOD_START_TIMEOUT", &Config::start_timeout_seconds,
     Check::kPositive, false, "seconds that init waits for the other ranks"},
    {"RUEDA_SHUTDOWN_TIMEOUT", "", &Config::shutdown_timeout_seconds, Check::kPositive, false,
     "seconds that shutdown waits for collectives that have begun"},
    {"RUEDA_DEAD_SECONDS", "", &Config::dead_seconds, Check::kDeadSeconds, false,
     "how long a rank may be stopped (SIGSTOP) before it counts as dead and is killed (0.5 to "
     "600)"},
    {"RUEDA_PREEMPTION_SIGNAL", "", &Config::preemption_signal, Check::kAny, false,
     "signals that make should_stop() true on all ranks, from its first call on; none: no signal "
     "does"},
    {"RUEDA_CRASH_HANDLERS", "", &Config::crash_handlers, Check::kAny, false,
     "0: no signal handlers that tell of a crash before its core dump is written"},
    {"RUEDA_TRANSPORT", "", &Config::transport, Check::kTransport, true,
     "auto: shared memory inside a host and tcp between hosts; tcp: tcp everywhere; mpi: shared "
     "memory inside a host and MPI between hosts; mpi-only: MPI everywhere"},
    {"RUEDA_MPI_CHUNK_BYTES", "", &Config::mpi_chunk_bytes, Check::kMpiChunk, false,
     "bytes of one message of the MPI transport, at most 1073741824"},
    {"RUEDA_CUDA_DRIVER", "", &Config::cuda_driver, Check::kAny, false,
     "file of the CUDA driver, opened with the first GPU tensor; empty: libcuda.so.1"},
    {"RUEDA_NCCL_LIBRARY", "", &Config::nccl_library, Check::kAny, false,
     "file of NCCL; empty: the copy that the process has loaded, else pip's, else the system's"},
    {"RUEDA_CUDA_KERNELS", "", &Config::cuda_kernels, Check::kAny, false,
     "file of rueda's CUDA kernels; empty: librueda_cuda.so beside librueda.so, if it is there; "
     "none: "
     "without"},
    {"RUEDA_ALLOW_SHARED_GPU", "", &Config::allow_shared_gpu, Check::kAny, false,
     "1 on all ranks: several ranks may use one GPU (tests; NCCL must allow it too)"},
    {"RUEDA_HOST_ID", "", &Config::host_id, Check::kAny, false,
     "overrides this host's identity, so that ranks of one machine count as separate hosts"},
    {"RUEDA_TCP_ADDRESS", "", &Config::tcp_address, Check::kAny, false,
     "IPv4 or IPv6 address that the tcp transport listens on; empty is 127.0.0.1"},
    {"RUEDA_TCP_STREAMS", "", &Config::tcp_streams, Check::kStreams, true,
     "TCP connections between two ranks of different hosts, 1 to 16: more than one where a network "
     "limits each connection"},
    {"RUEDA_TCP_RATE_LIMIT", "", &Config::tcp_rate_limit, Check::kNotNegative, false,
     "bytes per second that each connection between hosts sends at most, paced by the kernel; 0: "
     "no "
     "limit"},
    {"RUEDA_RENDEZVOUS", "", &Config::rendezvous, Check::kAny, false,
     "host:port where rank 0 waits for the others when another launcher than ruedarun started "
     "them; "
     "empty: within a host nothing is needed, else it follows from the launcher's variables"},
    {"RUEDA_KEY_FILE", "", &Config::key_file, Check::kAny, false,
     "file with the job's key, the same on all hosts and for nobody else to read; needed when "
     "another launcher than ruedarun starts ranks on several hosts"},
    {"RUEDA_HEAP_BYTES", "", &Config::heap_bytes, Check::kNotNegative, false,
     "most bytes of tensors in shared memory (rueda_alloc) per process; 0: as large as this host's "
     "memory or the process's cgroup limit"},
    {"RUEDA_TIMELINE", "HOROVOD_TIMELINE", &Config::timeline, Check::kAny, false,
     "file of the timeline (Chrome JSON); with {rank} in its name every rank writes one, else rank "
     "0. DYNAMIC: none until start_timeline"},
    {"RUEDA_TIMELINE_MARK_CYCLES", "HOROVOD_TIMELINE_MARK_CYCLES", &Config::timeline_mark_cycles,
     Check::kAny, false, "1: the timeline marks the rounds in which something begins"},
    {"RUEDA_TIMELINE_ALL_RANKS", "", &Config::timeline_all_ranks, Check::kAny, false,
     "1: every rank writes a timeline, on one clock, \"rank<N>\" in its name"},
    {"RUEDA_SUMMARY", "", &Config::summary, Check::kAny, false,
     "1: ranks count what the launcher's --summary prints"},
    {"RUEDA_NAME_SLOW_RANKS", "", &Config::name_slow_ranks, Check::kAny, false,
     "1: warn about a rank that the others wait for again and again"},
    {"RUEDA_LOG_LEVEL", "HOROVOD_LOG_LEVEL", &Config::log_level, Check::kLogLevel, false,
     "trace, debug, info, warning, error or fatal"},
    {"RUEDA_LOG_HIDE_TIME", "HOROVOD_LOG_HIDE_TIME", &Config::log_hide_time, Check::kAny, false,
     "1: log messages do not begin with the time"},
    {"RUEDA_SIMD_TARGET", "", &Config::simd_target, Check::kAny, false,
     "instruction set of the kernels by name; empty takes the best this CPU has"},
    {"RUEDA_ATTENTION_KERNEL", "", &Config::attention_kernel, Check::kAny, false,
     "local kernel of attention by name; auto: of highest priority for the dtypes; measured: the "
     "fastest"},
};

// Horovod's switch for two settings of ours: 1 is 0 seconds for both, before their own HOROVOD_
// variables.
constexpr const char* kNoStallCheck = "HOROVOD_STALL_CHECK_DISABLE";

bool switched_off(const Row& row, const GetEnv& get_env) {
  const char* value = get_env(kNoStallCheck);
  return value != nullptr && std::string_view(value) == "1" &&
         (row.field == decltype(Row::field)(&Config::stall_check_seconds) ||
          row.field == decltype(Row::field)(&Config::stall_shutdown_seconds));
}

// Settings that had another name before: refused, so that nobody believes that they still work.
struct Renamed {
  const char* before;
  const char* now;
};
constexpr Renamed kRenamed[] = {
    {"RUEDA_ROAD",
     "RUEDA_SHM_PROTOCOL, with the values auto, staged (was windows) and cma (was pull)"},
    {"RUEDA_WINDOWS", "RUEDA_STAGING_BUFFERS"},
};

struct Found {
  const char* value = nullptr;
  const char* origin = "default";
};

Found look_up(const Row& row, const GetEnv& get_env) {
  if (const char* value = get_env(row.variable)) return {value, row.variable};
  if (switched_off(row, get_env)) return {"0", kNoStallCheck};
  if (row.horovod_variable[0] != '\0') {
    if (const char* value = get_env(row.horovod_variable)) return {value, row.horovod_variable};
  }
  return {};
}

Status refuse(const Found& found, const char* accepted) {
  return invalid_argument(std::string(found.origin) + "='" + found.value + "': expected " +
                          accepted);
}

template <typename T>
bool parse_number(const char* text, T* out) {
  const char* end = text + std::char_traits<char>::length(text);
  const auto [rest, error] = std::from_chars(text, end, *out);
  return error == std::errc() && rest == end && text != end;
}

template <typename T>
Status check_number(const Row& row, const Found& found, T value) {
  if (row.check == Check::kPositive && !(value > 0))
    return refuse(found, "a number greater than 0");
  if (row.check == Check::kNotNegative && !(value >= 0))
    return refuse(found, "a number that is not negative");
  if constexpr (std::is_same_v<T, int64_t>) {
    if (row.check == Check::kPowerOfTwoChunk &&
        (value < 4096 || value > (16 << 20) || (value & (value - 1)) != 0)) {
      return refuse(found, "a power of two from 4096 to 16777216");
    }
    if (row.check == Check::kMpiChunk && (value < 1 || value > (1 << 30)))
      return refuse(found, "1 to 1073741824");
    if (row.check == Check::kStreams && (value < 1 || value > 16)) return refuse(found, "1 to 16");
    if (row.field == decltype(Row::field)(&Config::staging_buffers) && value > 64)
      return refuse(found, "1 to 64");
  } else if (!std::isfinite(value)) {
    return refuse(found, "a finite number");
  } else if (row.check == Check::kDeadSeconds && (value < 0.5 || value > 600)) {
    return refuse(found, "0.5 to 600 seconds");
  }
  return {};
}

Status set_field(const Row& row, const Found& found, Config* config) {
  if (found.value == nullptr) return {};
  if (const auto* whole = std::get_if<int64_t Config::*>(&row.field)) {
    int64_t value = 0;
    if (!parse_number(found.value, &value)) return refuse(found, "a whole number");
    RUEDA_RETURN_IF_ERROR(check_number(row, found, value));
    config->*(*whole) = value;
  } else if (const auto* real = std::get_if<double Config::*>(&row.field)) {
    double value = 0;
    if (!parse_number(found.value, &value)) return refuse(found, "a number");
    RUEDA_RETURN_IF_ERROR(check_number(row, found, value));
    config->*(*real) = value;
  } else if (const auto* flag = std::get_if<bool Config::*>(&row.field)) {
    int64_t value = 0;
    if (!parse_number(found.value, &value) || (value != 0 && value != 1))
      return refuse(found, "0 or 1");
    config->*(*flag) = value == 1;
  } else {
    std::string value = found.value;
    if (row.check == Check::kTransport && value != "auto" && value != "tcp" && value != "mpi" &&
        value != "mpi-only") {
      return refuse(found, "auto, tcp, mpi or mpi-only");
    }
    if (row.check == Check::kCompression && value != "none" && value != "bf16" && value != "fp16")
      return refuse(found, "none, bf16 or fp16");
    if (row.check == Check::kExchange && value != "auto" && value != "direct" && value != "bruck" &&
        value != "reduce-scatter") {
      return refuse(found, "auto, direct, bruck or reduce-scatter");
    }
    if (row.check == Check::kProtocol && value != "auto" && value != "staged" && value != "cma")
      return refuse(found, "auto, staged or cma");
    if (row.check == Check::kStallPolicy && value != "warn" && value != "dump" && value != "abort")
      return refuse(found, "warn, dump or abort");
    if (row.check == Check::kLogLevel) {
      for (char& c : value) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
      if (value != "trace" && value != "debug" && value != "info" && value != "warning" &&
          value != "error" && value != "fatal") {
        return refuse(found, "trace, debug, info, warning, error or fatal");
      }
    }
    config->*std::get<std::string Config::*>(row.field) = value;
  }
  return {};
}

std::string print_field(const Row& row, const Config& config) {
  std::ostringstream text;
  std::visit([&](auto field) { text << config.*field; }, row.field);
  return text.str();
}

}  // namespace

Result<Config> load_config(const GetEnv& get_env) {
  Config config;
  const char* no_stall_check = get_env(kNoStallCheck);
  if (no_stall_check != nullptr && std::string_view(no_stall_check) != "0" &&
      std::string_view(no_stall_check) != "1") {
    return refuse({no_stall_check, kNoStallCheck}, "0 or 1");
  }
  for (const auto& [before, now] : kRenamed) {
    if (get_env(before) != nullptr)
      return invalid_argument(std::string(before) + " has been renamed: use " + now);
  }
  for (const Row& row : kTable)
    RUEDA_RETURN_IF_ERROR(set_field(row, look_up(row, get_env), &config));
  return config;
}

Result<std::vector<ConfigEntry>> describe_config(const GetEnv& get_env) {
  RUEDA_ASSIGN_OR_RETURN(const Config config, load_config(get_env));
  const Config defaults;
  std::vector<ConfigEntry> entries;
  for (const Row& row : kTable) {
    entries.push_back({row.variable, row.horovod_variable, print_field(row, defaults), row.meaning,
                       print_field(row, config), look_up(row, get_env).origin});
  }
  return entries;
}

std::string agreed_settings(const Config& config) {
  std::string text;
  for (const Row& row : kTable) {
    if (row.agreed) text += std::string(row.variable) + "=" + print_field(row, config) + "\n";
  }
  return text;
}

}  // namespace rueda
