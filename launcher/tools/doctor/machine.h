// Machine: what `rueda doctor` knows about one host, as found, without an opinion.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/probe.h"

namespace rueda::doctor {

struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric
  bool loopback = false;
  bool up = false;
};

struct Machine {
  std::string version;  // of rueda
  std::string host, kernel;
  // Needed for any job: 0, or the errno of trying.
  int memory_file_error = 0, unix_socket_error = 0, tcp_error = 0, pidfd_error = 0;
  bool reads_peers = false;  // process_vm_readv works

  std::vector<Interface> interfaces;
  std::vector<std::string> name_addresses;  // what the host's own name resolves to
  bool clock_synchronised = false;
  std::string clock_source;

  uint64_t open_files = 0, open_files_hard = 0, processes = 0, locked_bytes = 0;  // soft limits
  uint64_t shm_bytes = 0, shm_free_bytes = 0;                                     // of /dev/shm
  uint64_t temporary_free_bytes = 0;
  uint64_t memory_bytes = 0, available_bytes = 0;
  std::optional<uint64_t> group_memory_bytes, group_used_bytes, group_processes;  // cgroup limits
  std::optional<double> group_cores;
  bool strict_overcommit = false;

  std::string cpu_model;
  std::vector<std::string> cpu_features;  // of those that matter: avx2, avx512f, avx512_bf16, ...
  int cores_usable = 0, cores_online = 0, cores_physical = 0, numa_nodes = 0;
  std::string container;  // "docker", "kubernetes", ...; empty: none seen
  bool seccomp = false;

  int gpu_devices = 0;     // device nodes
  int gpus_usable = -1;    // as the driver's library counts them; -1: it cannot be asked
  std::string gpu_driver;  // of the kernel module
  bool mps = false;        // NVIDIA's Multi-Process Service is running
  std::string mpirun;      // path and first line of its version; empty: none in PATH
  std::string mpi_plugin;  // path of librueda_mpi.so; empty: none beside librueda
  std::string library;     // path of librueda; empty: not found
  std::string library_error;
  std::vector<launcher::Probe> frameworks, libraries;
};

// Takes up to a few seconds (asks python3 and mpirun). Never fails: what cannot be found is empty.
Machine look_at_this_machine();

}  // namespace rueda::doctor
