// Every setting of rueda in one typed object, built once and passed down.
//
// A setting is read from RUEDA_<NAME>, else from Horovod's variable where Horovod had the same,
// else it has its default. The table behind it (config.cc) is what `ruedarun --print-config`
// prints; nobody else calls getenv, except the launcher's options and bootstrap's description of
// the process's place (runtime/membership/place.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda {

struct Config {
  // Agreement: equal on all ranks, compared at init.
  int64_t fusion_threshold_bytes = 64 << 20;  // largest batch of small tensors
  int64_t bucket_bytes = 8 << 20;             // largest batch that is learnt from step to step
  int64_t chunk_bytes = 256 << 10;            // window size of the intra-host pipeline, per rank
  int64_t staging_buffers = 4;                // of that size, per rank
  int64_t cache_capacity = 1024;              // tensors remembered by the response cache
  std::string host_compression = "none";      // of f32 sums between hosts: none, bf16, fp16
  std::string host_exchange = "auto";         // see RUEDA_HOST_EXCHANGE
  std::string shm_protocol = "auto";          // auto, staged, cma: see RUEDA_SHM_PROTOCOL
  // Local.
  double fusion_hold_seconds =
      0.005;  // how long a batch waits for its usual members after the last arrived
  double stall_check_seconds =
      60;  // warn about a tensor that some ranks have not submitted; 0: never
  double stall_shutdown_seconds = 0;   // fail such a tensor on all ranks after this long; 0: never
  std::string stall_policy = "warn";   // warn, dump, abort: see RUEDA_STALL_POLICY
  std::string flight_folder;           // for the flight recorders' files; empty: none
  double plan_patience_seconds = 1;    // how long a step plan may stand still before it is given up
  double start_timeout_seconds = 120;  // how long init waits for the other ranks
  double shutdown_timeout_seconds = 5;  // how long shutdown waits for collectives that have begun
  double dead_seconds = 5;              // how long a rank may be stopped, or on another host silent
  std::string preemption_signal = "SIGTERM,SIGUSR1";  // make should_stop() true
  bool crash_handlers = true;      // signal handlers that tell the agent of a crash at once
  std::string transport = "auto";  // auto, tcp, mpi, mpi-only: see RUEDA_TRANSPORT
  int64_t tcp_streams = 1;         // connections between two ranks of different hosts: 1 to 16
  std::string host_id;      // overrides this host's identity (tests: ranks of one machine as hosts)
  std::string tcp_address;  // address to listen on; empty: loopback
  int64_t tcp_rate_limit = 0;  // bytes per second of each connection; 0: no limit
  std::string cuda_driver;     // file of the CUDA driver; empty: libcuda.so.1
  std::string nccl_library;    // file of NCCL; empty: looked for (collectives/nccl/search.h)
  std::string cuda_kernels;    // file of librueda_cuda.so; empty: beside librueda.so; none: without
  bool allow_shared_gpu = false;        // several ranks may use one GPU (tests)
  int64_t mpi_chunk_bytes = 256 << 10;  // bytes of one message of the MPI transport
  std::string rendezvous;  // "host:port" where rank 0 waits for the others, without ruedarun
  std::string key_file;    // the job's key, for ranks of several hosts without ruedarun
  int64_t heap_bytes = 0;  // of shared tensor memory; 0: as large as this host's memory
  std::string timeline;    // file of the timeline, see timeline_file.h; empty or DYNAMIC: none yet
  bool timeline_mark_cycles = false;
  bool timeline_all_ranks = false;
  bool summary = false;  // count for the launcher's summary
  bool name_slow_ranks = true;
  std::string log_level = "warning";      // trace, debug, info, warning, error, fatal
  bool log_hide_time = false;             // log messages without the time
  std::string simd_target;                // kernels' target by name; empty: the best this CPU has
  std::string attention_kernel = "auto";  // local kernel by name, auto or measured
};

// One row of `--print-config`.
struct ConfigEntry {
  std::string variable;          // "RUEDA_FUSION_THRESHOLD"
  std::string horovod_variable;  // "" where Horovod has none
  std::string default_value;
  std::string meaning;
  std::string value;   // in force
  std::string origin;  // "default", "RUEDA_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"
};

// Looks a variable up; tests pass a map, the composition root passes the environment. nullptr: not
// set.
using GetEnv = std::function<const char*(const char*)>;

// InvalidArgument names the variable, the value and what is accepted. An unknown RUEDA_* variable
// is not an error here (the launcher sets some that are not configuration).
Result<Config> load_config(const GetEnv& get_env);
// The same table with values and origins. Fails as load_config does.
Result<std::vector<ConfigEntry>> describe_config(const GetEnv& get_env);
// Settings that must be equal on all ranks as "name=value" lines, for the comparison at init.
std::string agreed_settings(const Config& config);

}  // namespace rueda
