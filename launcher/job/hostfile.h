// The names of hosts and their slots, as users of this field write them down. Pure.
//
//   -H h1:4,h2:4    [fd00::1]:2    node[01-16,20]:8
//
//   a file, a line each; '#' begins a comment; a name that comes again adds its slots
//     h1 slots=4 max_slots=8 port=2222 user=ann     Open MPI, Horovod, DeepSpeed
//     h2:4                                          MPICH, Intel MPI
//     h3                                            one slot (PBS, LSF: the name once per slot)
//     node[01-16,20] slots=8
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::launcher {

struct HostSlots {
  std::string host;
  int slots = 1;
  std::string user;  // for ssh; empty: as ssh sees fit
  int port = 0;      // of sshd; 0 likewise
};

// After -H. InvalidArgument quotes the part that is wrong.
Result<std::vector<HostSlots>> parse_hosts(const std::string& hosts);

// The text of a hostfile; `name` is its path, for errors ("name:3: ..."). `default_slots`: of a
// line that has none.
Result<std::vector<HostSlots>> parse_hostfile(std::string_view text, const std::string& name,
                                              int default_slots = 1);

// Of Slurm: SLURM_JOB_NODELIST ("node[1-3],gpu7") and SLURM_TASKS_PER_NODE ("4(x2),2,1").
Result<std::vector<HostSlots>> parse_slurm(const std::string& nodes, const std::string& tasks);

// Letters, digits and ". _ : -", not a '-' in front: what may stand on a command line.
bool is_host_name(std::string_view name);

}  // namespace rueda::launcher
